//! What of a request passes, and how it is decided.

use std::io::{Read, Write};

use crate::data::h2::{Event, H2, PREFACE, PROTOCOL_ERROR, Reply, head};
use crate::data::{A, HTTPS, Node, Plan, is, read_answer, read_request};
use crate::support::{as_x, plain, plan, with};

// covers: C3a
#[test]
fn the_version_is_what_the_handshake_or_the_first_bytes_say() {
    let node = Node::with(plan());
    let x = node.svid("x");
    let line = "GET /v1/orders/1 HTTP/1.1";
    // Agreed on by ALPN.
    let mut h1 = node.call_alpn(&x, HTTPS, &["http/1.1"]).expect("connected");
    assert_eq!(h1.ask(format!("{line}\r\nHost: a\r\n\r\n")).text(), line);
    let mut both = node.call_alpn(&x, HTTPS, &["http/1.1", "h2"]).expect("connected");
    assert_eq!(both.alpn().as_deref(), Some("h2"), "the server prefers it");
    assert_eq!(H2::client(&mut both).ask(1, "GET", "/v1/orders/1").text(), line);
    assert!(node.call_alpn(&x, HTTPS, &["h3"]).is_err());
    // Without ALPN, and without TLS, by the preface; also when it comes in pieces.
    assert_eq!(H2::client(node.call(Some(&x), HTTPS).expect("connected")).ask(1, "GET", "/v1/orders/1").text(), line);
    assert_eq!(H2::client(plain(&node)).ask(1, "GET", "/v1/orders/1").text(), line);
    let mut pieces = plain(&node);
    for piece in PREFACE.chunks(5) {
        pieces.write_all(piece).expect("sent");
        pieces.flush().expect("sent");
    }
    pieces.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).expect("sent");
    let mut rest = H2::begun(pieces);
    assert_eq!(rest.ask(1, "GET", "/v1/orders/1").text(), line);
    // Whoever agreed on HTTP/1.1 and speaks HTTP/2 is malformed.
    let mut liar = node.call_alpn(&x, HTTPS, &["http/1.1"]).expect("connected");
    assert_eq!(liar.ask(PREFACE).status, 400);
    let mut other = plain(&node);
    other.write_all(b"PRI / HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
    assert_eq!(read_answer(&mut other).expect("an answer").status, 403);
    assert!(node.guest(A).app.seen().iter().all(|request| request.starts_with(line)), "{:?}", node.guest(A).app.seen());
}

// covers: C3a
#[test]
fn an_app_of_http1_sees_one_ordinary_request_with_the_verified_caller() {
    let node = Node::with(plan());
    let mut h2 = as_x(&node);
    let spoofed = [
        ("x-forwarded-client-cert", "URI=spiffe://evil"),
        ("x_forwarded_client_cert", "URI=spiffe://evil"),
        ("x-forwarded-for", "6.6.6.6"),
        ("x-nova-workload", "evil"),
        ("proxy-authorization", "Basic evil"),
        ("x-fine", "fine"),
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("te", "trailers"),
    ];
    h2.headers(1, &with("POST", "/v1/orders/1?q=1", &spoofed), false);
    h2.data(1, b"hello ", false);
    h2.data(1, b"world", true);
    assert_eq!(h2.reply(1).text(), "POST /v1/orders/1?q=1 HTTP/1.1");
    let seen = node.guest(A).app.seen().remove(0);
    assert!(seen.starts_with("POST /v1/orders/1?q=1 HTTP/1.1\r\n"), "{seen}");
    let has = |line: &str| seen.to_ascii_lowercase().split("\r\n").filter(|seen| *seen == line).count();
    assert_eq!([has("host: service-a.t.nova"), has("x-fine: fine"), has("cookie: a=1; b=2")], [1; 3], "{seen}");
    assert_eq!(has(&format!("x-forwarded-for: {}", node.ip(99))), 1, "{seen}");
    assert!(seen.contains("URI=spiffe://dev.invalid/t/t/w/x\r\n"), "{seen}");
    assert!(!seen.contains("evil") && !seen.contains("6.6.6.6"), "{seen}");
    assert!(seen.ends_with("\r\n\r\nhello world"), "{seen}");
}

// covers: C3b
#[test]
fn every_stream_is_decided_on_its_own_and_the_connection_goes_on() {
    let node = Node::with(plan());
    let mut h2 = as_x(&node);
    for (stream, method) in [(1, "GET"), (3, "DELETE"), (5, "GET"), (7, "HEAD")] {
        h2.request(stream, method, "/v1/orders/1");
    }
    let mut replies = [1, 3, 5, 7].map(|stream| (stream, Reply::default()));
    while replies.iter().any(|(_, reply)| reply.fields.is_empty()) {
        if let Event::Headers { stream, fields, .. } = h2.event().expect("answers") {
            replies.iter_mut().find(|(id, _)| *id == stream).expect("ours").1.fields = fields;
        }
    }
    assert_eq!(replies.each_ref().map(|(_, reply)| reply.status()), [200, 403, 200, 200]);
    let denied = &replies[1].1;
    assert_eq!(denied.get("content-type"), Some("application/problem+json"));
    let id = denied.get("x-nova-decision-id").expect("an id");
    let line = node.audited_once(|line| line["decision_id"] == id);
    assert!(is(&line, &[("verdict", "deny"), ("reason", "l7_mismatch"), ("method", "DELETE")]), "{line}");
    assert_eq!(h2.ask(9, "GET", "/v1/orders/9").status(), 200);
    drop(h2);
    node.audited(4, |line| is(line, &[("kind", "request"), ("verdict", "allow")]));
    node.audited(1, |line| is(line, &[("kind", "connection"), ("direction", "ingress")]));
    assert_eq!(node.guest(A).app.seen().len(), 4);
}

// covers: C3b
#[test]
fn a_caller_without_a_grant_gets_no_frame() {
    let node = Node::with(plan());
    let mut tls = node.call_alpn(&node.svid("b"), HTTPS, &["h2"]).expect("the certificate is good");
    let _ = tls.write_all(PREFACE);
    let mut all = Vec::new();
    let _ = tls.read_to_end(&mut all);
    assert_eq!(all, b"");
    node.audited_once(|line| is(line, &[("kind", "connection"), ("verdict", "deny"), ("reason", "no_grant")]));
}

// covers: C4.1
#[test]
fn what_does_not_exist_and_what_is_forbidden_look_the_same() {
    let node = Node::with(plan());
    let mut h2 = as_x(&node);
    let mut h1 = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    let mut both = Vec::new();
    // A path of no rule, a method of no rule on a path of one, a workload that is not there.
    for (stream, method, path, host) in [
        (1, "GET", "/no/such/thing", "service-a.t.nova"),
        (3, "DELETE", "/v1/orders/1", "service-a.t.nova"),
        (5, "GET", "/no/such/thing", "no-such-workload.t.nova"),
    ] {
        let mut fields = head(method, path);
        fields[2].1 = host;
        h2.headers(stream, &fields, true);
        let reply = h2.reply(stream);
        let id = reply.get("x-nova-decision-id").expect("an id").to_owned();
        let answer = h1.ask(format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let mask = |text: String, id: &str| text.replace(id, "ID");
        let over_h2 = mask(format!("{:?} {}", reply.fields, reply.text()), &id);
        let head: Vec<_> = answer.head.lines().filter(|line| !line.starts_with("date:")).map(str::to_owned).collect();
        let over_h1 = mask(format!("{head:?} {}", answer.text()), &answer.decision_id());
        both.push((over_h2, over_h1));
    }
    assert!(both.iter().all(|answers| *answers == both[0]), "{both:#?}");
    assert!(!both[0].0.contains("x-to-a"), "{both:#?}");
}

// covers: C5.60e (F-IH05)
#[test]
fn an_escaped_slash_is_sent_as_it_was_decided_where_a_rule_accepts_it_and_refused_elsewhere() {
    let closed = Node::with(plan());
    assert_eq!(as_x(&closed).ask(1, "GET", "/v1/orders/g%2fp").status(), 400);
    closed.audited_once(|line| is(line, &[("reason", "escaped_slash"), ("path", "/v1/orders/g%2Fp")]));
    let plan = plan();
    let rules = plan.rules.replace("paths: ['/v1/orders/**']", "paths: ['/v1/orders/**'], encoded_slash: true");
    let node = Node::with(Plan { rules, ..plan });
    let mut h2 = as_x(&node);
    assert_eq!(h2.ask(1, "GET", "/v1/orders/g%2fp?x=%2f").text(), "GET /v1/orders/g%2Fp?x=%2f HTTP/1.1");
    assert_eq!(h2.ask(3, "GET", "/v1/orders/g%2F..%2Fadmin").status(), 400);
    assert_eq!(h2.ask(5, "GET", "/v1/orders%2Fg").status(), 403);
    assert!(closed.guest(A).app.seen().is_empty(), "{:?}", closed.guest(A).app.seen());
}

// covers: C5.60d
#[test]
fn a_fragment_is_cut_before_anything_sees_it_and_the_path_alone_is_decided_and_sent() {
    // Over HTTP/1 it is refused. Here the library gives `:path` parsed, and its parser ends a path at `#`: nobody behind it can
    // tell that there was one, so it cannot lead anywhere either.
    let node = Node::with(plan());
    let mut h2 = as_x(&node);
    assert_eq!(h2.ask(1, "GET", "/v1/orders/1#/../admin").text(), "GET /v1/orders/1 HTTP/1.1");
    assert_eq!(h2.ask(3, "GET", "/v1/orders/1?q=1#&_method=DELETE").text(), "GET /v1/orders/1?q=1 HTTP/1.1");
    assert_eq!(h2.ask(5, "GET", "/v1/admin#/../orders/1").status(), 403);
    let denied = node.audited_once(|line| is(line, &[("kind", "request"), ("verdict", "deny")]));
    assert_eq!(denied["path"], "/v1/admin");
    assert!(node.guest(A).app.seen().iter().all(|request| !request.contains('#')));
}

// covers: C5.55
#[test]
fn an_upgrade_to_h2c_is_ignored_and_answered_in_http1() {
    let node = Node::with(plan());
    let upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n";
    let request = format!("GET /v1/orders/1 HTTP/1.1\r\nHost: service-a.t.nova\r\n{upgrade}\r\n");
    let mut tcp = plain(&node);
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    for _ in 0..2 {
        tcp.write_all(request.as_bytes()).expect("sent");
        assert_eq!(read_answer(&mut tcp).expect("an answer").status, 200);
        assert_eq!(tls.ask(&request).status, 200);
    }
    let seen = node.guest(A).app.seen();
    assert_eq!(seen.len(), 4);
    assert!(
        seen.iter().all(|seen| !seen.to_ascii_lowercase().contains("upgrade") && !seen.contains("AAMAAABk")),
        "{seen:?}"
    );
}

// covers: C3c
// covers: C5.51
// covers: C5.59
#[test]
fn expectations_and_trailers_pass_in_both_directions() {
    let node = Node::with(plan());
    node.guest(A).serve(|mut link, app| {
        while let Ok(request) = read_request(&mut link) {
            app.saw(&request);
            link.send(
                "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nTrailer: x-sum\r\n\
                 Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 42\r\nx-nova-decision-id: forged\r\n\r\n",
            );
        }
    });
    let mut h2 = as_x(&node);
    h2.headers(1, &with("POST", "/v1/orders/1", &[("expect", "100-continue")]), false);
    // Nothing of the body goes before 100 came.
    let event = h2.event().expect("an interim answer");
    assert!(
        matches!(&event, Event::Headers { fields, end: false, .. } if fields[0] == (":status".into(), "100".into())),
        "{event:?}"
    );
    h2.data(1, b"body", false);
    h2.headers(1, &[("x-check", "7")], true);
    let reply = h2.reply(1);
    assert_eq!((reply.status(), reply.text()), (200, "hello".to_owned()), "{reply:?}");
    assert_eq!(reply.trailers, [("x-sum".to_owned(), "42".to_owned())]);
    // Trailers that route or identify are refused, and the app has no whole request.
    for (stream, name) in [(3, "host"), (5, "content-length"), (7, "x-forwarded-client-cert"), (9, "authorization")] {
        h2.headers(stream, &head("POST", "/v1/orders/1"), false);
        h2.data(stream, b"body", false);
        h2.headers(stream, &[(name, "1")], true);
        let reply = h2.reply(stream);
        assert!(reply.reset == Some(PROTOCOL_ERROR) || reply.status() == 400, "{name}: {reply:?}");
    }
    h2.headers(11, &head("POST", "/v1/orders/1"), false);
    h2.headers(11, &[("x-giant", &"y".repeat(9000))], true);
    let reply = h2.reply(11);
    assert!(reply.reset == Some(PROTOCOL_ERROR) || reply.status() == 400, "{reply:?}");
    assert_eq!(node.guest(A).app.seen().len(), 1, "{:?}", node.guest(A).app.seen());
}
