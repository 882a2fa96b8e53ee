//! What of a call passes, and in which form.

use std::io::Read;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::data::h2::{CANCEL, Event, PROTOCOL_ERROR, find};
use crate::data::{A, Node, PATIENCE, is, until};
use crate::support::{GET, RPC, WATCH, as_x, decoded, head, message, plan, polite, serve, unary};

// covers: C3e
// covers: C7.2
#[test]
fn a_call_reaches_the_app_in_http2_with_the_verified_caller() {
    let node = Node::with(plan());
    serve(&node, polite);
    let mut h2 = as_x(&node);
    let spoofed = [("x-forwarded-client-cert", "URI=spiffe://evil"), ("x-nova-a", "evil"), ("grpc-timeout", "5S")];
    h2.headers(1, &head(GET, &spoofed), false);
    h2.data(1, &message("ask"), true);
    let reply = h2.reply(1);
    assert_eq!((reply.status(), reply.body.as_slice()), (200, message("answer").as_slice()), "{reply:?}");
    assert_eq!(reply.trailers, [("grpc-status".to_owned(), "0".to_owned())]);
    let seen = decoded(&node).remove(0);
    for field in [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "service-a.t.nova"),
        (":path", GET),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("grpc-timeout", "5S"),
        ("x-forwarded-for", &node.ip(99)),
    ] {
        assert_eq!(seen.matches(&format!("{field:?}")).count(), 1, "{field:?} in {seen}");
    }
    assert!(seen.contains("URI=spiffe://dev.invalid/t/t/w/x") && !seen.contains("evil"), "{seen}");
    assert!(!seen.contains("\"host\""), "{seen}");
    // A caller of HTTP/1.1 is understood as well.
    let mut h1 = node.call(Some(&node.svid("x")), RPC).expect("connected");
    let answer = h1.ask(format!(
        "POST {GET} HTTP/1.1\r\nHost: service-a.t.nova\r\nContent-Type: application/grpc\r\nContent-Length: 0\r\n\r\n"
    ));
    assert_eq!((answer.status, answer.body), (200, message("answer")));
}

// covers: C3e (F-GR04)
#[test]
fn the_app_reads_te_trailers_where_its_caller_said_so_and_no_other_coding() {
    let node = Node::with(plan());
    serve(&node, polite);
    let mut h2 = as_x(&node);
    assert_eq!(unary(&mut h2, 1, GET).trailers, [("grpc-status".to_owned(), "0".to_owned())]);
    let te = |seen: &str| (seen.matches("\"te\"").count(), seen.matches("(\"te\", \"trailers\")").count());
    assert_eq!(te(&decoded(&node)[0]), (1, 1));
    // Over HTTP/2 nothing else may be said (RFC 9113 section 8.2.2).
    for (stream, value) in [(3, "gzip"), (5, "trailers, gzip"), (7, "deflate;q=0.5")] {
        let mut fields = crate::data::h2::head("POST", GET);
        fields.extend([("content-type", "application/grpc"), ("te", value)]);
        h2.headers(stream, &fields, true);
        assert_eq!(h2.reply(stream).reset, Some(PROTOCOL_ERROR), "{value}");
    }
    // A caller of HTTP/1.1 may.
    let mut h1 = node.call(Some(&node.svid("x")), RPC).expect("connected");
    for (value, wanted) in [("gzip", (0, 0)), ("trailers, gzip", (1, 1)), ("deflate;q=0.5", (0, 0))] {
        let answer = h1.ask(format!(
            "POST {GET} HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\nTE: {value}\r\nContent-Length: 0\r\n\r\n"
        ));
        assert_eq!(answer.status, 200, "{value}");
        assert_eq!(te(decoded(&node).last().expect("a call")), wanted, "{value}");
    }
    assert_eq!(decoded(&node).len(), 4);
}

// covers: C3c (F-GR03, F-GR05)
// covers: C3e
#[test]
fn trailers_pass_unannounced_and_so_do_answers_of_trailers_alone() {
    let node = Node::with(plan());
    serve(&node, |h2, event, _| {
        let (Event::Data { stream, end: true, .. } | Event::Headers { stream, end: true, .. }) = event else { return };
        let status = [(":status", "200"), ("content-type", "application/grpc")];
        let trailers = [("grpc-status", "5"), ("grpc-message", "no%20such"), ("x-detail-bin", "AAE=")];
        match stream % 6 {
            1 => {
                h2.headers(stream, &status, false);
                h2.data(stream, &message("one"), false);
                h2.headers(stream, &trailers, true);
            }
            // No message at all, with and without a head of its own.
            3 => {
                h2.headers(stream, &status, false);
                h2.headers(stream, &trailers, true);
            }
            _ => h2.headers(stream, &[&status[..], &trailers[..]].concat(), true),
        }
    });
    let mut h2 = as_x(&node);
    let wanted: Vec<_> = [("grpc-status", "5"), ("grpc-message", "no%20such"), ("x-detail-bin", "AAE=")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let first = unary(&mut h2, 1, GET);
    assert_eq!((first.body, &first.trailers), (message("one"), &wanted));
    let second = unary(&mut h2, 3, GET);
    assert_eq!((second.body.len(), &second.trailers), (0, &wanted));
    let third = unary(&mut h2, 5, GET);
    assert!(third.trailers.is_empty() && wanted.iter().all(|field| third.fields.contains(field)), "{third:?}");
    assert_eq!(node.guest(A).app.connections.load(Ordering::SeqCst), 1, "one connection carried them all");
}

// covers: C3c (F-GR06)
#[test]
fn both_sides_of_a_stream_talk_in_turn_before_it_ends() {
    let node = Node::with(plan());
    serve(&node, |h2, event, _| match event {
        Event::Headers { stream, end: false, .. } => {
            h2.headers(stream, &[(":status", "200"), ("content-type", "application/grpc")], false);
        }
        Event::Data { stream, bytes, end } => {
            h2.data(stream, &bytes, false);
            if end {
                h2.headers(stream, &[("grpc-status", "0")], true);
            }
        }
        _ => {}
    });
    let mut h2 = as_x(&node);
    h2.headers(1, &head(WATCH, &[]), false);
    let event = h2.event().expect("the head comes before any message");
    assert!(matches!(event, Event::Headers { end: false, .. }), "{event:?}");
    for turn in 0..5 {
        let sent = message(&format!("turn {turn}"));
        h2.data(1, &sent, false);
        assert_eq!(h2.event().expect("an echo"), Event::Data { stream: 1, bytes: sent, end: false });
    }
    h2.data(1, &message("last"), true);
    let reply = h2.reply(1);
    assert_eq!(find(&reply.fields, "grpc-status").or(find(&reply.trailers, "grpc-status")), Some("0"), "{reply:?}");
    drop(h2);
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("direction", "ingress")]));
    assert!(is(&line, &[("verdict", "allow"), ("close", "done"), ("path", WATCH)]), "{line}");
}

// covers: C3d
// covers: C8b
#[test]
fn the_end_of_a_call_reaches_the_other_side_as_what_it_is() {
    let node = Node::with(plan());
    let resets: Arc<Mutex<Vec<(u32, u32)>>> = Arc::default();
    let seen = Arc::clone(&resets);
    serve(&node, move |h2, event, _| match event {
        Event::Headers { stream, fields, .. } if find(&fields, "x-break").is_some() => {
            h2.headers(stream, &[(":status", "200"), ("content-type", "application/grpc")], false);
            h2.data(stream, &message("half"), false);
            h2.reset(stream, 0xb);
        }
        Event::Headers { stream, .. } => {
            h2.headers(stream, &[(":status", "200"), ("content-type", "application/grpc")], false);
        }
        Event::Reset { stream, code } => seen.lock().expect("no panic").push((stream, code)),
        _ => {}
    });
    let mut h2 = as_x(&node);
    // The caller cancels.
    h2.headers(1, &head(WATCH, &[]), false);
    assert!(matches!(h2.event().expect("a head"), Event::Headers { .. }));
    h2.reset(1, CANCEL);
    until("the app hears of it", || resets.lock().expect("no panic").iter().any(|(_, code)| *code == CANCEL));
    // The app breaks off: the caller gets its code.
    h2.headers(3, &head(WATCH, &[("x-break", "1")]), false);
    let reply = h2.reply(3);
    assert_eq!(reply.reset, Some(0xb), "{reply:?}");
    // The policy takes it away: both sides are told, and the next call goes on beside it.
    h2.headers(5, &head(WATCH, &[]), false);
    assert!(matches!(h2.event().expect("a head"), Event::Headers { stream: 5, .. }));
    node.publish(&plan().rules.replace("methods: [Get, Watch]", "methods: [Get]"));
    assert_eq!(h2.event().expect("a reset"), Event::Reset { stream: 5, code: CANCEL });
    until("the app hears of that", || resets.lock().expect("no panic").len() == 2);
    h2.headers(7, &head(GET, &[]), false);
    assert!(matches!(h2.event().expect("a head"), Event::Headers { stream: 7, .. }));
    drop(h2);
    let closes = |close| node.audited(1, |line| is(line, &[("kind", "request"), ("path", WATCH), ("close", close)]));
    closes("policy_revoked");
    closes("upstream_closed");
    closes("aborted");
}

// covers: C8a
#[test]
fn a_slow_caller_holds_an_app_of_http2_back_and_a_slow_app_its_caller() {
    let node = Node::with(plan());
    let written = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&written);
    serve(&node, move |h2, event, _| {
        if let Event::Headers { stream, fields, .. } = event {
            h2.headers(stream, &[(":status", "200"), ("content-type", "application/grpc")], false);
            if find(&fields, "x-flood").is_none() {
                return;
            }
            // As much as the window allows, and then some.
            for _ in 0..64 {
                h2.credits = false;
                h2.data(stream, &[7; 16 * 1024], false);
                count.fetch_add(16 * 1024, Ordering::SeqCst);
            }
        }
    });
    let mut h2 = as_x(&node);
    h2.credits = false;
    h2.headers(1, &head(WATCH, &[("x-flood", "1")]), false);
    let mut got = 0;
    while got < 65_535 {
        if let Event::Data { bytes, .. } = h2.event().expect("the first window") {
            got += bytes.len();
        }
    }
    until("the app has filled what windows there are", || written.load(Ordering::SeqCst) >= 256 * 1024);
    // Another call beside it is served.
    h2.window(0, 1 << 20);
    h2.headers(3, &head(GET, &[]), false);
    loop {
        if let Event::Headers { stream: 3, .. } = h2.event().expect("the other call") {
            break;
        }
    }
}

// covers: C3e
#[test]
fn a_plain_connection_to_a_grpc_port_is_no_call() {
    let node = Node::with(plan());
    let mut tcp = TcpStream::connect((node.ip(21), RPC)).expect("connected");
    tcp.set_read_timeout(Some(PATIENCE)).expect("set");
    std::io::Write::write_all(&mut tcp, crate::data::h2::PREFACE).expect("sent");
    let mut all = Vec::new();
    let _ = tcp.read_to_end(&mut all);
    assert!(!all.windows(4).any(|bytes| bytes == b"grpc"), "{all:?}");
    assert_eq!(decoded(&node), [""; 0]);
}
