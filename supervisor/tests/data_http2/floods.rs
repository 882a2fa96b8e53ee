//! Callers that cost more than they pay: each is ended with the code that says so or bounded, what it made the supervisor and
//! the app do is counted, and another endpoint is served meanwhile.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::data::h2::{
    CANCEL, CONTINUATION, DATA, END_HEADERS, ENHANCE_YOUR_CALM, Event, H2, HEADERS, PING, PREFACE, PRIORITY,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, head,
};
use crate::data::{self, A, Node, Plan, Tls, is, until};
use crate::support::{self, plain};

const REFUSED_STREAM: u32 = 7;

/// With a rule for another endpoint, which is served meanwhile.
fn plan() -> Plan {
    let plan = support::plan();
    let rule = "  - id: x-to-b
    tenant: t
    from: {workload: x}
    to: {workload: b, port: https}
    http: {methods: [GET], paths: ['/**']}
";
    Plan { rules: format!("{}{rule}", plan.rules), ..plan }
}

fn connect(node: &Node) -> H2<TcpStream> {
    H2::client(plain(node))
}

/// Another workload of the node answers a caller.
fn the_other_endpoint_serves(node: &Node) {
    let to = format!("{}:8443", node.ip(31));
    let mut tls = Tls::connect(&node.ip(99), &to, Some(&node.svid("x"))).expect("connected");
    assert_eq!(tls.ask("GET / HTTP/1.1\r\nHost: b.t.nova\r\n\r\n").status, 200);
}

fn resident(node: &Node) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", node.pid)).expect("it runs");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * 4096
}

/// Sends `bytes` `times` or until the other side takes no more.
fn flood(h2: &mut H2<TcpStream>, bytes: &[u8], times: usize) {
    let batch = bytes.repeat(64.min(times));
    for _ in 0..times.div_ceil(64) {
        if h2.try_bytes(&batch).is_err() {
            return;
        }
    }
}

fn ended_calmly(node: &Node, mut h2: H2<TcpStream>, details: &[&str]) {
    assert_eq!(h2.goaway(), Some(ENHANCE_YOUR_CALM), "{details:?}");
    drop(h2);
    let line = node.audited_once(|line| is(line, &[("kind", "connection"), ("dest_host", "plain")]));
    let detail = line["detail"].as_str().unwrap_or_default();
    assert!(details.contains(&detail) && is(&line, &[("verdict", "deny"), ("reason", "malformed")]), "{line}");
    the_other_endpoint_serves(node);
    until("nothing is left open", || node.open("service-a") == 0);
}

// covers: C9h
#[test]
fn floods_of_frames_that_carry_nothing_are_ended() {
    let floods = [
        (frame(SETTINGS, 0, 0, &[]), "settings_flood"),
        (frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255]), "settings_flood"),
        (frame(PING, 0, 0, &[0; 8]), "control_flood"),
        (frame(PING, 1, 0, &[0; 8]), "control_flood"),
        (frame(PRIORITY, 0, 7, &[0, 0, 0, 0, 9]), "control_flood"),
        (frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]), "control_flood"),
        (frame(0xee, 0, 0, &[]), "control_flood"),
    ];
    for (bytes, detail) in floods {
        let node = Node::with(plan());
        let mut h2 = connect(&node);
        flood(&mut h2, &bytes, 20_000);
        ended_calmly(&node, h2, &[detail]);
        assert_eq!(node.guest(A).app.seen(), [""; 0]);
    }
}

// covers: C9h (F-LB04)
#[test]
fn a_body_of_empty_pieces_is_ended() {
    let node = Node::with(plan());
    let mut h2 = connect(&node);
    h2.headers(1, &head("POST", "/v1/orders/1"), false);
    let before = resident(&node);
    flood(&mut h2, &frame(DATA, 0, 1, &[]), 1_000_000);
    ended_calmly(&node, h2, &["control_flood", "h2_flood"]);
    assert!(resident(&node) < before + (8 << 20), "{before} {}", resident(&node));
    assert_eq!(node.guest(A).app.seen(), [""; 0], "no whole request");
}

// covers: C9i (F-LB03)
#[test]
fn streams_that_are_opened_and_reset_at_once_are_ended() {
    let node = Node::with(plan());
    let mut h2 = connect(&node);
    let mut stream = 1;
    while stream < 20_000 {
        let mut batch = Vec::new();
        for _ in 0..50 {
            batch.extend(frame(HEADERS, END_HEADERS | 1, stream, &data::hpack_of(&head("GET", "/v1/orders/1"))));
            batch.extend(frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()));
            stream += 2;
        }
        if h2.try_bytes(&batch).is_err() {
            break;
        }
    }
    ended_calmly(&node, h2, &["h2_flood", "reset_flood"]);
    let decided = node.audit().iter().filter(|line| line["kind"] == "request").count();
    assert!(decided < 1000, "{decided} decisions");
    assert!(node.guest(A).app.seen().len() < 1000);
}

// covers: C9i (F-LB03)
#[test]
fn resets_of_a_stream_that_is_reset_already_are_ended_too() {
    let node = Node::with(plan());
    let mut h2 = connect(&node);
    h2.headers(1, &head("POST", "/v1/orders/1"), false);
    flood(&mut h2, &frame(RST_STREAM, 0, 1, &CANCEL.to_be_bytes()), 20_000);
    ended_calmly(&node, h2, &["h2_flood", "control_flood", "reset_flood"]);
    let decided = node.audit().iter().filter(|line| line["kind"] == "request").count();
    assert!(decided <= 1, "{decided} decisions");
}

// covers: C9i
#[test]
fn streams_that_are_reset_once_the_app_has_them_are_ended_as_well() {
    let node = Node::with(plan());
    // The app takes requests and answers none.
    node.guest(A).serve(|mut link, app| {
        if let Ok(request) = data::read_request(&mut link) {
            app.saw(&request);
            let _ = link.read(&mut [0; 16]);
        }
    });
    let mut h2 = connect(&node);
    let mut sent = 0_usize;
    for n in 0..2000 {
        let stream = 1 + 2 * n;
        let request = frame(HEADERS, END_HEADERS | 1, stream, &data::hpack_of(&head("GET", "/v1/orders/1")));
        if h2.try_bytes(&request).is_err() {
            break;
        }
        sent += 1;
        let wanted = sent;
        let deadline = std::time::Instant::now() + Duration::from_secs(2);
        while node.guest(A).app.seen().len() < wanted && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        if h2.try_bytes(&frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())).is_err() {
            break;
        }
        if node.guest(A).app.seen().len() < wanted {
            break;
        }
    }
    assert!((200..1500).contains(&sent), "{sent} streams");
    ended_calmly(&node, h2, &["reset_flood"]);
}

// covers: C9h (F-LB02)
#[test]
fn a_head_without_end_is_ended_and_takes_no_memory() {
    let node = Node::with(plan());
    let mut h2 = connect(&node);
    let before = resident(&node);
    let mut block = data::hpack_of(&head("GET", "/v1/orders/1"));
    h2.send(HEADERS, 1, 1, &std::mem::take(&mut block));
    let piece = frame(CONTINUATION, 0, 1, &data::hpack_of(&[("x", &"y".repeat(16_000))]));
    flood(&mut h2, &piece, 10_000);
    assert!(h2.goaway().is_some_and(|code| code != 0));
    drop(h2);
    assert!(resident(&node) < before + (8 << 20), "{before} {}", resident(&node));
    let line = node.audited_once(|line| is(line, &[("kind", "connection"), ("dest_host", "plain")]));
    assert!(is(&line, &[("verdict", "deny"), ("reason", "malformed")]), "{line}");
    assert_eq!(node.guest(A).app.seen(), [""; 0]);
    the_other_endpoint_serves(&node);
}

// covers: C9h
#[test]
fn fields_that_grow_when_they_are_read_are_refused() {
    let node = Node::with(plan());
    let mut h2 = connect(&node);
    let before = resident(&node);
    // One field of 4000 bytes that the reader is to remember, then as many times as fits: one byte each.
    let mut block = data::hpack_of(&head("GET", "/v1/orders/1"));
    block.extend([0x40, 1, b'x', 0x7f, 0xa1, 0x1e]);
    block.extend([b'y'; 4000]);
    block.extend([0xbe; 8000]);
    h2.send(HEADERS, END_HEADERS | 1, 1, &block);
    match h2.try_reply(1) {
        Ok(reply) => assert!(reply.reset.is_some() || reply.status() == 431, "{reply:?}"),
        Err(error) => assert!(error.to_string().starts_with("GOAWAY"), "{error}"),
    }
    assert!(resident(&node) < before + (8 << 20), "{before} {}", resident(&node));
    assert_eq!(node.guest(A).app.seen(), [""; 0]);
    the_other_endpoint_serves(&node);
}

// covers: C9h
#[test]
fn heads_have_a_size_and_a_number_of_fields() {
    let node = Node::with(plan());
    let send = |h2: &mut H2<TcpStream>, stream: u32, more: &[(&str, &str)]| {
        let mut fields = head("GET", "/v1/orders/1");
        fields.extend(more);
        let block = data::hpack_of(&fields);
        let mut pieces = block.chunks(16_000).peekable();
        let mut kind = HEADERS;
        while let Some(piece) = pieces.next() {
            let last = if pieces.peek().is_none() { END_HEADERS } else { 0 };
            h2.send(kind, last | u8::from(kind == HEADERS), stream, piece);
            kind = CONTINUATION;
        }
        h2.try_reply(stream)
    };
    let mut h2 = connect(&node);
    assert_eq!(send(&mut h2, 1, &[("x", &"y".repeat(60_000))]).expect("an answer").status(), 200);
    let over = send(&mut h2, 3, &[("x", &"y".repeat(66_000))]);
    assert!(over.as_ref().map_or(true, |reply| reply.reset.is_some() || reply.status() == 431), "{over:?}");
    let mut h2 = connect(&node);
    let names: Vec<_> = (0..120).map(|n| format!("x-{n}")).collect();
    let fields: Vec<_> = names.iter().map(|name| (name.as_str(), "y")).collect();
    // With the four that every request has, of which none is a field of HTTP/1.
    assert_eq!(send(&mut h2, 1, &fields[..100]).expect("an answer").status(), 200);
    assert_eq!(send(&mut h2, 3, &fields[..101]).expect("an answer").status(), 400);
    assert_eq!(node.guest(A).app.seen().len(), 2);
}

// covers: C9h
#[test]
fn a_hundred_streams_may_be_open_and_the_next_is_refused_alone() {
    let node = Node::with(plan());
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    node.guest(A).serve(move |mut link, app| {
        while let Ok(request) = data::read_request(&mut link) {
            app.saw(&request);
            // Until the test goes on.
            let _ = wait.lock().expect("no panic").recv();
            link.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let mut h2 = connect(&node);
    for n in 0..100 {
        h2.request(1 + 2 * n, "GET", "/v1/orders/1");
    }
    until("the app has a hundred", || node.guest(A).app.seen().len() == 100);
    h2.request(201, "GET", "/v1/orders/1");
    let mut refused = false;
    let mut answered = 0;
    drop(go);
    while answered < 100 || !refused {
        match h2.event().expect("a hundred answers and a refusal") {
            Event::Headers { fields, .. } => {
                assert_eq!(data::h2::find(&fields, ":status"), Some("200"));
                answered += 1;
            }
            Event::Reset { stream: 201, code } => {
                assert_eq!(code, REFUSED_STREAM);
                refused = true;
            }
            other => unreachable!("{other:?}"),
        }
    }
    assert_eq!(h2.ask(203, "GET", "/v1/orders/1").status(), 200);
    node.audited_once(|line| {
        is(line, &[("verdict", "deny"), ("reason", "limit_connections"), ("detail", "h2_streams"), ("kind", "request")])
    });
}

// covers: C9h
#[test]
fn a_caller_that_never_ends_its_preface_is_closed() {
    let node = Node::with(plan());
    let mut tcp = plain(&node);
    tcp.write_all(&PREFACE[..10]).expect("sent");
    let mut all = Vec::new();
    // The supervisor's deadline is 10 s; the test's own patience ends the read with an error.
    tcp.read_to_end(&mut all).expect("closed in good order");
    assert_eq!(all, b"");
    let line: Value = node.audited_once(|line| is(line, &[("kind", "connection"), ("dest_host", "plain")]));
    assert_eq!(line["close"], "idle_timeout");
}
