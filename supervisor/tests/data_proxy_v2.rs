//! PROXY v2 in front of the bytes of a raw port, judged by what the app's side of the link received.

mod data;

use std::io::{Read, Write};
use std::net::SocketAddr;

use data::{A, Node, Plan, RAW, Tls, is, until};
use nova_supervisor::identity::Issued;

/// mTLS around bytes.
const WRAPPED: u16 = 7443;

fn plan(half_close: bool) -> Plan {
    let plan = Plan { half_close, ..Plan::default() };
    let with_header = "mode: tcp, protocol: tcp, proxy_protocol_v2: true}";
    let endpoints = plan
        .endpoints
        .replace("mode: tcp, protocol: tcp}", with_header)
        .replace("mode: mtls, protocol: tcp}", "mode: mtls, protocol: tcp, proxy_protocol_v2: true}");
    Plan { endpoints, ..plan }
}

/// An app that answers with all that it received, from the first byte to the end of the caller's side.
fn mirror(node: &Node) {
    node.guest(A).serve(|mut link, _| {
        let Ok(all) = link.rest() else { return };
        link.send(all);
        link.finish();
    });
}

fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(u16::try_from(value.len()).expect("short").to_be_bytes());
    bytes.extend(value);
    bytes
}

fn header(from: SocketAddr, to: SocketAddr, tlvs: &[u8]) -> Vec<u8> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else { unreachable!("the node has IPv4 only") };
    let mut body = [from.ip().octets(), to.ip().octets()].concat();
    body.extend([from.port().to_be_bytes(), to.port().to_be_bytes()].concat());
    body.extend(tlvs);
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11".to_vec();
    header.extend(u16::try_from(body.len()).expect("short").to_be_bytes());
    header.extend(body);
    header
}

fn what_an_mtls_caller_sends(x: &Issued) -> Vec<u8> {
    let mut ssl = vec![7, 0, 0, 0, 0];
    ssl.extend(tlv(0x21, b"TLS 1.3"));
    ssl.extend(tlv(0x28, &x.chain[0]));
    [tlv(0x02, b"service-a.t.nova"), tlv(0x20, &ssl), tlv(0xE7, b"spiffe://dev.invalid/t/t/w/x")].concat()
}

// covers: C7a
#[test]
fn a_plain_caller_is_told_by_its_addresses_alone_and_the_header_is_no_payload() {
    for half_close in [true, false] {
        let node = Node::with(plan(half_close));
        mirror(&node);
        let mut caller = data::dial(&node.ip(99), &format!("{}:{RAW}", node.ip(21))).expect("connected");
        let wanted = header(caller.local_addr().expect("bound"), caller.peer_addr().expect("connected"), &[]);
        caller.write_all(b"hello").expect("sent");
        caller.shutdown(std::net::Shutdown::Write).expect("ended");
        let mut seen = Vec::new();
        caller.read_to_end(&mut seen).expect("the app's answer");
        assert_eq!(seen, [&wanted[..], b"hello"].concat());
        let close = node.audited_once(|line| is(line, &[("kind", "close"), ("direction", "ingress")]));
        assert!(close["bytes_in"] == 5 && close["bytes_out"] == seen.len(), "{close}");
    }
}

// covers: C7a
#[test]
fn a_caller_with_a_certificate_is_told_by_it_and_by_its_spiffe_id() {
    let node = Node::with(plan(false));
    mirror(&node);
    let x = node.svid("x");
    let mut caller = node.call(Some(&x), WRAPPED).expect("connected");
    // A header that the caller makes up is payload behind ours.
    let forged = header(([6, 6, 6, 6], 6).into(), ([10, 0, 0, 1], 443).into(), &tlv(0xE7, b"spiffe://evil"));
    caller.send(&forged);
    caller.close_notify();
    let mut seen = Vec::new();
    let _ = caller.read_to_end(&mut seen);
    let (from, to) = (caller.tcp().local_addr().expect("bound"), caller.tcp().peer_addr().expect("connected"));
    let wanted = header(from, to, &what_an_mtls_caller_sends(&x));
    assert_eq!(hex::encode(&seen), hex::encode([wanted, forged].concat()));
}

// covers: C7d
#[test]
fn a_caller_that_tls_alone_wraps_is_told_by_its_addresses_and_what_was_agreed_on_and_has_no_identity() {
    for half_close in [true, false] {
        let plan = plan(half_close);
        let port =
            "      - {name: edge, port: 7444, target_port: 15432, mode: tls, protocol: tcp, proxy_protocol_v2: true}\n";
        let raw = "      - {name: raw,";
        let rule = "  - {id: edge, tenant: t, from: {cidr: NET.96/28}, to: {workload: service-a, port: edge}}\n";
        let node = Node::with(Plan {
            endpoints: plan.endpoints.replacen(raw, &format!("{port}{raw}"), 1),
            rules: format!("{}{rule}", plan.rules),
            ..plan
        });
        mirror(&node);
        let mut ssl = vec![1, 0, 0, 0, 0];
        ssl.extend(tlv(0x21, b"TLS 1.3"));
        // A certificate that nobody asked for is not sent, so it is not told of either.
        for who in [None, Some(node.svid("x"))] {
            let mut caller = node.call(who.as_ref(), 7444).expect("connected");
            caller.send("hello");
            caller.close_notify();
            let mut seen = Vec::new();
            let _ = caller.read_to_end(&mut seen);
            let (from, to) = (caller.tcp().local_addr().expect("bound"), caller.tcp().peer_addr().expect("connected"));
            let wanted = header(from, to, &[tlv(0x02, b"service-a.t.nova"), tlv(0x20, &ssl)].concat());
            assert_eq!(hex::encode(&seen), hex::encode([&wanted[..], b"hello"].concat()));
        }
    }
}

// covers: C7a
#[test]
fn an_app_that_speaks_first_has_the_header_before_the_caller_said_anything() {
    let node = Node::with(plan(true));
    node.guest(A).serve(|mut link, app| {
        let mut head = [0; 28];
        if link.read_exact(&mut head).is_ok() {
            app.saw(&hex::encode(head));
            link.send("220 ready\r\n");
        }
        let _ = link.rest();
    });
    let mut caller = data::dial(&node.ip(99), &format!("{}:{RAW}", node.ip(21))).expect("connected");
    let mut greeting = [0; 11];
    caller.read_exact(&mut greeting).expect("the app's greeting");
    assert_eq!(&greeting, b"220 ready\r\n");
    until("the app saw it", || node.guest(A).app.seen().len() == 1);
    let wanted = header(caller.local_addr().expect("bound"), caller.peer_addr().expect("connected"), &[]);
    assert_eq!(node.guest(A).app.seen(), [hex::encode(wanted)]);
}

// covers: C7a
#[test]
fn a_port_that_does_not_ask_for_it_gets_no_header() {
    let node = Node::start();
    mirror(&node);
    let mut caller = data::dial(&node.ip(99), &format!("{}:{RAW}", node.ip(21))).expect("connected");
    caller.write_all(b"hello").expect("sent");
    caller.shutdown(std::net::Shutdown::Write).expect("ended");
    let mut seen = Vec::new();
    caller.read_to_end(&mut seen).expect("the app's answer");
    assert_eq!(seen, b"hello");
    drop(Tls::connect(&node.ip(99), &format!("{}:{WRAPPED}", node.ip(21)), Some(&node.svid("x"))).expect("connected"));
}
