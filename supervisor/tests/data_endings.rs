//! What the log says of how things ended.

mod data;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::time::Duration;

use data::h2::{CANCEL, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PROTOCOL_ERROR, RST_STREAM, frame, head};
use data::{A, HTTPS, Node, Plan, RULES, Upstream, X, is, read_answer, read_head, read_request, until};
use socket2::SockRef;

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

/// Each test's app takes requests and never answers them.
fn silent_app(node: &Node) {
    node.guest(A).serve(|mut link, app| {
        while let Ok(head) = read_head(&mut link) {
            app.saw(&head);
        }
    });
}

fn ends_with(node: &Node, path: &str, close: &str) {
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("path", path)]));
    assert!(is(&line, &[("close", close), ("verdict", "allow")]), "{line}");
}

// covers: C11i
#[test]
fn a_call_that_is_cut_before_its_answer_says_what_cut_it() {
    let node = Node::start();
    silent_app(&node);
    let x = node.svid("x");
    let waits = |count: usize| until("the app has it", || node.guest(A).app.seen().len() == count);
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    // The caller goes away.
    let mut gone = node.call(Some(&x), HTTPS).expect("connected");
    gone.send(get("/v1/orders/gone"));
    let mut h2_gone = node.call_h2(&x, HTTPS);
    h2_gone.request(1, "GET", "/v1/orders/h2-gone");
    let mut h2_reset = node.call_h2(&x, HTTPS);
    h2_reset.request(1, "GET", "/v1/orders/h2-reset");
    waits(3);
    h2_reset.reset(1, data::h2::CANCEL);
    drop((gone, h2_gone));
    for path in ["gone", "h2-gone", "h2-reset"] {
        ends_with(&node, &format!("/v1/orders/{path}"), "aborted");
    }
    // The policy takes the call away.
    let mut revoked = node.call(Some(&x), HTTPS).expect("connected");
    revoked.send(get("/v1/orders/revoked"));
    let mut h2_revoked = node.call_h2(&x, HTTPS);
    h2_revoked.request(1, "GET", "/v1/orders/h2-revoked");
    waits(5);
    node.publish(&RULES.replace("'/v1/orders/**'", "'/v1/orders/drained', '/v1/orders/h2-drained'"));
    ends_with(&node, "/v1/orders/revoked", "policy_revoked");
    ends_with(&node, "/v1/orders/h2-revoked", "policy_revoked");
    // The endpoint does not wait for it any longer.
    let mut drained = node.call(Some(&x), HTTPS).expect("connected");
    drained.send(get("/v1/orders/drained"));
    let mut h2_drained = node.call_h2(&x, HTTPS);
    h2_drained.request(1, "GET", "/v1/orders/h2-drained");
    waits(7);
    node.edit_endpoint("service-a", "drain_timeout_ms: 8000", "drain_timeout_ms: 500");
    node.edit_endpoint("service-a", "state: ready", "state: draining");
    ends_with(&node, "/v1/orders/drained", "draining");
    ends_with(&node, "/v1/orders/h2-drained", "draining");
}

// covers: C11f
#[test]
fn a_caller_that_leaves_in_the_middle_of_its_upload_is_no_fault_of_the_app() {
    let node = Node::start();
    node.guest(A).serve(|mut link, app| {
        app.saw(&read_head(&mut link).expect("a head"));
        let _ = link.rest();
    });
    let framings = ["Content-Length: 100\r\n\r\nx", "Transfer-Encoding: chunked\r\n\r\n5\r\nab"];
    for (n, framing) in framings.iter().enumerate() {
        for how in ["close", "reset", "fin"] {
            let path = format!("/v1/orders/{how}{n}");
            let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
            tls.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\n{framing}"));
            until("the app has the head", || node.guest(A).app.seen().iter().any(|head| head.contains(&path)));
            match how {
                "reset" => SockRef::from(tls.tcp()).set_linger(Some(Duration::ZERO)).expect("set"),
                "fin" => {
                    tls.tcp().shutdown(Shutdown::Write).expect("shut");
                    assert!(tls.answer().is_err(), "an answer to half a request");
                }
                _ => {}
            }
            drop(tls);
            let line = node.audited_once(|line| is(line, &[("kind", "request"), ("path", &path)]));
            assert!(is(&line, &[("verdict", "allow"), ("reason", "rule"), ("close", "aborted")]), "{line}");
            assert!(line["status"].is_null(), "nobody got one: {line}");
        }
    }
}

// covers: C11f
#[test]
fn a_stream_that_is_cut_at_once_is_told_from_one_that_is_malformed() {
    let node = Node::start();
    let get = |path: &str| frame(HEADERS, END_HEADERS | END_STREAM, 1, &data::hpack_of(&head("GET", path)));
    let reset = frame(RST_STREAM, 0, 1, &CANCEL.to_be_bytes());
    // A fault of the whole connection: a PING is of eight bytes.
    let fault = frame(PING, 0, 0, &[0; 7]);
    for (path, end) in [("/v1/orders/reset", reset), ("/v1/orders/fault", fault)] {
        let mut h2 = node.call_h2(&node.svid("x"), HTTPS);
        h2.bytes(&[get(path), end].concat());
        let line = node.audited_once(|line| is(line, &[("kind", "request"), ("path", path)]));
        assert!(is(&line, &[("verdict", "allow"), ("reason", "rule"), ("close", "aborted")]), "{line}");
        assert!(line["status"].is_null(), "nobody got one: {line}");
    }
}

// covers: C11f
#[test]
fn a_stream_that_is_refused_before_it_is_a_request_is_recorded_as_well() {
    let node = Node::start();
    let with = |more: &[(&'static str, &'static str)]| [&head("POST", "/v1/orders/1"), more].concat();
    let extended =
        [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "https"), (":authority", "a"), (":path", "/")];
    let faults = [
        with(&[("connection", "close")]),
        with(&[("transfer-encoding", "chunked")]),
        with(&[("x", "y"), (":path", "/v1/orders/2")]),
        with(&[("content-length", "5")]),
        extended.to_vec(),
    ];
    let mut h2 = node.call_h2(&node.svid("x"), HTTPS);
    let mut stream = 1;
    for fields in &faults {
        h2.headers(stream, fields, true);
        assert_eq!(h2.reply(stream).reset, Some(PROTOCOL_ERROR), "{fields:?}");
        stream += 2;
    }
    assert_eq!(h2.ask(stream, "GET", "/v1/orders/1").status(), 200);
    let malformed = [("kind", "request"), ("verdict", "deny"), ("reason", "malformed"), ("detail", "h2_stream_error")];
    let lines = node.audited(faults.len(), |line| is(line, &malformed));
    assert!(lines.iter().all(|line| line["peer"].as_str().is_some_and(|peer| peer.ends_with("/x"))), "{lines:?}");
    drop(h2);
    node.audited_once(|line| is(line, &[("kind", "connection"), ("direction", "ingress")]));
    node.audited(faults.len() + 1, |line| is(line, &[("kind", "request"), ("direction", "ingress")]));
}

// covers: C11f
#[test]
fn a_stream_of_another_length_than_announced_is_its_callers_fault() {
    let node = Node::start();
    silent_app(&node);
    let mut h2 = node.call_h2(&node.svid("x"), HTTPS);
    let post = |path| [&head("POST", path)[..], &[("content-length", "5")]].concat();
    let headers = frame(HEADERS, END_HEADERS, 1, &data::hpack_of(&post("/v1/orders/at-once")));
    h2.bytes(&[headers, frame(DATA, END_STREAM, 1, b"hello and more")].concat());
    assert_eq!(h2.reply(1).reset, Some(PROTOCOL_ERROR));
    h2.headers(3, &post("/v1/orders/later"), false);
    until("the app has it", || node.guest(A).app.seen().iter().any(|head| head.contains("/later ")));
    h2.data(3, b"hel", true);
    assert_eq!(h2.reply(3).reset, Some(PROTOCOL_ERROR));
    ends_with(&node, "/v1/orders/at-once", "malformed");
    ends_with(&node, "/v1/orders/later", "malformed");
}

/// As often as it takes to hit the moment in which a connection ends: each try has its line, whether it was served or not.
const TRIES: usize = 25;

fn lines_of_each(node: &Node, direction: &str) {
    node.audited(TRIES, |line| is(line, &[("kind", "connection"), ("direction", direction)]));
    let lines = node.audited(TRIES, |line| is(line, &[("kind", "request"), ("direction", direction)]));
    let (unserved, served): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line["detail"] == "unserved");
    assert!(unserved.iter().all(|line| is(line, &[("verdict", "deny"), ("reason", "aborted")])), "{unserved:#?}");
    assert!(served.iter().all(|line| is(line, &[("rule", "x-to-a")])), "{served:#?}");
}

// covers: C11f
#[test]
fn a_request_of_http_1_whose_connection_ends_at_once_has_its_line() {
    let node = Node::start();
    let x = node.svid("x");
    for _ in 0..TRIES {
        let mut tls = node.call(Some(&x), HTTPS).expect("connected");
        tls.send("GET /v1/orders/1 HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n");
        tls.tcp().shutdown(Shutdown::Write).expect("shut");
        let _ = tls.read_to_end(&mut Vec::new());
    }
    lines_of_each(&node, "ingress");
}

// covers: C11f
#[test]
fn a_request_of_http_2_whose_connection_ends_at_once_has_its_line() {
    let node = Node::start();
    let x = node.svid("x");
    for _ in 0..TRIES {
        let mut h2 = node.call_h2(&x, HTTPS);
        h2.request(1, "GET", "/v1/orders/1");
        h2.io.tcp().shutdown(Shutdown::Write).expect("shut");
        while h2.frame().is_ok() {}
    }
    lines_of_each(&node, "ingress");
}

// covers: C11f
#[test]
fn a_call_of_a_guest_whose_connection_ends_at_once_has_its_line() {
    let node = Node::start();
    let a = format!("http://service-a.t.nova:{HTTPS}/v1/orders/1");
    for _ in 0..TRIES {
        let mut link = node.proxy(X);
        link.send(format!("GET {a} HTTP/1.1\r\nHost: service-a.t.nova:{HTTPS}\r\n\r\n"));
        link.finish();
        let _ = link.rest();
    }
    lines_of_each(&node, "egress");
}

// covers: C11f
#[test]
fn a_head_that_the_library_refuses_or_cannot_read_has_its_line() {
    let node = Node::start();
    let x = node.svid("x");
    let big = "x".repeat(8000);
    let mut h2 = node.call_h2(&x, HTTPS);
    let fields: Vec<_> = head("GET", "/v1/orders/1").into_iter().chain((0..9).map(|_| ("x", big.as_str()))).collect();
    let block = data::hpack_of(&fields);
    let (first, rest) = block.split_at(16_000);
    h2.send(HEADERS, END_STREAM, 1, first);
    let mut rest = rest.chunks(16_000).peekable();
    while let Some(piece) = rest.next() {
        h2.send(data::h2::CONTINUATION, if rest.peek().is_none() { END_HEADERS } else { 0 }, 1, piece);
    }
    assert_eq!(h2.reply(1).status(), 431);
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("direction", "ingress")]));
    assert!(is(&line, &[("reason", "malformed"), ("detail", "head_too_large")]) && line["status"] == 431, "{line}");
    // A name of HTTP/2's own that there is not: to h2 that is a fault of the whole connection.
    h2.headers(3, &[&head("GET", "/v1/orders/1")[..], &[(":nonsense", "x")]].concat(), true);
    assert!(h2.goaway().is_some());
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("detail", "unserved")]));
    assert!(is(&line, &[("verdict", "deny"), ("reason", "aborted"), ("close", "malformed")]), "{line}");
    let connection = [("kind", "connection"), ("direction", "ingress"), ("reason", "malformed")];
    node.audited_once(|line| is(line, &connection) && line["detail"].as_str().is_some_and(|it| it.starts_with("h2_")));
}
