//! The same care with answers.

use http::Method;
use nova_supervisor::gate::{Asked, Gate, Limits, Progress, Refusal};

use crate::raw::{answers, run};

#[track_caller]
fn answer_refused(method: Method, input: &str, refusal: Refusal) {
    let (released, _, ends, got) = answers(method, input.as_bytes());
    assert_eq!((ends, got), (0, Some(refusal)), "{input:?}");
    assert!(released.len() < input.len(), "{input:?}");
}

#[track_caller]
fn answer_accepted(method: Method, input: &str) {
    assert_eq!(answers(method, input.as_bytes()), (input.as_bytes().to_vec(), 1, 1, None), "{input:?}");
}

#[test]
fn item_58_answers_with_two_framings_or_none_that_fits_are_refused() {
    let ok = "HTTP/1.1 200 OK\r\n";
    let both = format!("{ok}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    answer_refused(Method::GET, &both, Refusal::LengthAndChunked);
    let both = format!("{ok}Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n");
    answer_refused(Method::GET, &both, Refusal::LengthAndChunked);
    let equal = format!("{ok}Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc");
    answer_refused(Method::GET, &equal, Refusal::DuplicateContentLength);
    answer_refused(Method::GET, &format!("{ok}Content-Length: 3, 3\r\n\r\nabc"), Refusal::BadContentLength);
    answer_refused(
        Method::GET,
        &format!("{ok}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        Refusal::BadTransferEncoding,
    );
    for head in
        ["HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 100 C\r\nContent-Length: 3\r\n\r\n"]
    {
        answer_refused(Method::GET, head, Refusal::UnexpectedBody);
    }
    answer_refused(Method::GET, "HTTP/1.1 204 N\r\nTransfer-Encoding: chunked\r\n\r\n", Refusal::UnexpectedBody);
}

#[test]
fn a_101_that_nobody_asked_for_is_refused() {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nframe";
    answer_refused(Method::GET, switch, Refusal::UnaskedUpgrade);
    answer_refused(Method::CONNECT, switch, Refusal::UnaskedUpgrade);
    let mut gate = Gate::responses(Limits::default());
    gate.expect(Asked::Upgrade);
    assert_eq!(run(gate, switch.as_bytes(), 1).0, switch.as_bytes());
}

#[test]
fn an_answer_without_a_request_is_refused() {
    let answer = "HTTP/1.1 204 No Content\r\n\r\n";
    assert_eq!(run(Gate::responses(Limits::default()), answer.as_bytes(), 1).3, Some(Refusal::UnaskedAnswer));
    let (released, heads, ends, refusal) = answers(Method::GET, answer.repeat(2).as_bytes());
    assert_eq!((released.as_slice(), heads, ends), (answer.as_bytes(), 1, 1));
    assert_eq!(refusal, Some(Refusal::UnaskedAnswer));
}

#[test]
fn interim_answers_are_counted() {
    let interim = "HTTP/1.1 100 Continue\r\n\r\n";
    let last = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    answer_refused(Method::GET, &format!("{}{last}", interim.repeat(17)), Refusal::TooManyInterim);
    let fine = format!("{}{last}", interim.repeat(16));
    assert_eq!(answers(Method::GET, fine.as_bytes()), (fine.clone().into_bytes(), 17, 1, None));
}

#[test]
fn status_lines_are_version_three_digits_reason() {
    for line in [
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000",
        "HTTP/1.1  200",
        "HTTP/1.1 099",
        "HTTP/1.1 600",
        "HTTP/1.1",
        "",
        "HTTP/1.1 2x0 OK",
        "HTTP/1.1 200OK",
    ] {
        answer_refused(Method::GET, &format!("{line}\r\nContent-Length: 0\r\n\r\n"), Refusal::BadStatusLine);
    }
    answer_refused(Method::GET, "ICY 200 OK\r\n\r\n", Refusal::BadVersion);
    answer_refused(Method::GET, "HTTP/2.0 200 OK\r\n\r\n", Refusal::BadVersion);
    answer_refused(Method::GET, "HTTP/1.1 200 OK\nContent-Length: 0\n\n", Refusal::BareLf);
    answer_accepted(Method::GET, "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n");
    answer_accepted(Method::GET, "HTTP/1.0 404 Nicht gefunden\r\nContent-Length: 0\r\n\r\n");
}

#[test]
fn head_204_and_304_have_no_body() {
    answer_accepted(Method::HEAD, "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n");
    answer_accepted(Method::HEAD, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    answer_accepted(Method::HEAD, "HTTP/1.1 200 OK\r\n\r\n");
    answer_accepted(Method::GET, "HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n");
    answer_accepted(Method::GET, "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n");
}

#[test]
fn an_answer_without_framing_lasts_until_the_end_of_the_connection() {
    let mut gate = Gate::responses(Limits::default());
    gate.expect_response_to(&Method::GET);
    let input = b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n";
    assert_eq!(gate.feed(input), Progress { release: input.len(), heads: 1, ends: 0, refusal: None });
    assert!(gate.is_to_close() && gate.passthrough() == u64::MAX);
}

#[test]
fn apps_may_answer_with_bytes_above_ascii_in_values() {
    answer_accepted(
        Method::GET,
        "HTTP/1.1 200 OK\r\nContent-Disposition: a; filename=caf\u{e9}\r\nContent-Length: 0\r\n\r\n",
    );
    answer_refused(Method::GET, "HTTP/1.1 200 OK\r\nX\u{e9}: a\r\nContent-Length: 0\r\n\r\n", Refusal::NonAscii);
}
