//! SOCKS5 (RFC 1928), byte for byte.

use std::io::{Read, Write};

use crate::data::{Link, Node, Upstream, X, is};
use crate::ways::{named, socks_request};

const OK: u8 = 0;
const FAILED: u8 = 1;
const DENIED: u8 = 2;
const REFUSED: u8 = 5;
const NO_COMMAND: u8 = 7;
const NO_ADDRESS: u8 = 8;

fn code(node: &Node, command: u8, kind: u8, address: &[u8], port: u16) -> u8 {
    let mut link = node.proxy(X);
    let reply = socks_request(&mut link, command, kind, address, port);
    assert_eq!((reply[0], &reply[2..]), (5, &[0, 1, 0, 0, 0, 0, 0, 0][..]), "F-SO02: {reply:?}");
    if reply[1] != OK {
        assert_eq!(link.rest().expect("an end in good order"), b"");
    }
    reply[1]
}

// covers: D1d
#[test]
fn each_kind_of_refusal_has_its_code_and_ten_bytes() {
    let node = Node::start();
    assert_eq!(code(&node, 1, 3, &named("evil.test"), 443), DENIED);
    assert_eq!(code(&node, 1, 3, &named("tcp.test"), 5432), REFUSED, "granted, and nobody listens");
    assert_eq!(code(&node, 2, 1, &[1, 1, 1, 1], 443), NO_COMMAND);
    assert_eq!(code(&node, 3, 3, &named("tcp.test"), 5432), NO_COMMAND);
    assert_eq!(code(&node, 1, 3, &named("tcp.test"), 0), FAILED);
    let mut link = node.proxy(X);
    link.send([5, 1, 0]);
    link.read_exact(&mut [0; 2]).expect("a choice");
    link.send([5, 1, 0, 5]);
    let mut reply = [0; 10];
    link.read_exact(&mut reply).expect("a reply");
    assert_eq!(reply, [5, NO_ADDRESS, 0, 1, 0, 0, 0, 0, 0, 0]);
    // Another node: a dial that failed just now is not tried again.
    let node = Node::start();
    let _upstream = Upstream::start(&format!("{}:5432", node.ip(80)), |_| {});
    assert_eq!(code(&node, 1, 3, &named("TCP.test"), 5432), OK);
}

// covers: D1d
#[test]
fn addresses_are_addresses_in_whatever_form_they_come() {
    let node = Node::start();
    let v6: std::net::Ipv6Addr = "2a00:1450:4007:816::200e".parse().expect("an address");
    for (kind, address) in [
        (1, vec![127, 0, 0, 1]),
        (4, v6.octets().to_vec()),
        (3, named("2a00:1450:4007:816::200e")),
        (3, named("127.0.0.1")),
        (3, named("10.0.0.1")),
    ] {
        assert_eq!(code(&node, 1, kind, &address, 443), DENIED, "F-SO01: {address:?}");
    }
    // F-SO04: no name is looked for behind an address.
    let lines = node.audited(5, |line| is(line, &[("kind", "request"), ("reason", "no_grant")]));
    assert!(lines.iter().all(|line| line["detail"] == "ip_target_no_cidr_rule"), "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line["dest_host"] == "2a00:1450:4007:816::200e").count(), 2, "{lines:#?}");
}

// covers: D1d
#[test]
fn names_that_are_none_fail_and_stand_escaped_in_the_log() {
    let node = Node::start();
    let long = "a".repeat(255);
    for name in [
        "",
        long.as_str(),
        "a b.test",
        "a%20.test",
        "a\r\nb.test",
        "a\0b.test",
        "0x7f.1",
        "tcp.test:5432",
        "[tcp.test]",
    ] {
        assert_eq!(code(&node, 1, 3, &named(name), 5432), FAILED, "F-SO03: {name:?}");
    }
    node.audited(9, |line| is(line, &[("kind", "request"), ("reason", "bad_destination")]));
}

// covers: D1d
#[test]
fn only_no_authentication_is_spoken_and_what_else_is_offered_is_nobodys_identity() {
    let node = Node::start();
    let mut link = node.proxy(X);
    link.send([5, 1, 2]);
    let mut chosen = [0; 2];
    link.read_exact(&mut chosen).expect("a choice");
    assert_eq!(chosen, [5, 0xff]);
    assert_eq!(link.rest().expect("an end in good order"), b"");
    let mut link = node.proxy(X);
    link.send([5, 3, 2, 1, 0]);
    link.read_exact(&mut chosen).expect("a choice");
    assert_eq!(chosen, [5, 0]);
}

// covers: D1c
#[test]
fn bytes_behind_the_request_and_greetings_in_pieces_are_taken_in_order() {
    let node = Node::start();
    let _upstream = Upstream::start(&format!("{}:5432", node.ip(80)), |mut stream| {
        let mut got = [0; 5];
        if stream.read_exact(&mut got).is_ok() {
            let _ = stream.write_all(&got);
        }
    });
    let mut request = vec![5, 1, 0, 5, 1, 0, 3];
    request.extend(named("tcp.test"));
    request.extend(5432_u16.to_be_bytes());
    request.extend(b"early");
    let one_by_one = |link: &mut Link| request.iter().for_each(|byte| link.send([*byte]));
    let at_once = |link: &mut Link| link.send(&request);
    for send in [&one_by_one as &dyn Fn(&mut Link), &at_once] {
        let mut link = node.proxy(X);
        send(&mut link);
        let mut reply = [0; 17];
        link.read_exact(&mut reply).expect("both replies and the echo");
        assert_eq!(reply[..4], [5, 0, 5, 0]);
        assert_eq!(&reply[12..], b"early");
    }
}
