//! What is no request, or no answer.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::data::h2::{PROTOCOL_ERROR, head};
use crate::data::{A, Node, read_request};
use crate::support::{as_x, plan, with};

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
