//! Requests as wholes, and what follows them: items 52 to 59 of the check list of request smuggling.

use nova_supervisor::gate::{Asked, Event, Gate, Limits, Refusal};

use crate::raw::{accepted, refused, requests, run};

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
