//! What is refused, by us or because of what an app says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::data::h2::{DATA, END_HEADERS, Event, H2, HEADERS, PROTOCOL_ERROR, Reply, find};
use crate::data::{A, Link, Node, is};
use crate::support::{GET, RPC, as_x, call, decoded, head, message, plan, polite, serve, unary};

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
    node.guest(A).serve(crate::data::polite);
    let mut other = as_x(&node);
    let old = unary(&mut other, 1, GET);
    assert_eq!(status(&old).as_deref(), Some("14"), "{old:?}");
    drop((h2, other));
    node.audited(2, |line| is(line, &[("kind", "request"), ("verdict", "error")]) && line["grpc_status"] == 14);
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
        |h2, stream| drop(h2.try_bytes(&crate::data::h2::frame(DATA, 0, stream, &[0; 70_000]))),
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
