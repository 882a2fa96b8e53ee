//! What names the destination of a request, where something else might.

use std::io::Read;

use crate::data::{Node, Upstream, X, is, read_answer};
use crate::support::{came, connect, ended, plan, socks_with, status};

fn plain(node: &Node) -> Upstream {
    Upstream::http(&format!("{}:8080", node.ip(80)))
}

// covers: D7.35
#[test]
fn two_hosts_are_malformed_on_every_way_out() {
    let node = Node::with(plan());
    let upstream = plain(&node);
    for request in [
        "GET http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test:8080\r\nHost: plain.test:8080\r\n\r\n",
        "GET http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test:8080\r\nhost: other.test\r\n\r\n",
        "CONNECT plain.test:8080 HTTP/1.1\r\nHost: plain.test:8080\r\nHost: other.test\r\n\r\n",
    ] {
        let mut link = node.proxy(X);
        link.send(request);
        assert_eq!(status(&mut link), 400, "{request:?}");
        link.wait_closed();
    }
    let mut link = node.proxy(X);
    link.send("CONNECT plain.test:8080 HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(status(&mut link), 200);
    link.send("GET / HTTP/1.1\r\nHost: plain.test:8080\r\nHost: plain.test:8080\r\n\r\n");
    assert_eq!(status(&mut link), 400, "inside a tunnel");
    assert_eq!(upstream.seen().len(), 0);
}

// covers: D7.38
#[test]
fn a_port_has_one_spelling_and_a_rule_of_its_own() {
    let node = Node::with(plan());
    let upstream = plain(&node);
    for port in
        ["0", "65536", "99999", "+8080", "08080", "-1", "8080x", " 8080", "8080 ", "", "0x1f90", "8080:8080", "\u{661}"]
    {
        assert_eq!(connect(&node, &format!("plain.test:{port}")), 400, "{port:?}");
    }
    assert_eq!(connect(&node, "plain.test"), 400, "nobody guesses one");
    for port in [1, 22, 80, 443, 8081, 65535] {
        assert_eq!(connect(&node, &format!("plain.test:{port}")), 403, "{port}");
    }
    // SOCKS has numbers only.
    assert_eq!(socks_with(&node, b"\x05\x01\x00\x03\x0aplain.test\x00\x00"), Some(1));
    assert_eq!(socks_with(&node, b"\x05\x01\x00\x03\x0aplain.test\x1f\x91"), Some(2));
    assert_eq!(upstream.accepted(), 0);
}

// covers: D7.39
#[test]
fn a_connect_with_a_body_opens_no_tunnel_that_starts_somewhere_within_it() {
    let node = Node::with(plan());
    let upstream = plain(&node);
    for framing in [
        "Content-Length: 4\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    ] {
        let mut link = node.proxy(X);
        link.send(format!("CONNECT plain.test:8080 HTTP/1.1\r\nHost: x\r\n{framing}\r\nabcd"));
        assert_eq!(status(&mut link), 400, "{framing:?}");
        link.wait_closed();
    }
    assert_eq!(upstream.accepted(), 0);
    node.audited(3, |line| ended(line) && is(line, &[("reason", "malformed")]));
}

// covers: D7.40
#[test]
fn socks_is_version_5_connect_without_a_method_and_nothing_else() {
    let node = Node::with(plan());
    for (request, reply) in [
        (&b"\x05\x02\x00\x03\x08tcp.test\x15\x38"[..], Some(7)),
        (b"\x05\x03\x00\x03\x08tcp.test\x15\x38", Some(7)),
        (b"\x05\x01\x00\x02\x08tcp.test\x15\x38", Some(8)),
        (b"\x05\x01\x01\x03\x08tcp.test\x15\x38", Some(1)),
        (b"\x04\x01\x00\x03\x08tcp.test\x15\x38", Some(1)),
        (b"\x05\x01\x00\x03\x00\x15\x38", Some(1)),
        (b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50", Some(2)),
        (b"\x05\x01\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50", Some(2)),
    ] {
        assert_eq!(socks_with(&node, request), reply, "{request:?}");
    }
    // Only methods that we have not.
    for greeting in [&b"\x05\x01\x02"[..], b"\x05\x00", b"\x05\x02\x01\x02"] {
        let mut link = node.proxy(X);
        link.send(greeting);
        let mut choice = [0; 2];
        link.read_exact(&mut choice).expect("a choice");
        assert_eq!(choice, [5, 0xff], "{greeting:?}");
        link.wait_closed();
    }
    // What follows a request at once is the tunnel's.
    let upstream = crate::support::echo(&format!("{}:5432", node.ip(80)));
    let mut link = node.proxy(X);
    link.send(b"\x05\x01\x00\x05\x01\x00\x03\x08tcp.test\x15\x38trailing");
    let mut all = [0; 2 + 10 + 8];
    link.read_exact(&mut all).expect("an echo");
    assert_eq!(&all[12..], b"trailing");
    came(&upstream, 1);
}

// covers: D7.34
#[test]
fn authority_and_host_of_a_request_must_be_one_inside_a_tunnel_too() {
    let node = Node::with(plan());
    let upstream = plain(&node);
    let mut link = node.proxy(X);
    link.send("CONNECT plain.test:8080 HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(status(&mut link), 200);
    for request in [
        "GET / HTTP/1.1\r\nHost: other.test\r\n\r\n",
        "GET http://other.test:8080/ HTTP/1.1\r\nHost: plain.test:8080\r\n\r\n",
        "GET http://plain.test:8080/ HTTP/1.1\r\nHost: other.test:8080\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: plain.test:8081\r\n\r\n",
    ] {
        link.send(request);
        assert_eq!(read_answer(&mut link).expect("an answer").status, 400, "{request:?}");
    }
    link.send("GET http://plain.test:8080/a HTTP/1.1\r\nHost: plain.test:8080\r\n\r\n");
    assert_eq!(read_answer(&mut link).expect("an answer").status, 200);
    assert_eq!(upstream.seen().len(), 1);
}
