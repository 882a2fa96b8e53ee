//! The gate on raw bytes: the check list of request smuggling (numbers in the comments), the same for answers, and that
//! neither the cut of the input nor its mutation changes what the gate and httparse call a message.
// covers: A7a (request gate)

use http::Method;
use nova_supervisor::gate::{Asked, Event, Gate, Limits, Progress, Refusal};
use proptest::prelude::*;

/// Everything that a gate releases of `input`, and the refusal, when it comes in pieces of `cut` bytes.
fn run(mut gate: Gate, input: &[u8], cut: usize) -> (Vec<u8>, usize, usize, Option<Refusal>) {
    let (mut held, mut released) = (Vec::new(), Vec::new());
    let (mut heads, mut ends) = (0, 0);
    for piece in input.chunks(cut.max(1)) {
        held.extend_from_slice(piece);
        let Progress { release, heads: more_heads, ends: more_ends, refusal } = gate.feed(&held);
        released.extend(held.drain(..release));
        (heads, ends) = (heads + more_heads, ends + more_ends);
        if refusal.is_some() {
            return (released, heads, ends, refusal);
        }
    }
    (released, heads, ends, None)
}

fn requests(input: &[u8]) -> (Vec<u8>, usize, usize, Option<Refusal>) {
    run(Gate::requests(Limits::default()), input, usize::MAX)
}

fn answers(method: Method, input: &[u8]) -> (Vec<u8>, usize, usize, Option<Refusal>) {
    let mut gate = Gate::responses(Limits::default());
    gate.expect_response_to(&method);
    run(gate, input, usize::MAX)
}

/// Nothing of it may reach the parser, and the reason is this one.
#[track_caller]
fn refused(input: &str, refusal: Refusal) {
    assert_eq!(requests(input.as_bytes()), (Vec::new(), 0, 0, Some(refusal)), "{input:?}");
}

/// The head may reach the parser, but nothing behind it.
#[track_caller]
fn refused_in_body(head: &str, body: &str, refusal: Refusal) {
    let (released, heads, ends, got) = requests(format!("{head}{body}").as_bytes());
    assert_eq!((heads, ends, got), (1, 0, Some(refusal)), "{body:?}");
    assert!(released.starts_with(head.as_bytes()), "{body:?}");
}

#[track_caller]
fn accepted(input: &str, messages: usize) {
    assert_eq!(requests(input.as_bytes()), (input.as_bytes().to_vec(), messages, messages, None), "{input:?}");
}

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

const CHUNKED: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

// --- request identity: 31 to 39 -------------------------------------------------------------------------------------

#[test]
fn item_31_absolute_form_keeps_its_authority_and_needs_a_host_too() {
    accepted("GET http://a.test/x HTTP/1.1\r\nHost: other.test\r\n\r\n", 1);
    accepted("GET http://a.test/x HTTP/1.1\r\nHost:\r\n\r\n", 1);
    refused("GET http://a.test/x HTTP/1.1\r\n\r\n", Refusal::MissingHost);
}

#[test]
fn item_32_connect_may_have_another_host_or_none_as_node_sends_it() {
    let connect = "CONNECT api.test:443 HTTP/1.1\r\nHost: 127.0.0.1:3128\r\nConnection: keep-alive\r\n\r\n";
    accepted(connect, 1);
    accepted("CONNECT api.test:443 HTTP/1.1\r\n\r\n", 1);
    accepted("CONNECT api.test:443 HTTP/1.0\r\n\r\n", 1);
}

#[test]
fn item_35_two_hosts_are_refused_equal_or_not_and_in_any_spelling() {
    refused("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", Refusal::DuplicateHost);
    refused("GET / HTTP/1.1\r\nHost: a\r\nhOST: b\r\n\r\n", Refusal::DuplicateHost);
    refused("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", Refusal::DuplicateHost);
    refused("CONNECT a:1 HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", Refusal::DuplicateHost);
}

#[test]
fn host_is_a_host_and_a_port() {
    for host in ["a b", "a,b", "a@b", "a/b", "a:99999x", "[::1", "[a]", "http://a", "a%2e", "a:"] {
        refused(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), Refusal::BadHost);
    }
    refused("GET / HTTP/1.1\r\nHost: \r\n\r\n", Refusal::MissingHost);
    refused("GET / HTTP/1.1\r\nAccept: */*\r\n\r\n", Refusal::MissingHost);
    accepted("GET / HTTP/1.1\r\nHost: [2001:db8::7]:8080\r\n\r\n", 1);
}

#[test]
fn item_36_every_form_of_target_goes_with_its_method_only() {
    refused("GET * HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::BadTarget);
    refused("GET a.test:443 HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::BadTarget);
    refused("CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::BadTarget);
    refused("GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::FragmentInTarget);
    refused("GET http://a/#/../x HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::FragmentInTarget);
    accepted("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 1);
}

#[test]
fn item_38_connect_needs_one_host_and_one_port() {
    for target in ["a.test", "a.test:", "2001:db8::7:443", "[[a]]:1", "u@a:1", "a:1/"] {
        refused(&format!("CONNECT {target} HTTP/1.1\r\n\r\n"), Refusal::BadTarget);
    }
    accepted("CONNECT [2001:db8::7]:443 HTTP/1.1\r\n\r\n", 1);
}

#[test]
fn item_39_connect_has_no_body() {
    refused("CONNECT a:1 HTTP/1.1\r\nContent-Length: 4\r\n\r\nGET ", Refusal::UnexpectedBody);
    refused("CONNECT a:1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Refusal::UnexpectedBody);
    // Windows clients say so with every CONNECT.
    accepted("CONNECT a:1 HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 1);
}

#[test]
fn bytes_behind_a_connect_are_held_until_its_answer() {
    let head = b"CONNECT a:1 HTTP/1.1\r\n\r\n";
    let input = [&head[..], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
    assert_eq!(requests(&input), (head.to_vec(), 1, 1, None));
    let mut gate = Gate::requests(Limits::default());
    assert_eq!(gate.feed(&input).release, head.len());
    assert!(gate.is_held());
    gate.switch_to_raw();
    assert_eq!(gate.feed(&input[head.len()..]).release, input.len() - head.len());
    let mut gate = Gate::requests(Limits::default());
    assert_eq!(gate.feed(&input).release, head.len());
    gate.close();
    assert_eq!(gate.feed(&input[head.len()..]), Progress { release: 0, heads: 0, ends: 0, refusal: None });
}

// --- smuggling: 42 to 59 --------------------------------------------------------------------------------------------

#[test]
fn item_42_length_beside_chunked_is_refused_in_both_orders() {
    let (length, chunked) = ("Content-Length: 6\r\n", "Transfer-Encoding: chunked\r\n");
    for fields in [[length, chunked], [chunked, length]] {
        let input = format!("POST / HTTP/1.1\r\nHost: a\r\n{}\r\n0\r\n\r\nX", fields.concat());
        refused(&input, Refusal::LengthAndChunked);
    }
}

#[test]
fn item_43_two_lengths_are_refused_equal_or_not_and_as_a_list() {
    for (fields, refusal) in [
        ("Content-Length: 5\r\nContent-Length: 0\r\n", Refusal::DuplicateContentLength),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", Refusal::DuplicateContentLength),
        ("Content-Length: 5, 5\r\n", Refusal::BadContentLength),
        ("Content-Length: 5,5\r\n", Refusal::BadContentLength),
    ] {
        refused(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\nhello"), refusal);
    }
}

#[test]
fn item_44_any_coding_but_one_plain_chunked_is_refused() {
    for value in [
        " chunked, identity",
        " xchunked",
        " gzip, chunked",
        " chunked,",
        " chunked ",
        " chunked\t",
        "\tchunked",
        "  chunked",
        " Chunked",
        " \"chunked\"",
        " chunked;q=1",
        " identity",
        "",
    ] {
        let input = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:{value}\r\n\r\n0\r\n\r\n");
        refused(&input, Refusal::BadTransferEncoding);
    }
    let twice = "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n";
    refused(&format!("POST / HTTP/1.1\r\nHost: a\r\n{twice}\r\n0\r\n\r\n"), Refusal::BadTransferEncoding);
    let old = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    refused(old, Refusal::BadTransferEncoding);
}

#[test]
fn framing_headers_with_underscores_are_refused() {
    for name in ["Content_Length", "Transfer_Encoding"] {
        refused(&format!("POST / HTTP/1.1\r\nHost: a\r\n{name}: 5\r\n\r\n"), Refusal::BadHeaderName);
    }
}

#[test]
fn item_45_space_around_names_is_refused() {
    refused("GET / HTTP/1.1\r\nHost : a\r\n\r\n", Refusal::SpaceBeforeColon);
    refused("GET / HTTP/1.1\r\nHost: a\r\nContent-Length\t: 5\r\n\r\n", Refusal::SpaceBeforeColon);
    for line in [": x", "X", "X Y: z", "X(: y", "\"X\": y", "X\u{b}: y"] {
        let (_, _, _, refusal) = requests(format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n").as_bytes());
        assert!(matches!(refusal, Some(Refusal::BadHeaderName | Refusal::ControlByte)), "{line:?} {refusal:?}");
    }
}

#[test]
fn item_46_bare_lf_and_bare_cr_are_refused_everywhere() {
    refused("GET / HTTP/1.1\nHost: a\n\n", Refusal::BareLf);
    refused("GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", Refusal::BareLf);
    refused("GET / HTTP/1.1\r\nHost: a\r\n\n", Refusal::BareLf);
    refused("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::BareLf);
    refused("GET / HTTP/1.1\r\nHost: a\r\nX: y\rZ: q\r\n\r\n", Refusal::BareCr);
    refused("GET / HTTP/1.1\r\r\nHost: a\r\n\r\n", Refusal::BareCr);
    refused("GET / HTTP/1.1\r\nHost: a\r\n\r\r\n", Refusal::BareCr);
    refused("GET /\rx HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::BareCr);
    for body in ["5\nhello\r\n0\r\n\r\n", "5\r\nhello\r\n0\n\r\n"] {
        refused_in_body(CHUNKED, body, Refusal::BareLf);
    }
    refused_in_body(CHUNKED, "0\r\n\n", Refusal::BareLf);
    refused_in_body(CHUNKED, "0\r\nX: y\n\r\n", Refusal::BareLf);
    refused_in_body(CHUNKED, "0\r\nX: \ry\r\n\r\n", Refusal::BareCr);
}

#[test]
fn item_47_folded_headers_are_refused() {
    refused("GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n", Refusal::ObsFold);
    refused("GET / HTTP/1.1\r\n Host: a\r\n\r\n", Refusal::ObsFold);
    refused("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n", Refusal::BadTransferEncoding);
}

#[test]
fn item_48_control_and_non_ascii_bytes_are_refused() {
    refused("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", Refusal::ControlByte);
    refused("GET / HTTP/1.1\r\nHost: a\r\nX: a\u{7f}b\r\n\r\n", Refusal::ControlByte);
    refused("GET / HTTP/1.1\r\nHost: a\r\nX: \u{1b}[0m\r\n\r\n", Refusal::ControlByte);
    refused("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::ControlByte);
    refused("GE\0T / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::ControlByte);
    refused("GET / HTTP/1.1\r\nHost: a\r\nX: caf\u{e9}\r\n\r\n", Refusal::NonAscii);
    refused("GET / HTTP/1.1\r\nHost: a\r\nX\u{e9}: a\r\n\r\n", Refusal::NonAscii);
    refused("GET /caf\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::NonAscii);
    accepted("GET / HTTP/1.1\r\nHost: a\r\nX:\ta\tb \r\n\r\n", 1);
}

#[test]
fn item_49_lengths_that_are_not_plain_digits_are_refused() {
    for value in [
        "+0",
        "-0",
        "0x0",
        "5 ",
        " 5",
        "\t5",
        "5\t",
        "",
        "05",
        "5.0",
        "5e1",
        "1_0",
        "18446744073709551616",
        "9999999999999999999",
        "\"5\"",
    ] {
        refused(&format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {value}\r\n\r\n"), Refusal::BadContentLength);
    }
    accepted("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", 1);
    accepted("POST / HTTP/1.1\r\nHost: a\r\ncontent-length:5\r\n\r\nhello", 1);
}

#[test]
fn item_50_chunks_with_extensions_bad_sizes_or_lost_line_ends_are_refused() {
    for body in [
        "5;a=b\r\nhello\r\n0\r\n\r\n",
        "5;\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "00000000000000005\r\nhello\r\n0\r\n\r\n",
        "ffffffffffffffff\r\n",
        "10000000000000005\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "-1\r\n",
        "\r\n5\r\nhello\r\n0\r\n\r\n",
        "5\r\nhelloX\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhell\r\n0\r\n\r\n",
    ] {
        refused_in_body(CHUNKED, body, Refusal::BadChunk);
    }
    refused_in_body(CHUNKED, "5;a\nhello\r\n0\r\n\r\n", Refusal::BadChunk);
    accepted(&format!("{CHUNKED}5\r\nhello\r\nA\r\n0123456789\r\n0\r\n\r\n"), 1);
}

#[test]
fn item_51_trailers_are_bounded_and_cannot_frame_or_identify() {
    for name in ["Content-Length", "Transfer_Encoding", "Host", "Connection", "X-Forwarded-Client-Cert", "Trailer"] {
        refused_in_body(CHUNKED, &format!("0\r\n{name}: 1\r\n\r\n"), Refusal::BadTrailer);
    }
    refused_in_body(CHUNKED, &format!("0\r\n{}\r\n", "a: b\r\n".repeat(33)), Refusal::BadTrailer);
    refused_in_body(CHUNKED, &format!("0\r\nX: {}\r\n\r\n", "y".repeat(8192)), Refusal::BadTrailer);
    refused_in_body(CHUNKED, &format!("0\r\nX: {}", "y".repeat(8192)), Refusal::BadTrailer);
    accepted(&format!("{CHUNKED}0\r\nGrpc-Status: 5\r\nX-Detail-Bin: AAE=\r\n\r\n"), 1);
}

#[test]
fn item_52_a_bad_request_behind_a_good_one_leaves_the_good_one_alone() {
    let good = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
    let (released, heads, ends, refusal) = requests(format!("{good}GET /b HTTP/1.1\nHost: a\n\n{good}").as_bytes());
    assert_eq!((released.as_slice(), heads, ends, refusal), (good.as_bytes(), 1, 1, Some(Refusal::BareLf)));
    accepted(&good.repeat(3), 3);
}

#[test]
fn item_53_get_and_head_have_no_body_unless_the_operator_says_so() {
    for method in ["GET", "HEAD", "TRACE"] {
        let sized = format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
        refused(&sized, Refusal::UnexpectedBody);
        let limits = Limits { body_on_get: true, ..Limits::default() };
        assert_eq!(run(Gate::requests(limits), sized.as_bytes(), 7).3, None);
        accepted(&format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"), 1);
    }
    let chunked = "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    refused(chunked, Refusal::UnexpectedBody);
    accepted("DELETE / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", 1);
}

#[test]
fn item_54_only_http_1_0_and_1_1_are_spoken() {
    refused("GET /\r\n", Refusal::BadRequestLine);
    refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Refusal::BadVersion);
    for version in ["HTTP/0.9", "HTTP/1.2", "HTTP/1.10", "HTTP/01.1", "http/1.1", "HTTP/1.1 ", "HTTP/2", "ICY", ""] {
        refused(&format!("GET / {version}\r\nHost: a\r\n\r\n"), Refusal::BadVersion);
    }
    accepted("GET / HTTP/1.0\r\n\r\n", 1);
}

#[test]
fn request_lines_have_three_parts_and_single_spaces() {
    for line in ["GET  / HTTP/1.1", " GET / HTTP/1.1", "GET", "G(T / HTTP/1.1", "GET/HTTP/1.1"] {
        refused(&format!("{line}\r\nHost: a\r\n\r\n"), Refusal::BadRequestLine);
    }
    refused("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::BadVersion);
    refused("GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::BadRequestLine);
    refused(&format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", "M".repeat(33)), Refusal::BadRequestLine);
    refused("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::BadRequestLine);
    accepted("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 1);
}

#[test]
fn item_55_h2c_of_java_clients_is_an_ordinary_request() {
    let java = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
                HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n";
    accepted(&java.repeat(2), 2);
}

#[test]
fn bytes_behind_an_upgrade_are_held_until_its_answer() {
    let upgrade = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let mut gate = Gate::requests(Limits::default());
    let input = upgrade.repeat(2);
    assert_eq!(gate.step(input.as_bytes()).expect("a request").event, Event::Request(Asked::Upgrade));
    assert_eq!(gate.feed(&input.as_bytes()[upgrade.len()..]).release, 0);
    gate.resume();
    assert_eq!(gate.feed(&input.as_bytes()[upgrade.len()..]).release, upgrade.len());
}

#[test]
fn item_59_only_100_continue_can_be_expected() {
    for fields in ["Expect: 200-ok\r\n", "Expect: \r\n", "Expect: 100-continue\r\nExpect: 100-continue\r\n"] {
        refused(&format!("PUT / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"), Refusal::BadExpect);
    }
    accepted("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-Continue\r\n\r\nbody", 1);
}

#[test]
fn heads_are_bounded_in_bytes_and_lines() {
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(70_000));
    refused(&long, Refusal::HeadTooLarge);
    refused(&format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(70_000)), Refusal::HeadTooLarge);
    refused(&format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(100)), Refusal::TooManyHeaders);
    accepted(&format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(99)), 1);
}

// --- answers --------------------------------------------------------------------------------------------------------

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

// --- cuts and mutations ---------------------------------------------------------------------------------------------

/// One of each kind of message, good and bad.
fn samples() -> Vec<String> {
    let get = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
    vec![
        get.repeat(3),
        format!("\r\n{get}"),
        format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello{get}"),
        format!("{CHUNKED}5\r\nhello\r\n1\r\nx\r\n0\r\nA: b\r\n\r\n{get}"),
        format!("{CHUNKED}5\r\nhello\r\n5;x\r\nhello\r\n0\r\n\r\n"),
        format!("{CHUNKED}5\r\nhelloX\n"),
        format!("{CHUNKED}0\r\nHost: b\r\n\r\n{get}"),
        format!("{get}GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n"),
        format!("{get}CONNECT a:1 HTTP/1.1\r\n\r\n{get}"),
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
    ]
}

#[test]
fn the_cut_of_the_input_changes_nothing() {
    for sample in samples() {
        let whole = requests(sample.as_bytes());
        for cut in 1..sample.len() {
            assert_eq!(run(Gate::requests(Limits::default()), sample.as_bytes(), cut), whole, "{sample:?} by {cut}");
        }
        for at in 1..sample.len() {
            let mut gate = Gate::requests(Limits::default());
            let first = gate.feed(&sample.as_bytes()[..at]);
            if first.refusal.is_none() {
                let second = gate.feed(&sample.as_bytes()[first.release..]);
                assert_eq!(
                    (first.release + second.release, second.refusal),
                    (whole.0.len(), whole.3),
                    "{sample:?} at {at}"
                );
            }
        }
    }
}

/// Bytes that matter to a parser.
fn spice() -> impl Strategy<Value = u8> {
    prop_oneof![prop::sample::select(b"\r\n\t\0 :;,#/*0159afAF+-_.%[]@?\"HT".to_vec()), any::<u8>(),]
}

fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..3u8, spice()), 0..4);
    (prop::sample::select(samples()), edits).prop_map(|(sample, edits)| {
        let mut bytes = sample.into_bytes();
        for (at, kind, byte) in edits {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => {}
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    // covers: C13.1, D15a
    /// The smoke run of the fuzz targets: no panic, no dependence on the cut, and httparse ends every head where the gate
    /// does.
    #[test]
    fn fuzz_smoke_requests(input in mutated(), cut in 1..40usize) {
        let whole = requests(&input);
        prop_assert_eq!(&run(Gate::requests(Limits::default()), &input, cut), &whole);
        let mut gate = Gate::requests(Limits::default());
        let mut at = 0;
        while let Ok(step) = gate.step(&input[at..]) {
            if let Event::Request(_) = step.event {
                let mut fields = [httparse::EMPTY_HEADER; 100];
                let mut request = httparse::Request::new(&mut fields);
                prop_assert_eq!(request.parse(&input[at..]), Ok(httparse::Status::Complete(step.release)));
                let target = request.path.unwrap_or_default();
                prop_assert!(target.parse::<http::Uri>().is_ok(), "{}", target);
            }
            if step.event == Event::More || step.event == Event::Raw {
                break;
            }
            at += step.release;
        }
    }

    // covers: C13.1
    #[test]
    fn fuzz_smoke_answers(input in mutated(), status in 100..600u16, cut in 1..40usize) {
        let text = String::from_utf8_lossy(&input).replace("GET /a HTTP/1.1", &format!("HTTP/1.1 {status} x"));
        let input = text.replace("POST / HTTP/1.1", &format!("HTTP/1.1 {status} x")).into_bytes();
        let whole = answers(Method::GET, &input);
        let mut gate = Gate::responses(Limits::default());
        gate.expect_response_to(&Method::GET);
        prop_assert_eq!(&run(gate, &input, cut), &whole);
    }

    #[test]
    fn fuzz_smoke_noise(input in prop::collection::vec(any::<u8>(), 0..300), cut in 1..40usize) {
        prop_assert_eq!(run(Gate::requests(Limits::default()), &input, cut), requests(&input));
    }
}
