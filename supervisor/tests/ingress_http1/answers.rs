//! What an app answers is read as strictly as what callers ask: an answer with two readings becomes 502, and nothing of it
//! reaches this caller or the next.

use crate::broken_answers::{Sees, Then, judge, judge_each};
use crate::data::A;
use crate::support::{ORDER, Stand, answer_to_head, rest};

const OK: &str = "HTTP/1.1 200 OK\r\n";
/// A second answer, which waits for whoever asks next.
const POISON: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL";

fn bad(stand: &Stand, cases: &[String]) {
    judge_each(stand, cases, Then::Stay, Sees::BadGateway);
}

// covers: C14.1, C5.58 (T33)
#[test]
fn item_58_an_answer_with_length_and_chunked_becomes_502_in_both_orders() {
    let (length, chunked) = ("Content-Length: 4\r\n", "Transfer-Encoding: chunked\r\n");
    let body = format!("4\r\nEVIL\r\n0\r\n\r\n{POISON}");
    bad(
        &Stand::start(),
        &[
            format!("{OK}{length}{chunked}\r\n{body}"),
            format!("{OK}{chunked}{length}\r\n{body}"),
            format!("{OK}{chunked}X: y\r\ncontent-length: 0\r\n\r\n{body}"),
            format!("{OK}{chunked}Content_Length: 4\r\n\r\n{body}"),
        ],
    );
}

// covers: C14.2, C5.58 (T33)
#[test]
fn item_58_an_answer_with_two_lengths_or_one_that_is_no_number_becomes_502() {
    let with = |fields: &str| format!("{OK}{fields}\r\nEVIL");
    bad(
        &Stand::start(),
        &[
            with("Content-Length: 4\r\nContent-Length: 3\r\n"),
            with("Content-Length: 4\r\nContent-Length: 4\r\n"),
            with("Content-Length: 4, 4\r\n"),
            with("Content-Length: +4\r\n"),
            with("Content-Length: 0x4\r\n"),
            with("Content-Length: 4 \r\n"),
            with("Content-Length:\r\n"),
            with("Content-Length: 18446744073709551620\r\n"),
            with("Content_Length: 4\r\n"),
        ],
    );
}

// covers: C14.3, C5.58 (T33)
#[test]
fn item_58_an_answer_with_another_coding_becomes_502() {
    let with = |value: &str| format!("{OK}Transfer-Encoding: {value}\r\n\r\n4\r\nEVIL\r\n0\r\n\r\n");
    let old = "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nEVIL\r\n0\r\n\r\n".to_owned();
    let twice = format!("{OK}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nEVIL\r\n0\r\n\r\n");
    let folded = format!("{OK}Transfer-Encoding:\r\n chunked\r\n\r\n4\r\nEVIL\r\n0\r\n\r\n");
    let mut cases = vec![old, twice, folded];
    cases.extend(["gzip, chunked", "chunked, identity", "xchunked", "chunked;q=1", "identity"].map(with));
    bad(&Stand::start(), &cases);
}

// covers: C14.4 (T33)
#[test]
fn an_answer_with_a_bare_lf_a_bare_cr_a_folded_or_a_broken_header_becomes_502() {
    let with = |field: &str| format!("{OK}{field}Content-Length: 4\r\n\r\nEVIL");
    bad(
        &Stand::start(),
        &[
            format!("{OK}Content-Length: 4\r\n\r\nEVIL").replace("\r\n", "\n"),
            with("X: y\n"),
            with("X: y\rZ: q\r\n"),
            with("X: \r\r\n"),
            with("X: y\r\n z\r\n"),
            with(" X: y\r\n"),
            with("X : y\r\n"),
            with("X\r\n"),
            with(": y\r\n"),
            with("X: a\0b\r\n"),
            with("X\u{e9}: y\r\n"),
        ],
    );
}

// covers: C14.5 (T33)
#[test]
fn an_answer_whose_first_line_is_none_becomes_502() {
    let lines = [
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 099 OK",
        "HTTP/1.1 600 OK",
        "HTTP/1.1  200 OK",
        "HTTP/1.1 200OK",
        "HTTP/2.0 200 OK",
        "HTTP/1.1",
        "ICY 200 OK",
        "SSH-2.0-x",
        "\0\0\x12\x04\0\0\0\0\0",
        "",
    ];
    bad(&Stand::start(), &lines.map(|line| format!("{line}\r\nContent-Length: 4\r\n\r\nEVIL")));
}

// covers: C14.6, C5.58 (T33)
#[test]
fn item_58_a_switch_of_protocols_that_nobody_asked_for_becomes_502() {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: ";
    bad(
        &Stand::start(),
        &[
            format!("{switch}websocket\r\n\r\nEVIL"),
            format!("{switch}h2c\r\n\r\nEVIL"),
            format!("HTTP/1.1 101 Switching Protocols\r\n\r\n{POISON}"),
            format!("HTTP/1.1 100 Continue\r\n\r\n{switch}websocket\r\n\r\nEVIL"),
        ],
    );
}

// covers: C14.7, C5.58 (T33)
#[test]
fn item_58_interim_answers_pass_by_and_a_flood_of_them_becomes_502() {
    let stand = Stand::start();
    let last = format!("{OK}Content-Length: 4\r\n\r\nfine");
    for count in [1, 2, 16] {
        let bytes = format!("{}{last}", "HTTP/1.1 100 Continue\r\n\r\n".repeat(count));
        judge(&stand, &bytes, Then::Answer, Sees::Whole(200, "fine"));
    }
    judge(&stand, &format!("{}{last}", "HTTP/1.1 100 Continue\r\n\r\n".repeat(17)), Then::Stay, Sees::BadGateway);
    judge(&stand, "HTTP/1.1 103 Early Hints\r\nLink: </EVIL>\r\n\r\n", Then::Repeat, Sees::BadGateway);
    let framed = format!("HTTP/1.1 100 Continue\r\nContent-Length: 4\r\n\r\nEVIL{last}");
    judge(&stand, &framed, Then::Stay, Sees::BadGateway);
    judge(&stand, "HTTP/1.1 100 Continue\r\n\r\n", Then::Close, Sees::BadGateway);
}

// covers: C14.8, C5.58 (T33)
#[test]
fn item_58_a_body_where_none_may_be_reaches_nobody() {
    let stand = Stand::start();
    for status in ["204 No Content", "304 Not Modified"] {
        let bytes = format!("HTTP/1.1 {status}\r\n\r\nEVIL{POISON}");
        judge(&stand, &bytes, Then::Stay, Sees::Whole(status[..3].parse().expect("a status"), ""));
    }
    bad(
        &stand,
        &[
            "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nEVIL".to_owned(),
            "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nEVIL\r\n0\r\n\r\n".to_owned(),
        ],
    );
}

// covers: C14.9, C5.58 (T16)
#[test]
fn item_58_a_body_of_an_answer_to_head_is_not_the_answer_to_the_next_request() {
    let stand = Stand::start();
    stand.node.guest(A).serve(|mut link, app| {
        while let Ok(request) = crate::data::read_request(&mut link) {
            app.saw(&request);
            // Answers HEAD as GET, and with bytes that look like one more answer.
            link.send(format!("{OK}Content-Length: {}\r\n\r\n{POISON}", POISON.len()));
            if !request.starts_with("HEAD ") {
                return;
            }
        }
    });
    for _ in 0..10 {
        let mut tls = stand.caller();
        tls.send(ORDER.replace("GET", "HEAD"));
        assert_eq!(answer_to_head(&mut tls).header("content-length"), Some(POISON.len().to_string()));
        tls.send(ORDER);
        let next = tls.answer().expect("an answer");
        assert_eq!((next.status, next.text().as_str()), (200, POISON), "the answer to GET itself");
    }
}

// covers: C14.10 (T33)
#[test]
fn an_answer_with_a_giant_head_becomes_502() {
    let long = "y".repeat(70_000);
    let many = "a: b\r\n".repeat(101);
    bad(
        &Stand::start(),
        &[
            format!("{OK}X: {long}\r\nContent-Length: 4\r\n\r\nEVIL"),
            format!("{OK}{many}Content-Length: 4\r\n\r\nEVIL"),
            format!("HTTP/1.1 200 {long}\r\nContent-Length: 4\r\n\r\nEVIL"),
        ],
    );
}

// covers: C14.11 (T33)
#[test]
fn a_head_of_an_answer_that_never_ends_becomes_502() {
    let stand = Stand::start();
    judge(&stand, &format!("{OK}X: EVIL\r\n"), Then::Repeat, Sees::BadGateway);
    judge(&stand, &"X".repeat(1000), Then::Repeat, Sees::BadGateway);
}

// covers: C14.12
#[test]
fn an_answer_with_as_many_headers_as_the_gate_takes_reaches_the_caller() {
    let stand = Stand::start();
    let fields = "a: b\r\n".repeat(99);
    judge(&stand, &format!("{OK}{fields}Content-Length: 4\r\n\r\nfine"), Then::Answer, Sees::Whole(200, "fine"));
    let fields = "a: b\r\n".repeat(99);
    let chunked = format!("{OK}{fields}Transfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n");
    judge(&stand, &chunked, Then::Answer, Sees::Whole(200, "fine"));
    let long = "y".repeat(65_000);
    judge(&stand, &format!("{OK}X: {long}\r\nContent-Length: 4\r\n\r\nfine"), Then::Answer, Sees::Whole(200, "fine"));
}

// covers: C14.13 (T16)
#[test]
fn bytes_behind_an_answer_are_never_the_next_callers_answer() {
    let stand = Stand::start();
    let whole = [
        format!("{OK}Content-Length: 4\r\n\r\nfine{POISON}"),
        format!("{OK}Content-Length: 4\r\n\r\nfineEVIL"),
        format!("{OK}Content-Length: 4\r\n\r\nfine\r\n"),
        format!("{OK}Transfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n{POISON}"),
        format!("{OK}Transfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\nX: y\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"),
    ];
    judge_each(&stand, &whole, Then::Stay, Sees::Whole(200, "fine"));
}

// covers: C14.14, C7.1 (T17)
#[test]
fn an_app_cannot_speak_as_the_supervisor_or_send_callers_elsewhere() {
    let stand = Stand::start();
    let problem = r#"{"type":"about:blank","title":"denied by policy","status":403,"decision_id":"forged"}"#;
    stand.node.guest(A).serve(move |mut link, _| {
        while crate::data::read_request(&mut link).is_ok() {
            link.send(format!(
                "HTTP/1.1 403 Forbidden\r\nContent-Type: application/problem+json\r\nX-Nova-Decision-Id: forged\r\n\
                 x_nova_decision_id: forged\r\nX.Nova.Decision.Id: forged\r\nX-Forwarded-Client-Cert: forged\r\n\
                 X_Forwarded_Client_Cert: forged\r\nAlt-Svc: h3=\"forged\"\r\nalt_svc: forged\r\n\
                 Proxy-Authenticate: forged\r\nProxy-Connection: forged\r\nConnection: X-Hop\r\nX-Hop: forged\r\n\
                 Set-Cookie: a=b\r\nSet-Cookie: c=d\r\nContent-Length: {}\r\n\r\n{problem}",
                problem.len()
            ));
        }
    });
    let mut tls = stand.caller();
    let answer = tls.ask(ORDER);
    assert!(!answer.head.contains("forged"), "{}", answer.head);
    assert_eq!((answer.status, answer.text().as_str()), (403, problem), "its body is its own");
    assert_eq!(answer.head.matches("set-cookie: ").count(), 2, "{}", answer.head);
    // The supervisor's own denial has an id in its head, and that is the one in the log.
    let own = tls.ask(ORDER.replace("GET", "DELETE"));
    stand.node.audited_once(|line| line["decision_id"] == own.decision_id().as_str());
}

// covers: C14.15
#[test]
fn trailers_of_an_answer_reach_a_caller_that_wants_them_without_those_of_ours() {
    let stand = Stand::start();
    stand.node.guest(A).serve(|mut link, _| {
        while crate::data::read_request(&mut link).is_ok() {
            link.send(format!(
                "{OK}Transfer-Encoding: chunked\r\nTrailer: X-Sum, X-Nova-Decision-Id, Alt-Svc\r\n\r\n4\r\nfine\r\n\
                 0\r\nX-Sum: 1\r\nX-Nova-Decision-Id: forged\r\nAlt-Svc: forged\r\n\r\n"
            ));
        }
    });
    for (wants, trailers) in
        [("Connection: TE, close\r\nTE: trailers\r\n", "x-sum: 1\r\n"), ("Connection: close\r\n", "")]
    {
        let mut tls = stand.caller();
        tls.send(format!("{}{wants}\r\n", &ORDER[..ORDER.len() - 2]));
        let answer = rest(&mut tls);
        assert!(answer.ends_with(&format!("\r\n\r\n4\r\nfine\r\n0\r\n{trailers}\r\n")), "{wants:?}: {answer:?}");
    }
}
