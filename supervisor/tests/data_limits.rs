//! Limits of an endpoint: at the limit, one above it, and what the next endpoint notices of it.

mod data;

use std::io::{Read, Write};
use std::net::TcpStream;

use data::{A, B, HTTPS, Node, Plan, Tls, is, until};

const ORDER: &str = "GET /v1/orders/42 HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n";

/// The default node with `limits` on service-a.
fn limited(limits: &str) -> Plan {
    let plan = Plan::default();
    let endpoints = plan.endpoints.replace(
        "boot_token: 00000000000000000000000000000021",
        &format!("boot_token: 00000000000000000000000000000021\n    limits: {limits}"),
    );
    Plan { endpoints, ..plan }
}

/// A TLS client that stops after the first byte.
fn silent(node: &Node, from: u8) -> TcpStream {
    let mut tcp = data::dial(&node.ip(from), &format!("{}:{HTTPS}", node.ip(21))).expect("connected");
    tcp.write_all(&[0x16]).expect("sent");
    tcp
}

/// Whether a client that comes now is reset.
fn is_refused(node: &Node, from: u8) -> bool {
    // Whichever call meets the reset first is the one that reports it.
    let tried = data::dial(&node.ip(from), &format!("{}:{HTTPS}", node.ip(21))).and_then(|mut tcp| {
        tcp.write_all(&[0x16])?;
        tcp.read(&mut [0; 8])
    });
    tried.is_err_and(|error| {
        matches!(error.kind(), std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe)
    })
}

// covers: C9a
#[test]
fn one_source_holds_a_quarter_of_the_handshakes_and_nobody_else_is_kept_out() {
    // T29
    let node = Node::with(limited("{max_handshakes: 8}"));
    let x = node.svid("x");
    let held = [silent(&node, 99), silent(&node, 99)];
    until("both are counted", || node.open("service-a") == 2);
    assert!(is_refused(&node, 99), "one more than its share");
    let line = node.audited_once(|line| is(line, &[("reason", "limit_connections")]));
    assert!(is(&line, &[("kind", "connection"), ("verdict", "deny"), ("detail", "handshakes_of_source")]), "{line}");
    // Another source is served, and so is the same one at another endpoint.
    let at = |from: u8, to: u8| Tls::connect(&node.ip(from), &format!("{}:{HTTPS}", node.ip(to)), Some(&x));
    assert_eq!(at(98, 21).expect("another source").ask(ORDER).status, 200);
    drop(at(99, 31).expect("another endpoint"));
    drop(held);
    until("the places are free again", || node.open("service-a") == 0);
    assert_eq!(at(99, 21).expect("its share is free").ask(ORDER).status, 200);
    assert_eq!(node.guest(A).app.seen().len(), 2);
    assert!(node.guest(B).app.seen().is_empty());
}

// covers: C9a
#[test]
fn all_places_can_be_taken_by_four_sources_and_then_nobody_gets_one() {
    let node = Node::with(limited("{max_handshakes: 8}"));
    let held: Vec<_> =
        [96, 97, 98, 99].into_iter().flat_map(|from| [silent(&node, from), silent(&node, from)]).collect();
    until("all are counted", || node.open("service-a") == 8);
    assert!(is_refused(&node, 100));
    let line = node.audited_once(|line| is(line, &[("reason", "limit_connections")]));
    assert!(is(&line, &[("detail", "handshakes")]), "{line}");
    drop(held);
}
