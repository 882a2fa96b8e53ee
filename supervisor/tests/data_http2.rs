//! Callers that speak HTTP/2, frame by frame; what they may do is judged by what the app received.

mod data;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use data::h2::{CANCEL, Event, H2, NO_ERROR, PREFACE, PROTOCOL_ERROR, Reply, head};
use data::{A, App, HTTPS, Link, Node, PATIENCE, Plan, RULES, Tls, dial, is, polite, read_answer, read_request, until};

/// A port without TLS on which HTTP is spoken.
const PLAIN: u16 = 8080;

fn plan() -> Plan {
    let plan = Plan::default();
    let https = "      - {name: https, port: 8443, target_port: 18080, mode: mtls, protocol: http}\n      - {name: raw";
    let plain = "      - {name: plain, port: 8080, target_port: 18080, mode: tcp, protocol: http}\n";
    Plan {
        endpoints: plan.endpoints.replacen(https, &format!("{plain}{https}"), 1),
        rules: format!(
            "{RULES}  - id: outside-to-a-plain
    tenant: t
    from: {{cidr: NET.96/28}}
    to: {{workload: service-a, port: plain}}
    http: {{methods: [GET, POST], paths: ['/v1/orders/**']}}
"
        ),
        ..plan
    }
}

fn plain(node: &Node) -> TcpStream {
    dial(&node.ip(99), &format!("{}:{PLAIN}", node.ip(21))).expect("connected")
}

fn as_x(node: &Node) -> H2<Tls> {
    node.call_h2(&node.svid("x"), HTTPS)
}

fn with<'a>(method: &'a str, path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields = head(method, path);
    fields.extend(more);
    fields
}

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

// covers: C5.34 (F-IH10)
// covers: C5.35
#[test]
fn authority_and_host_name_one_destination() {
    let node = Node::with(plan());
    let mut h2 = as_x(&node);
    let base = [(":method", "GET"), (":scheme", "https"), (":path", "/v1/orders/1")];
    let cases: [(&[(&str, &str)], u16); 9] = [
        (&[(":authority", "service-a.t.nova"), ("host", "b.t.nova")], 400),
        (&[(":authority", "service-a.t.nova:8443"), ("host", "service-a.t.nova:8444")], 400),
        (&[(":authority", "service-a.t.nova"), ("host", "service-a.t.nova"), ("host", "service-a.t.nova")], 400),
        (&[("host", "service-a.t.nova"), ("host", "b.t.nova")], 400),
        (&[("host", "user@service-a.t.nova")], 400),
        (&[("host", "")], 400),
        (&[], 400),
        (&[("host", "service-a.t.nova")], 200),
        (&[(":authority", "SERVICE-A.t.nova"), ("host", "service-a.t.nova")], 200),
    ];
    for (at, (more, status)) in cases.into_iter().enumerate() {
        let stream = 1 + 2 * u32::try_from(at).expect("few");
        let mut fields = base.to_vec();
        fields.extend(more.iter().filter(|(name, _)| name.starts_with(':')));
        fields.extend(more.iter().filter(|(name, _)| !name.starts_with(':')));
        h2.headers(stream, &fields, true);
        assert_eq!(h2.reply(stream).status(), status, "{more:?}");
    }
    // No authority of that kind leaves the library that reads the frames.
    h2.headers(31, &[base[0], base[1], (":authority", "user@service-a.t.nova"), base[2]], true);
    let reply = h2.reply(31);
    assert!(reply.reset == Some(PROTOCOL_ERROR) || reply.status() == 400, "{reply:?}");
    let seen = node.guest(A).app.seen();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(
        seen.iter().all(|request| request.to_ascii_lowercase().contains("\r\nhost: service-a.t.nova\r\n")),
        "{seen:?}"
    );
    node.audited(2, |line| line["detail"] == "authority_mismatch");
}

// covers: C5.60
#[test]
fn paths_that_two_parsers_read_in_two_ways_reach_nobody() {
    let node = Node::with(plan());
    let mut h2 = as_x(&node);
    let paths = [
        "/v1/orders/../admin",
        "/v1/orders/%2e%2e/admin",
        "/v1/orders/%2E./admin",
        "/v1/orders/./42",
        "/v1/orders/..;a=b/admin",
        "/v1/orders%2f42",
        "/v1/orders/%5cadmin",
        "/v1/orders\\admin",
        "/v1/orders/a%00b",
        "/v1//orders/42",
        "//v1/orders/42",
        "/v1/orders/%zz",
        "/v1/orders/%252e%252e/admin",
        "/v1/orders/\u{e9}",
        "/v1/orders/<x>",
        "*",
        "v1/orders/1",
        "https://service-a.t.nova/v1/orders/1",
        "",
    ];
    for (at, path) in paths.into_iter().enumerate() {
        let stream = 1 + 2 * u32::try_from(at).expect("few");
        let reply = h2.ask(stream, "GET", path);
        assert!(reply.reset == Some(PROTOCOL_ERROR) || reply.status() == 400, "{path}: {reply:?}");
    }
    assert_eq!(node.guest(A).app.seen(), [""; 0]);
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

// covers: C5.42
// covers: C5.48
// covers: C5.53
#[test]
fn fields_that_frame_twice_or_lie_are_refused() {
    let node = Node::with(plan());
    let mut h2 = as_x(&node);
    let refused: [&[(&str, &str)]; 17] = [
        &[("transfer-encoding", "chunked")],
        &[("transfer-encoding", "identity"), ("content-length", "5")],
        &[("transfer_encoding", "chunked")],
        &[("content_length", "0")],
        &[("content-length", "5"), ("content-length", "5")],
        &[("content-length", "5"), ("content-length", "0")],
        &[("content-length", "5, 5")],
        &[("content-length", "+5")],
        &[("content-length", "0x5")],
        &[("content-length", "18446744073709551616")],
        &[("connection", "close")],
        &[("keep-alive", "timeout=5")],
        &[("proxy-connection", "keep-alive")],
        &[("upgrade", "websocket")],
        &[("te", "gzip")],
        &[("x-http-method-override", "DELETE")],
        &[("expect", "something")],
    ];
    let mut stream = 1;
    for fields in refused {
        h2.headers(stream, &with("POST", "/v1/orders/1", fields), false);
        h2.data(stream, b"hello", true);
        let reply = h2.reply(stream);
        assert!(reply.reset == Some(PROTOCOL_ERROR) || reply.status() == 400, "{fields:?}: {reply:?}");
        stream += 2;
    }
    // Bytes that a line of HTTP/1 cannot hold, in names and values.
    for (name, value) in [
        ("x", "a\r\nx-evil: 1"),
        ("x", "a\0b"),
        ("x", "caf\u{e9}"),
        ("X-Upper", "a"),
        ("x y", "a"),
        ("x:", "a"),
        ("", "a"),
    ] {
        let mut h2 = as_x(&node);
        h2.headers(1, &with("GET", "/v1/orders/1", &[(name, value)]), true);
        match h2.try_reply(1) {
            Ok(reply) => assert!(reply.reset == Some(PROTOCOL_ERROR) || reply.status() == 400, "{name:?}: {reply:?}"),
            Err(error) => assert!(error.to_string().starts_with("GOAWAY"), "{name:?}: {error}"),
        }
    }
    // A body on GET, in each way of having one.
    h2.headers(stream, &head("GET", "/v1/orders/1"), false);
    assert_eq!(h2.reply(stream).status(), 400);
    h2.headers(stream + 2, &with("GET", "/v1/orders/1", &[("content-length", "4")]), false);
    assert_eq!(h2.reply(stream + 2).status(), 400);
    assert_eq!(node.guest(A).app.seen(), [""; 0]);
}

// covers: C5.43
#[test]
fn a_body_of_another_length_than_announced_is_no_request() {
    let node = Node::with(plan());
    let mut h2 = as_x(&node);
    h2.headers(1, &with("POST", "/v1/orders/1", &[("content-length", "5")]), false);
    h2.data(1, b"hello and more", true);
    let over = h2.reply(1);
    h2.headers(3, &with("POST", "/v1/orders/1", &[("content-length", "5")]), false);
    h2.data(3, b"hel", true);
    let under = h2.reply(3);
    assert_eq!([over.reset, under.reset], [Some(PROTOCOL_ERROR); 2], "{over:?} {under:?}");
    // Whatever began to reach the app never became a whole request there.
    assert_eq!(node.guest(A).app.seen(), [""; 0]);
    assert_eq!(h2.ask(5, "GET", "/v1/orders/1").status(), 200);
}

// covers: C5.37
// covers: C5.32
#[test]
fn methods_that_are_not_carried_are_refused() {
    let node = Node::with(plan());
    let mut h2 = as_x(&node);
    for (stream, method) in [(1, "TRACE"), (3, "TRACK")] {
        let status = h2.ask(stream, method, "/v1/orders/1").status();
        assert!([400, 403].contains(&status), "{method}: {status}");
    }
    h2.headers(5, &[(":method", "CONNECT"), (":authority", "service-a.t.nova:443")], false);
    assert_eq!(h2.reply(5).status(), 400);
    // RFC 8441 is not on offer.
    let extended = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":path", "/v1/orders/1"),
        (":authority", "service-a.t.nova"),
    ];
    h2.headers(7, &extended, false);
    let reply = h2.reply(7);
    assert!(reply.reset == Some(PROTOCOL_ERROR) || reply.status() >= 400, "{reply:?}");
    assert_eq!(node.guest(A).app.seen(), [""; 0]);
    assert_eq!(h2.ask(9, "GET", "/v1/orders/1").status(), 200);
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

// covers: C14.1
// covers: C14.6
// covers: C14.7
// covers: C14.14
#[test]
fn answers_that_are_not_one_message_become_502() {
    let node = Node::with(plan());
    let answers: [&str; 7] = [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/2.0 200 OK\r\n\r\n",
        "hello\r\n\r\n",
    ];
    let turn = Arc::<AtomicUsize>::default();
    let at = Arc::clone(&turn);
    node.guest(A).serve(move |mut link, _| {
        if read_request(&mut link).is_ok() {
            let answer = answers[at.load(Ordering::SeqCst) % answers.len()];
            link.send(answer);
        }
    });
    let mut h2 = as_x(&node);
    for (n, answer) in answers.into_iter().enumerate() {
        turn.store(n, Ordering::SeqCst);
        assert_eq!(h2.ask(1 + 2 * u32::try_from(n).expect("few"), "GET", "/v1/orders/1").status(), 502, "{answer:?}");
    }
    // A flood of interim answers.
    node.guest(A).serve(|mut link, _| {
        if read_request(&mut link).is_ok() {
            let _ = link.write_all("HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000).as_bytes());
        }
    });
    assert_eq!(h2.ask(41, "GET", "/v1/orders/1").status(), 502);
    // What would speak for us, or for another way to the app.
    node.guest(A).serve(|mut link, _| {
        if read_request(&mut link).is_ok() {
            link.send(
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Nova-Decision-Id: forged\r\nAlt-Svc: h3=\":443\"\r\n\
                 X-Forwarded-Client-Cert: forged\r\nConnection: x-hop\r\nX-Hop: forged\r\nKeep-Alive: forged\r\nX-Fine: fine\r\n\r\n",
            );
        }
    });
    let reply = h2.ask(43, "GET", "/v1/orders/1");
    assert_eq!(reply.get("x-fine"), Some("fine"), "{reply:?}");
    assert!(!format!("{:?}", reply.fields).contains("forged") && reply.get("alt-svc").is_none(), "{reply:?}");
}

// covers: C12b, C12f
#[test]
fn a_denial_leaves_the_rest_of_an_upload_alone_for_a_moment() {
    let node = Node::with(plan());
    let mut h2 = as_x(&node);
    // Java and older versions of curl lose an answer that a reset follows while they send.
    h2.headers(1, &head("POST", "/v2/denied"), false);
    assert_eq!(h2.reply(1).status(), 403);
    // The whole window of the stream, and more once it opens again.
    (0..16).for_each(|_| h2.data(1, &[0; 16 * 1024], false));
    let mut more = 0;
    while more < 64 * 1024 {
        let frame = h2.frame().expect("room for more");
        assert_ne!(frame.kind, data::h2::RST_STREAM, "{frame:?}");
        if (frame.kind, frame.stream) == (data::h2::WINDOW_UPDATE, 1) {
            more += u32::from_be_bytes(frame.payload[..4].try_into().expect("four bytes"));
        }
    }
    (0..3).for_each(|_| h2.data(1, &[0; 16 * 1024], false));
    h2.data(1, b"the end", true);
    h2.request(3, "GET", "/v1/orders/1");
    let next = h2.event().expect("the next answer");
    assert!(matches!(next, Event::Headers { stream: 3, .. }), "and no reset before it: {next:?}");
    // Who never comes to an end is told so, and that it was no error.
    h2.headers(5, &head("POST", "/v2/denied"), false);
    assert_eq!(h2.reply(5).status(), 403);
    h2.data(5, b"more", false);
    assert_eq!(h2.event().expect("the end"), Event::Reset { stream: 5, code: NO_ERROR });
    assert_eq!(h2.ask(7, "GET", "/v1/orders/1").status(), 200);
    assert_eq!(node.guest(A).app.seen().len(), 2);
}

// covers: C12b, C12f
#[test]
fn what_an_app_leaves_of_an_upload_holds_up_neither_its_answer_nor_others() {
    let node = Node::with(plan());
    node.guest(A).serve(|mut link, app| {
        let Ok(head) = data::read_head(&mut link) else { return };
        app.saw(&head);
        link.send("HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfull");
    });
    let mut h2 = as_x(&node);
    for stream in [1, 3, 5, 7, 9, 11] {
        h2.headers(stream, &head("POST", "/v1/orders/large"), false);
        let reply = h2.reply(stream);
        assert_eq!((reply.status(), reply.text().as_str()), (413, "full"));
        // Six times this is more than the window of the connection.
        (0..12).for_each(|_| h2.data(stream, &[0; 16 * 1024], false));
        h2.data(stream, b"the end", true);
    }
    assert_eq!(h2.ask(13, "DELETE", "/v1/orders/1").status(), 403);
    node.audited(6, |line| is(line, &[("kind", "request"), ("verdict", "allow"), ("method", "POST")]));
}

// covers: C3d
#[test]
fn a_revoked_stream_is_reset_alone_and_a_revoked_pair_is_closed() {
    let node = Node::with(plan());
    node.guest(A).serve(endless);
    let mut h2 = as_x(&node);
    h2.request(1, "GET", "/v1/orders/endless");
    h2.headers(3, &head("POST", "/v1/orders/endless"), true);
    for _ in 0..4 {
        let event = h2.event().expect("both begin");
        assert!(matches!(event, Event::Headers { .. } | Event::Data { .. }), "{event:?}");
    }
    // The same rules again: nothing happens. Without POST: one stream goes.
    let rules = plan().rules;
    node.publish(&rules);
    node.publish(&rules.replace("[GET, HEAD, POST, PUT], paths: ['/v1/orders/**']", "[GET], paths: ['/v1/orders/**']"));
    assert_eq!(h2.event().expect("goes on"), Event::Reset { stream: 3, code: CANCEL });
    assert_eq!(h2.ask(5, "GET", "/v1/orders/short").status(), 200);
    let cut = node.audited_once(|line| is(line, &[("kind", "request"), ("method", "POST")]));
    assert!(is(&cut, &[("verdict", "allow"), ("close", "policy_revoked")]), "{cut}");
    // Without the pair: all of it goes.
    node.publish(&rules.replace(
        "id: x-to-a\n    tenant: t\n    from: {workload: x}",
        "id: x-to-a\n    tenant: t\n    from: {workload: b}",
    ));
    assert_eq!(h2.goaway(), Some(NO_ERROR));
    assert_eq!(h2.goaway(), None, "and then the end");
    let closed = node.audited_once(|line| is(line, &[("kind", "connection"), ("direction", "ingress")]));
    assert_eq!(closed["close"], "policy_revoked");
}

// covers: C11h
#[test]
fn a_drain_says_goaway_and_lets_streams_finish() {
    let node = Node::with(plan());
    node.guest(A).serve(|mut link, app| {
        while let Ok(request) = read_request(&mut link) {
            app.saw(&request);
            link.send("HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nfirst ");
            // Ends 3 s later.
            std::thread::sleep(Duration::from_secs(3));
            link.send("second");
        }
    });
    let mut h2 = as_x(&node);
    let mut idle = as_x(&node);
    assert_eq!(idle.ask(1, "DELETE", "/v1/orders/1").status(), 403);
    h2.request(1, "GET", "/v1/orders/1");
    let event = h2.event().expect("the answer begins");
    assert!(matches!(event, Event::Headers { .. }), "{event:?}");
    node.edit_endpoint("service-a", "state: ready", "state: draining");
    assert_eq!(idle.goaway(), Some(NO_ERROR));
    let mut body = Vec::new();
    let mut said_goodbye = false;
    loop {
        match h2.event() {
            Ok(Event::Data { bytes, .. }) => body.extend(bytes),
            Ok(Event::GoAway { code: NO_ERROR, .. }) => said_goodbye = true,
            Ok(other) => unreachable!("{other:?}"),
            Err(_) => break,
        }
    }
    assert!(said_goodbye);
    assert_eq!(body, b"first second", "every byte of the answer in progress arrives");
    until("nothing is left open", || node.connections().is_empty());
}

// covers: C8a
#[test]
fn a_caller_that_reads_slowly_holds_the_app_back() {
    let node = Node::with(plan());
    let written = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&written);
    node.guest(A).serve(move |mut link, _| {
        if read_request(&mut link).is_err() {
            return;
        }
        link.send("HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n");
        for _ in 0..1024 {
            if link.write_all(&[7; 64 * 1024]).is_err() {
                return;
            }
            count.fetch_add(64 * 1024, Ordering::SeqCst);
        }
    });
    let mut h2 = as_x(&node);
    h2.credits = false;
    h2.request(1, "GET", "/v1/orders/1");
    let mut got = 0;
    while got < 65_535 {
        if let Event::Data { bytes, .. } = h2.event().expect("the first window") {
            got += bytes.len();
        }
    }
    // The app comes to a stop: what it wrote stays within the buffers on the way.
    let stopped = std::cell::Cell::new((0, 0));
    until("the app waits", || {
        let now = written.load(Ordering::SeqCst);
        let (last, times) = stopped.get();
        stopped.set((now, if now == last { times + 1 } else { 0 }));
        times >= 50
    });
    assert!(written.load(Ordering::SeqCst) < 4 * 1024 * 1024, "{written:?}");
    // Another stream of the same connection is served meanwhile.
    h2.window(0, 1 << 20);
    assert_eq!(h2.ask(3, "DELETE", "/v1/orders/1").status(), 403);
    // And with room, all of it arrives.
    h2.credits = true;
    h2.window(1, 65_535);
    let mut rest = 0;
    loop {
        if let Event::Data { bytes, end, .. } = h2.event().expect("the rest") {
            rest += bytes.len();
            if end {
                break;
            }
        }
    }
    assert_eq!(got + rest, 67_108_864);
}

// covers: C8a (F-LB05)
#[test]
fn an_app_that_reads_slowly_holds_the_caller_back_and_resets_give_the_room_back() {
    let node = Node::with(plan());
    let stalled = |mut link: Link, app: &App| {
        let head = data::read_head(&mut link).unwrap_or_default();
        if head.contains("/stalled") {
            app.saw(&head);
            // Reads nothing of the body until the other side gives up.
            std::thread::sleep(PATIENCE);
        } else if !head.is_empty() {
            app.saw(&head);
            link.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            polite(link, app);
        }
    };
    node.guest(A).serve(stalled);
    let mut h2 = as_x(&node);
    // Three times the window of the connection, which only resets open again.
    let mut stream = 1;
    for round in 1..=4 {
        let opened = stream;
        for _ in 0..12 {
            h2.headers(stream, &head("POST", "/v1/orders/stalled"), false);
            for _ in 0..4 {
                h2.data(stream, &[0; 16 * 1024], false);
            }
            stream += 2;
        }
        until("the app has them", || node.guest(A).app.seen().len() == 12 * round);
        (opened..stream).step_by(2).for_each(|stream| h2.reset(stream, CANCEL));
    }
    assert_eq!(h2.ask(101, "GET", "/v1/orders/1").status(), 200);
    node.audited(48, |line| is(line, &[("kind", "request"), ("method", "POST"), ("close", "aborted")]));
}

/// Answers `/endless` with a head and one piece, anything else at once.
fn endless(mut link: Link, app: &App) {
    while let Ok(request) = read_request(&mut link) {
        app.saw(&request);
        if request.contains("/endless") {
            link.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\npiece\r\n");
        } else {
            link.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    }
}
