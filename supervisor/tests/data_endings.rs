//! What the log says of how things ended.

mod data;

use std::io::{Read, Write};
use std::net::TcpListener;

use data::{A, HTTPS, Node, Plan, Upstream, X, is, read_answer, read_head, read_request, until};

// covers: C11f
#[test]
fn an_answer_that_breaks_http_in_its_body_is_the_servers_fault_and_no_closed_connection() {
    let node = Node::start();
    node.guest(A).serve(|mut link, _| {
        let _ = read_request(&mut link);
        link.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
        // The caller has the first part by then or not: the log is the same.
        link.send("+5\r\nworld\r\n0\r\n\r\n");
        let _ = link.rest();
    });
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    tls.send("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n");
    let _ = tls.read_to_end(&mut Vec::new());
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("direction", "ingress")]));
    assert!(is(&line, &[("verdict", "error"), ("reason", "upstream_malformed")]), "{line}");
    assert!(line["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{line}");
}

// covers: C11f
#[test]
fn an_answer_that_is_cut_in_its_body_is_a_closed_connection() {
    let node = Node::start();
    node.guest(A).serve(|mut link, _| {
        let _ = read_request(&mut link);
        link.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
    });
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    tls.send("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n");
    let _ = tls.read_to_end(&mut Vec::new());
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("direction", "ingress")]));
    assert!(is(&line, &[("verdict", "error"), ("reason", "upstream_closed"), ("close", "upstream_closed")]), "{line}");
}

// covers: C11f
#[test]
fn the_line_of_a_guests_connection_says_how_it_ended() {
    let node = Node::start();
    let _plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    let closes = |how: &'static str| {
        move |line: &serde_json::Value| is(line, &[("kind", "connection"), ("direction", "egress"), ("close", how)])
    };
    let mut polite = node.proxy(X);
    polite.send("GET http://plain.test:8080/ HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(read_answer(&mut polite).expect("an answer").status, 200);
    polite.finish();
    node.audited_once(closes("done"));
    drop(polite);

    let server = TcpListener::bind(format!("{}:5432", node.ip(80))).expect("bound");
    let mut tunnel = node.proxy(X);
    tunnel.send("CONNECT tcp.test:5432 HTTP/1.1\r\nHost: tcp.test\r\n\r\n");
    read_head(&mut tunnel).expect("connected");
    tunnel.send("hello");
    let (mut peer, _) = server.accept().expect("a caller");
    peer.read_exact(&mut [0; 5]).expect("the app's word");
    socket2::SockRef::from(&peer).set_linger(Some(std::time::Duration::ZERO)).expect("set");
    drop(peer);
    node.audited_once(closes("reset"));
    drop(tunnel);

    let mut stream = node.proxy(X);
    stream.send([5, 2]);
    stream.write_all(&[9; 3]).expect("sent");
    node.audited_once(closes("malformed"));
    until("nothing is left open", || node.open("x") == 0);
}

// covers: C11c
#[test]
fn a_tunnel_in_which_nobody_speaks_is_closed() {
    let plan = Plan::default();
    let token = "boot_token: 00000000000000000000000000000011";
    let limits = format!("{token}\n    limits: {{stream_idle_timeout_ms: 400, bytes_per_second: 100000}}");
    let node = Node::with(Plan { endpoints: plan.endpoints.replace(token, &limits), ..plan });
    let server = TcpListener::bind(format!("{}:5432", node.ip(80))).expect("bound");
    let mut tunnel = node.proxy(X);
    tunnel.send("CONNECT tcp.test:5432 HTTP/1.1\r\nHost: tcp.test\r\n\r\n");
    read_head(&mut tunnel).expect("connected");
    let (mut peer, _) = server.accept().expect("a caller");
    // A server that speaks first is slowed like any other: 100,000 at once, and 150,000 in a second and a half.
    let began = std::time::Instant::now();
    peer.write_all(&[7; 250_000]).expect("sent");
    let mut all = vec![0; 250_000];
    tunnel.read_exact(&mut all).expect("slowed, not cut");
    assert!(began.elapsed() >= std::time::Duration::from_millis(1_490), "{:?}", began.elapsed());
    assert!(tunnel.is_closed(), "silent for too long");
    let close = node.audited_once(|line| is(line, &[("kind", "close"), ("direction", "egress")]));
    assert!(is(&close, &[("close", "idle_timeout")]) && close["bytes_out"] == 250_000, "{close}");
}

// covers: C11j
#[test]
fn a_request_is_recorded_with_the_port_that_was_called_whatever_it_names() {
    let node = Node::start();
    let x = node.svid("x");
    let mut tls = node.call(Some(&x), HTTPS).expect("connected");
    for (at, host) in ["service-a.t.nova", "service-a.t.nova:8443", "service-a.t.nova:9"].into_iter().enumerate() {
        assert_eq!(tls.ask(format!("GET /v1/orders/{at} HTTP/1.1\r\nHost: {host}\r\n\r\n")).status, 200, "{host}");
    }
    let mut h2 = node.call_h2(&x, HTTPS);
    assert_eq!(h2.ask(1, "GET", "/v1/orders/3").status(), 200);
    let lines = node.audited(4, |line| is(line, &[("kind", "request"), ("direction", "ingress")]));
    for line in lines {
        assert!(is(&line, &[("dest_host", "service-a.t.nova")]) && line["dest_port"] == HTTPS, "{line}");
    }
}
