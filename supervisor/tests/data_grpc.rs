//! gRPC through a port: callers and apps that speak HTTP/2 frame by frame, judged by what each side received.

mod data;

use std::io::Read;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use data::h2::{CANCEL, DATA, END_HEADERS, Event, H2, HEADERS, PROTOCOL_ERROR, Reply, find};
use data::{A, App, Link, Node, PATIENCE, Plan, RULES, Tls, is, until};
use nova_supervisor::identity::Issued;

const RPC: u16 = 50051;
const GET: &str = "/orders.v1.Orders/Get";
const WATCH: &str = "/orders.v1.Orders/Watch";

fn plan() -> Plan {
    let plan = Plan::default();
    let https = "      - {name: https, port: 8443, target_port: 18080, mode: mtls, protocol: http}\n      - {name: raw";
    let rpc = "      - {name: rpc, port: 50051, target_port: 18051, mode: mtls, protocol: grpc}\n";
    let rule = "  - id: NAME-to-a-rpc
    tenant: t
    from: {workload: NAME}
    to: {workload: service-a, port: rpc}
    grpc: {services: [orders.v1.Orders], methods: [Get, Watch]}
";
    Plan {
        endpoints: plan.endpoints.replacen(https, &format!("{rpc}{https}"), 1),
        rules: format!("{RULES}{}{}", rule.replace("NAME", "x"), rule.replace("NAME", "b")),
        ..plan
    }
}

fn as_x(node: &Node) -> H2<Tls> {
    call(node, &node.svid("x"))
}

fn call(node: &Node, who: &Issued) -> H2<Tls> {
    node.call_h2(who, RPC)
}

fn head<'a>(path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields = data::h2::head("POST", path);
    fields.extend([("content-type", "application/grpc"), ("te", "trailers")]);
    fields.extend(more);
    fields
}

/// A message as gRPC frames it.
fn message(text: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(text.len()).expect("short").to_be_bytes());
    bytes.extend(text.bytes());
    bytes
}

fn unary(h2: &mut H2<Tls>, stream: u32, path: &str) -> Reply {
    h2.headers(stream, &head(path, &[]), false);
    h2.data(stream, &message("ask"), true);
    h2.reply(stream)
}

/// What an app does with what comes on a connection.
type Handle = dyn Fn(&mut H2<Link>, Event, &App) + Send + Sync;

/// An app of HTTP/2 whose every connection hands what comes to `handle`.
fn serve(node: &Node, handle: impl Fn(&mut H2<Link>, Event, &App) + Send + Sync + 'static) {
    let handle: Arc<Handle> = Arc::new(handle);
    node.guest(A).serve(move |link, app| {
        // The check of the app's health connects and says nothing.
        let Ok(mut h2) = H2::server(link) else { return };
        app.connections.fetch_add(1, Ordering::SeqCst);
        while let Ok(event) = h2.event() {
            if let Event::Headers { fields, .. } = &event {
                app.saw(&format!("{fields:?}"));
            }
            handle(&mut h2, event, app);
        }
    });
}

/// Answers each whole call with one message and status 0.
fn polite(h2: &mut H2<Link>, event: Event, _: &App) {
    if let Event::Data { stream, end: true, .. } | Event::Headers { stream, end: true, .. } = event {
        h2.headers(stream, &[(":status", "200"), ("content-type", "application/grpc")], false);
        h2.data(stream, &message("answer"), false);
        h2.headers(stream, &[("grpc-status", "0")], true);
    }
}

fn decoded(node: &Node) -> Vec<String> {
    node.guest(A).app.seen()
}

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
        let mut fields = data::h2::head("POST", GET);
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

// covers: C4b (F-GR01, F-GR02)
// covers: C4.1
#[test]
fn a_denial_is_status_7_in_headers_alone_and_says_nothing_of_rules() {
    let node = Node::with(plan());
    serve(&node, polite);
    let mut h2 = as_x(&node);
    let mut texts = Vec::new();
    // A method of no rule, a service of no rule, a workload that is not there.
    for (stream, path, host) in [
        (1, "/orders.v1.Orders/Delete", "service-a.t.nova"),
        (3, "/no.such.Service/Get", "service-a.t.nova"),
        (5, "/no.such.Service/Get", "no-such-workload.t.nova"),
    ] {
        let mut fields = head(path, &[]);
        fields[2].1 = host;
        h2.headers(stream, &fields, false);
        h2.data(stream, &message("ask"), false);
        let event = h2.event().expect("an answer");
        let Event::Headers { fields, end: true, .. } = event else { unreachable!("{event:?}") };
        for (name, value) in [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "7")] {
            assert_eq!(find(&fields, name), Some(value), "{fields:?}");
        }
        let id = find(&fields, "x-nova-decision-id").expect("an id").to_owned();
        let line = node.audited_once(|line| line["decision_id"] == id.as_str());
        assert!(is(&line, &[("verdict", "deny")]) && line["grpc_status"] == 7 && line["status"] == 200, "{line}");
        texts.push(format!("{fields:?}").replace(&id, "ID"));
        // The rest of a refused call is not wanted, and that is no fault.
        assert_eq!(h2.event().expect("a reset"), Event::Reset { stream, code: 0 });
    }
    assert!(texts.iter().all(|text| *text == texts[0] && !text.contains("a-rpc")), "{texts:#?}");
    assert_eq!(unary(&mut h2, 7, GET).trailers, [("grpc-status".to_owned(), "0".to_owned())]);
    assert_eq!(decoded(&node).len(), 1);
    // The same for callers of HTTP/1.1 and of gRPC in browsers; others read problem details.
    for (kind, wanted) in [
        ("application/grpc", Some("application/grpc")),
        ("application/grpc+proto", Some("application/grpc")),
        ("application/grpc;charset=utf-8", Some("application/grpc")),
        ("application/grpc-web+proto", Some("application/grpc-web")),
        ("application/grpcx", None),
        ("text/plain", None),
    ] {
        let mut h1 = node.call(Some(&node.svid("x")), RPC).expect("connected");
        let answer = h1.ask(format!(
            "POST /orders.v1.Orders/Delete HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\nContent-Length: 0\r\n\r\n"
        ));
        let content = answer.header("content-type");
        match wanted {
            Some(wanted) => assert_eq!((answer.status, content.as_deref()), (200, Some(wanted)), "{kind}"),
            None => assert_eq!(content.as_deref(), Some("application/problem+json"), "{kind}"),
        }
        assert_eq!(answer.header("grpc-status").as_deref(), wanted.map(|_| "7"), "{kind}");
    }
}

// covers: C4b
#[test]
fn other_refusals_have_the_status_that_clients_act_on() {
    let node = Node::with(plan());
    let mut h2 = as_x(&node);
    let status = |reply: &Reply| reply.get("grpc-status").map(str::to_owned);
    // Malformed: 3. The app is not there: 14.
    let malformed = unary(&mut h2, 1, "/orders.v1.Orders/%2e%2e/Get");
    assert_eq!(status(&malformed).as_deref(), Some("3"), "{malformed:?}");
    node.guest(A).serve(|link, _| drop(link));
    let gone = unary(&mut h2, 3, GET);
    assert_eq!(status(&gone).as_deref(), Some("14"), "{gone:?}");
    let message = gone.get("grpc-message").expect("a message");
    assert!(message.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{message:?}");
    // An app that speaks HTTP/1.1 only.
    node.guest(A).serve(data::polite);
    let mut other = as_x(&node);
    let old = unary(&mut other, 1, GET);
    assert_eq!(status(&old).as_deref(), Some("14"), "{old:?}");
    drop((h2, other));
    node.audited(2, |line| is(line, &[("kind", "request"), ("verdict", "error")]) && line["grpc_status"] == 14);
}

// covers: C8b
#[test]
fn calls_of_one_caller_share_a_connection_to_the_app_and_callers_do_not() {
    let node = Node::with(plan());
    // Answers only once all are there: each needs a place at the same time.
    let waiting: Arc<Mutex<Vec<u32>>> = Arc::default();
    serve(&node, move |h2, event, _| {
        let Event::Data { stream, end: true, .. } = event else { return };
        let mut waiting = waiting.lock().expect("no panic");
        waiting.push(stream);
        if waiting.len() == 60 {
            for stream in waiting.drain(..) {
                polite(h2, Event::Headers { stream, fields: Vec::new(), end: true }, &App::default());
            }
        }
    });
    let mut h2 = as_x(&node);
    let streams: Vec<u32> = (0..60).map(|n| 2 * n + 1).collect();
    for stream in &streams {
        h2.headers(*stream, &head(GET, &[]), false);
        h2.data(*stream, &message("ask"), true);
    }
    let mut ended = 0;
    while ended < streams.len() {
        if let Event::Headers { fields, end: true, .. } = h2.event().expect("answers") {
            assert_eq!(find(&fields, "grpc-status"), Some("0"), "{fields:?}");
            ended += 1;
        }
    }
    let connections = || node.guest(A).app.connections.load(Ordering::SeqCst);
    assert_eq!(connections(), 1);
    serve(&node, polite);
    let mut b = call(&node, &node.svid("b"));
    assert_eq!(unary(&mut b, 1, GET).status(), 200);
    assert_eq!(connections(), 2);
}

// covers: C8b
#[test]
fn an_app_that_allows_few_streams_gets_more_connections() {
    let node = Node::with(plan());
    let open = Arc::<AtomicUsize>::default();
    let most = Arc::<AtomicUsize>::default();
    let (now, peak) = (Arc::clone(&open), Arc::clone(&most));
    node.guest(A).serve(move |link, app| {
        let Ok(mut h2) = H2::server(link) else { return };
        h2.settings(&[(3, 2)]);
        app.connections.fetch_add(1, Ordering::SeqCst);
        let mut here = 0;
        while let Ok(event) = h2.event() {
            match event {
                Event::Headers { end: false, .. } => {
                    here += 1;
                    peak.fetch_max(here, Ordering::SeqCst);
                    now.fetch_add(1, Ordering::SeqCst);
                }
                Event::Data { stream, end: true, .. } => {
                    here -= 1;
                    now.fetch_sub(1, Ordering::SeqCst);
                    polite(&mut h2, Event::Headers { stream, fields: Vec::new(), end: true }, app);
                }
                _ => {}
            }
        }
    });
    let mut h2 = as_x(&node);
    assert_eq!(unary(&mut h2, 1, GET).status(), 200, "and the settings are known");
    for stream in [3, 5, 7, 9, 11] {
        h2.headers(stream, &head(WATCH, &[]), false);
    }
    until("all five are open", || open.load(Ordering::SeqCst) == 5);
    assert!(most.load(Ordering::SeqCst) <= 2, "{most:?}");
    for stream in [3, 5, 7, 9, 11] {
        h2.data(stream, &message("bye"), true);
    }
    until("all five are closed", || open.load(Ordering::SeqCst) == 0);
}

// covers: C8b
#[test]
fn a_connection_on_which_an_app_allows_no_more_streams_is_left_for_another_one() {
    let node = Node::with(plan());
    serve(&node, |h2, event, app| {
        if matches!(event, Event::Data { end: true, .. }) {
            h2.settings(&[(3, 0)]);
        }
        polite(h2, event, app);
    });
    let mut h2 = as_x(&node);
    for stream in [1, 3, 5] {
        assert_eq!(unary(&mut h2, stream, GET).status(), 200, "{stream}");
    }
    assert_eq!(node.guest(A).app.connections.load(Ordering::SeqCst), 3, "each shut for the others");
}

// covers: C8b
#[test]
fn a_call_to_an_app_that_allows_no_streams_at_all_fails_soon() {
    let node = Node::with(plan());
    node.guest(A).serve(|link, _| {
        let Ok(mut h2) = H2::server(link) else { return };
        h2.settings(&[(3, 0)]);
        while h2.event().is_ok() {}
    });
    let mut h2 = as_x(&node);
    let reply = unary(&mut h2, 1, GET);
    assert_eq!(reply.get("grpc-status"), Some("4"), "{reply:?}");
    node.audited_once(|line| is(line, &[("kind", "request"), ("reason", "upstream_timeout")]));
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

// covers: C14h
#[test]
fn answers_of_http2_are_checked_as_those_of_http1() {
    let node = Node::with(plan());
    let giant = "y".repeat(9000);
    let bad: Vec<Vec<(&str, &str)>> = vec![
        vec![(":status", "101")],
        vec![(":status", "200"), ("content-length", "1"), ("content-length", "2")],
        vec![(":status", "200"), ("content-length", "+5")],
        vec![(":status", "200"), ("content_length", "5")],
        vec![(":status", "200"), ("connection", "close")],
        vec![(":status", "200"), ("transfer-encoding", "chunked")],
        vec![(":status", "200"), ("x", "a\r\nx-evil: 1")],
        vec![(":status", "abc")],
        vec![("content-type", "application/grpc")],
    ];
    let count = bad.len();
    let answers: Arc<Vec<Vec<(String, String)>>> = Arc::new(
        bad.iter().map(|fields| fields.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()).collect(),
    );
    let turn = Arc::<AtomicUsize>::default();
    let (all, at) = (Arc::clone(&answers), Arc::clone(&turn));
    serve(&node, move |h2, event, _| {
        let Event::Headers { stream, .. } = event else { return };
        let Some(fields) = all.get(at.load(Ordering::SeqCst)) else {
            h2.headers(
                stream,
                &[
                    (":status", "200"),
                    ("content-type", "application/grpc"),
                    ("alt-svc", "h3=\":443\""),
                    ("x-nova-decision-id", "forged"),
                    ("x-forwarded-client-cert", "forged"),
                    ("x-fine", "fine"),
                ],
                false,
            );
            return h2.headers(
                stream,
                &[("grpc-status", "0"), ("x-nova-x", "forged"), ("x-spiffe-id", "forged")],
                true,
            );
        };
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        h2.headers(stream, &fields, true);
    });
    for n in 0..count {
        turn.store(n, Ordering::SeqCst);
        let mut h2 = as_x(&node);
        let reply = unary(&mut h2, 1, GET);
        assert_eq!(reply.get("grpc-status"), Some("14"), "{:?}: {reply:?}", answers[n]);
        assert!(!format!("{reply:?}").contains("evil"), "{reply:?}");
    }
    // What would speak for us goes, in heads and in trailers.
    turn.store(count, Ordering::SeqCst);
    let mut h2 = as_x(&node);
    let reply = unary(&mut h2, 1, GET);
    assert_eq!(reply.get("x-fine"), Some("fine"), "{reply:?}");
    assert!(!format!("{reply:?}").contains("forged") && reply.get("alt-svc").is_none(), "{reply:?}");
    // Trailers without end or of a giant's size end the stream as broken, never as whole.
    serve(&node, move |h2, event, _| {
        let Event::Headers { stream, .. } = event else { return };
        h2.headers(stream, &[(":status", "200"), ("content-type", "application/grpc")], false);
        h2.headers(stream, &[("grpc-status", "0"), ("x-giant", &giant)], true);
    });
    let mut h2 = call(&node, &node.svid("b"));
    let reply = unary(&mut h2, 1, GET);
    assert_eq!(reply.reset, Some(PROTOCOL_ERROR), "{reply:?}");
    assert!(reply.trailers.is_empty(), "{reply:?}");
}

// covers: C14h
#[test]
fn apps_that_break_the_rules_of_frames_fail_their_own_calls_only() {
    let node = Node::with(plan());
    type Broken = fn(&mut H2<Link>, u32);
    let broken: [Broken; 6] = [
        // A body before any head, a frame of a stream that is not there, HPACK that is none, a giant frame, no HTTP/2, an end.
        |h2, stream| h2.send(DATA, 0, stream, b"x"),
        |h2, _| h2.send(HEADERS, END_HEADERS, 2, &[0x88]),
        |h2, stream| h2.send(HEADERS, END_HEADERS, stream, &[0xff; 20]),
        |h2, stream| drop(h2.try_bytes(&data::h2::frame(DATA, 0, stream, &[0; 70_000]))),
        |h2, _| h2.bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        |h2, _| drop(h2.io.stream.shutdown(std::net::Shutdown::Both)),
    ];
    let turn = Arc::<AtomicUsize>::default();
    let at = Arc::clone(&turn);
    serve(&node, move |h2, event, app| {
        if let Event::Headers { stream, .. } = event {
            match broken.get(at.load(Ordering::SeqCst)) {
                Some(broken) => broken(h2, stream),
                None => polite(h2, Event::Headers { stream, fields: Vec::new(), end: true }, app),
            }
        }
    });
    let mut h2 = as_x(&node);
    for n in 0..broken.len() {
        turn.store(n, Ordering::SeqCst);
        let stream = 1 + 2 * u32::try_from(n).expect("few");
        let reply = unary(&mut h2, stream, GET);
        assert_eq!(reply.get("grpc-status"), Some("14"), "{n}: {reply:?}");
    }
    turn.store(broken.len(), Ordering::SeqCst);
    assert_eq!(unary(&mut h2, 99, GET).status(), 200, "the caller's connection goes on");
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
    std::io::Write::write_all(&mut tcp, data::h2::PREFACE).expect("sent");
    let mut all = Vec::new();
    let _ = tcp.read_to_end(&mut all);
    assert!(!all.windows(4).any(|bytes| bytes == b"grpc"), "{all:?}");
    assert_eq!(decoded(&node), [""; 0]);
}
