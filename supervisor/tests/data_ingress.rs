//! Callers of a workload, good and bad, against the real program.

mod data;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, SystemTime};

use data::{A, HTTPS, Node, Plan, RAW, Tls, in_time, is, issue, read_answer, read_request, until};
use nova_proto::ids::SpiffeId;
use nova_supervisor::gate::{Exchange, Limits};
use nova_supervisor::identity::Issued;

const ORDER: &str = "GET /v1/orders/42 HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n";

/// A caller that gets no answer from the app, in whichever way its connection ends.
fn gets_nothing(node: &Node, who: Option<&Issued>) {
    if let Ok(mut tls) = node.call(who, HTTPS) {
        let _ = tls.write_all(ORDER.as_bytes());
        let answer = tls.answer();
        assert!(answer.is_err(), "{answer:?}");
    }
}

// covers: A7b
// covers: C2a (F-IT05)
#[test]
fn callers_without_a_certificate_of_ours_get_no_byte_of_http() {
    let node = Node::start();
    let x = SpiffeId::new("spiffe://dev.invalid/t/t/w/x").expect("an ID");
    let past = SystemTime::now() - Duration::from_secs(3600);
    let expired = node.ca.issue_between(&x, "x.t.nova", past - Duration::from_secs(60), past).expect("issued");
    let stranger = nova_supervisor::identity::DevCa::generate().expect("a CA");
    let callers = [
        ("no_client_cert", None),
        ("peer_untrusted", Some(issue(&stranger, "spiffe://dev.invalid/t/t/w/x", "x.t.nova"))),
        ("peer_untrusted", Some(issue(&stranger, "spiffe://partner/billing", "x.t.nova"))),
        // T3: a partner's CA may not speak for our trust domain.
        ("peer_untrusted", Some(issue(&node.partner, "spiffe://dev.invalid/t/t/w/x", "x.t.nova"))),
        ("peer_expired", Some(expired)),
    ];
    for (_, who) in &callers {
        gets_nothing(&node, who.as_ref());
    }
    let refused = node.audited(callers.len(), |line| is(line, &[("direction", "ingress"), ("verdict", "deny")]));
    let mut reasons: Vec<_> = refused.iter().map(|line| line["reason"].as_str().expect("a reason")).collect();
    reasons.sort_unstable();
    let mut wanted: Vec<_> = callers.iter().map(|(reason, _)| *reason).collect();
    wanted.sort_unstable();
    assert_eq!(reasons, wanted);
    assert!(node.guest(A).app.seen().is_empty());
    until("nothing is left open", || node.open("service-a") == 0 && node.connections().is_empty());
}

// covers: A7b
#[test]
fn a_caller_without_a_grant_is_closed_before_anything_is_parsed() {
    let node = Node::start();
    let b = node.svid("b");
    let mut tls = node.call(Some(&b), HTTPS).expect("the certificate is good");
    let _ = tls.write_all(b"this is not even HTTP\r\n\r\n");
    assert!(tls.answer().is_err());
    let line =
        node.audited_once(|line| is(line, &[("direction", "ingress"), ("peer", "spiffe://dev.invalid/t/t/w/b")]));
    assert!(is(&line, &[("kind", "connection"), ("verdict", "deny"), ("reason", "no_grant")]), "{line}");
    assert!(node.guest(A).app.seen().is_empty());
}

// covers: A7b
// covers: A9a
#[test]
fn a_method_without_a_rule_is_answered_403_with_the_id_of_its_record() {
    let node = Node::start();
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    let answer = tls.ask("DELETE /v1/orders/42 HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n");
    assert_eq!(answer.status, 403, "{answer:?}");
    assert!(answer.text().contains(&answer.decision_id()), "{answer:?}");
    assert!(!answer.text().contains("x-to-a"), "an outsider learns no rule: {answer:?}");
    // The connection goes on: a granted request is served.
    assert_eq!(tls.ask(ORDER).status, 200);
    drop(tls);
    let denied = node.audited_once(|line| line["decision_id"] == answer.decision_id().as_str());
    assert!(is(&denied, &[("kind", "request"), ("verdict", "deny"), ("reason", "l7_mismatch"), ("method", "DELETE")]));
    node.audited(1, |line| is(line, &[("kind", "request"), ("verdict", "allow")]));
    node.audited(1, |line| is(line, &[("kind", "connection"), ("direction", "ingress")]));
    assert_eq!(node.guest(A).app.seen().len(), 1);
}

// covers: A7d
// covers: C7b
#[test]
fn the_app_sees_the_verified_caller_once_and_no_copy_of_it() {
    let node = Node::start();
    let x = node.svid("x");
    let mut tls = node.call(Some(&x), HTTPS).expect("connected");
    let spoofed = "GET /v1/orders/42 HTTP/1.1\r\nHost: service-a.t.nova\r\n\
        X-Forwarded-Client-Cert: URI=spiffe://dev.invalid/t/t/w/admin\r\nx_forwarded_client_cert: URI=spiffe://evil\r\n\
        X-FORWARDED-FOR: 6.6.6.6\r\nX-Forwarded_For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\n\
        X-Nova-Workload: admin\r\nSpiffe-Id: spiffe://evil\r\nX-Spiffe-Id: spiffe://evil\r\nX-SSL-Client-Verify: SUCCESS\r\n\
        Client-Cert: :evil:\r\nX-Forwarded-Proto: http\r\nProxy-Authorization: Basic ZXZpbA==\r\n\
        Connection: x-forwarded-client-cert, x-forwarded-for, x-kept\r\nX-Kept: evil\r\nX-Fine: fine\r\n\r\n";
    assert_eq!(tls.ask(spoofed).status, 200);
    let seen = node.guest(A).app.seen().remove(0);
    let lines: Vec<_> = seen.lines().map(str::to_ascii_lowercase).collect();
    let xfcc: Vec<_> = lines.iter().filter(|line| line.starts_with("x-forwarded-client-cert")).collect();
    let hash = hex::encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &x.chain[0]));
    let wanted = format!(
        "x-forwarded-client-cert: by=spiffe://dev.invalid/t/t/w/service-a;hash={hash};uri=spiffe://dev.invalid/t/t/w/x"
    );
    assert_eq!(xfcc, [&wanted], "{seen}");
    let xff: Vec<_> = lines.iter().filter(|line| line.starts_with("x-forwarded-for")).collect();
    assert_eq!(xff, [&format!("x-forwarded-for: {}", node.ip(99))], "{seen}");
    assert!(!seen.contains("evil") && !seen.contains("6.6.6.6") && !seen.contains("SUCCESS"), "{seen}");
    assert!(seen.contains("fine"), "{seen}");
    assert_eq!(lines.iter().filter(|line| line.starts_with("host:")).count(), 1, "{seen}");
}

// covers: A7d
#[test]
fn an_app_cannot_speak_as_the_supervisor() {
    let node = Node::start();
    node.guest(A).serve(|mut link, _| {
        let Ok(_) = read_request(&mut link) else { return };
        link.send(
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Nova-Decision-Id: forged\r\nAlt-Svc: h3=\":443\"\r\n\
             X-Forwarded-Client-Cert: forged\r\nProxy-Authenticate: Basic\r\nX-Fine: fine\r\n\r\n",
        );
    });
    let answer = node.call(Some(&node.svid("x")), HTTPS).expect("connected").ask(ORDER);
    assert_eq!(answer.header("x-fine").as_deref(), Some("fine"));
    assert!(
        !answer.head.contains("forged") && !answer.head.to_ascii_lowercase().contains("alt-svc"),
        "{}",
        answer.head
    );
}

// covers: A7a
#[test]
fn paths_that_two_parsers_read_in_two_ways_are_answered_400() {
    let node = Node::start();
    let x = node.svid("x");
    for target in [
        "/v1/orders/../admin",
        "/v1/orders/%2e%2e/admin",
        "/v1/orders/%2E./admin",
        "/v1/orders/./42",
        "/v1/orders/..;a=b/admin",
        "/v1/orders%2f42",
        "/v1/orders/%5cadmin",
        "/v1/orders/a%00b",
        "/v1//orders/42",
        "//v1/orders/42",
        "/v1/orders/%zz",
        "/v1/orders/%252e%252e/admin",
        "*",
    ] {
        let mut tls = node.call(Some(&x), HTTPS).expect("connected");
        let answer = tls.ask(format!("GET {target} HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n"));
        assert_eq!(answer.status, 400, "{target}: {answer:?}");
    }
    assert!(node.guest(A).app.seen().is_empty(), "{:?}", node.guest(A).app.seen());
}

// covers: A7a
#[test]
fn bytes_that_are_not_one_message_are_answered_400_and_reach_nobody() {
    let node = Node::start();
    let x = node.svid("x");
    let host = "Host: service-a.t.nova\r\n";
    let post = format!("POST /v1/orders/1 HTTP/1.1\r\n{host}");
    let bad = [
        format!("{post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("{post}Content-Length: 5\r\nContent-Length: 0\r\n\r\nhello"),
        format!("{post}Content-Length: +5\r\n\r\nhello"),
        format!("{post}Content-Length: 5, 5\r\n\r\nhello"),
        format!("{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
        format!("{post}Transfer_Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("{post}Content-Length : 5\r\n\r\nhello"),
        format!("{post}X: a\n\r\n"),
        format!("{post}X: a\r\n folded\r\n\r\n"),
        format!("GET /v1/orders/1 HTTP/1.1\n{host}\n"),
        format!("GET /v1/orders/1 HTTP/1.1\r\n{host}Host: b.t.nova\r\n\r\n"),
        "GET /v1/orders/1 HTTP/1.1\r\n\r\n".to_owned(),
        format!("GET  /v1/orders/1 HTTP/1.1\r\n{host}\r\n"),
        format!("GET /v1/orders/1#x HTTP/1.1\r\n{host}\r\n"),
        format!("GET /v1/orders/1 HTTP/2.0\r\n{host}\r\n"),
        format!("GET /v1/orders/1 HTTP/1.1\r\n{host}Content-Length: 4\r\n\r\nbody"),
        format!("GET /v1/orders/1 HTTP/1.1\r\n{host}X-HTTP-Method-Override: DELETE\r\n\r\n"),
        format!("GET http://b.t.nova/v1/orders/1 HTTP/1.1\r\n{host}\r\n"),
        format!("TRACE /v1/orders/1 HTTP/1.1\r\n{host}\r\n"),
        format!("CONNECT b.t.nova:443 HTTP/1.1\r\n{host}\r\nGET /v1/orders/1 HTTP/1.1\r\n{host}\r\n"),
    ];
    for bytes in &bad {
        let mut tls = node.call(Some(&x), HTTPS).expect("connected");
        let answer = tls.ask(bytes);
        assert_eq!(answer.status, 400, "{bytes:?}: {answer:?}");
    }
    assert!(node.guest(A).app.seen().is_empty(), "{:?}", node.guest(A).app.seen());
    until("nothing is left open", || node.open("service-a") == 0);
}

// covers: A7a
#[test]
fn a_second_request_in_one_write_is_decided_on_its_own() {
    let node = Node::start();
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    tls.send(format!("{ORDER}DELETE /v1/orders/42 HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n{ORDER}"));
    assert_eq!([(); 3].map(|()| tls.answer().expect("an answer").status), [200, 403, 200]);
    let seen = node.guest(A).app.seen();
    assert!(seen.len() == 2 && seen.iter().all(|request| request.starts_with("GET ")), "{seen:?}");
}

// covers: A7a
#[test]
fn a_body_that_the_gate_refuses_is_the_callers_fault() {
    let node = Node::start();
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    tls.send(
        "POST /v1/orders/1 HTTP/1.1\r\nHost: service-a.t.nova\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    );
    // The head is on its way to the app; only now comes what the gate refuses.
    until("the request is decided", || node.open("service-a") == 1);
    tls.send("5;evil=\"\n\"\r\nhello\r\n0\r\n\r\n");
    assert_eq!(tls.answer().expect("an answer").status, 400);
    drop(tls);
    let line = node.audited_once(|line| is(line, &[("direction", "ingress"), ("kind", "request")]));
    assert!(is(&line, &[("verdict", "deny"), ("reason", "malformed")]), "{line}");
    node.audited_once(|line| is(line, &[("direction", "ingress"), ("kind", "connection")]));
}

// covers: A7b
#[test]
fn the_raw_port_is_open_to_its_range_only_and_keeps_half_close() {
    for half_close in [true, false] {
        let node = Node::with(Plan { half_close, ..Plan::default() });
        node.guest(A).serve(|mut link, app| {
            let Ok(all) = link.rest() else { return };
            if !all.is_empty() {
                app.saw(&String::from_utf8_lossy(&all));
                // Only after the end of the caller's side: half-close came through.
                link.send(b"answer after end");
                link.finish();
            }
        });
        let to = format!("{}:{RAW}", node.ip(21));
        let refused = data::dial(&node.ip(50), &to).and_then(|mut tcp| {
            tcp.write_all(b"hello")?;
            tcp.read(&mut [0; 8])
        });
        assert!(!matches!(refused, Ok(1..)), "{refused:?}");
        let mut tcp = data::dial(&node.ip(99), &to).expect("connected");
        tcp.write_all(&vec![b'x'; 300_000]).expect("sent");
        tcp.shutdown(Shutdown::Write).expect("ended");
        let mut answer = String::new();
        tcp.read_to_string(&mut answer).expect("a good end");
        assert_eq!(answer, "answer after end");
        assert_eq!(node.guest(A).app.seen()[0].len(), 300_000);
        node.audited_once(|line| is(line, &[("direction", "ingress"), ("reason", "no_grant")]));
        node.audited_once(|line| is(line, &[("kind", "open"), ("direction", "ingress")]));
        let close = node.audited_once(|line| is(line, &[("kind", "close"), ("direction", "ingress")]));
        assert!(
            is(&close, &[("close", "done")]) && close["bytes_in"] == 300_000 && close["bytes_out"] == 16,
            "{close}"
        );
    }
}

// covers: A7b
#[test]
fn an_answer_that_is_not_one_message_becomes_502_and_its_connection_is_not_used_again() {
    let node = Node::start();
    for bad in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nab",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: evil\r\n\r\n",
        "this is not HTTP at all\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello",
        "",
    ] {
        node.guest(A).serve(move |mut link, app| {
            if let Ok(request) = read_request(&mut link) {
                app.saw(&request);
                link.send(bad);
                // An empty answer is an end; all others keep the connection open, as if another request could come.
                if !bad.is_empty() {
                    let _ = link.rest();
                }
            }
        });
        // A certificate of its own each time: what an earlier round left in the pool is not for this caller.
        let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
        let answer = tls.ask(ORDER);
        assert_eq!(answer.status, 502, "{bad:?}: {answer:?}");
        node.guest(A).serve(data::polite);
        let answer = tls.ask(ORDER);
        assert!(answer.status == 200 && answer.text().starts_with("GET "), "after {bad:?}: {answer:?}");
    }
}

// covers: A7b
#[test]
fn a_pooled_connection_with_bytes_too_many_is_never_used_again() {
    let node = Node::start();
    let x = node.svid("x");
    node.guest(A).serve(|mut link, app| {
        let mut first = true;
        while let Ok(request) = read_request(&mut link) {
            app.saw(&request);
            if !std::mem::replace(&mut first, false) {
                app.connections.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
            // T16: a second answer that nobody asked for waits for the next caller.
            link.send(
                "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmineHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison",
            );
        }
    });
    let mut tls = node.call(Some(&x), HTTPS).expect("connected");
    for _ in 0..10 {
        let answer = tls.ask(ORDER);
        assert_eq!((answer.status, answer.text().as_str()), (200, "mine"));
    }
    let reused = node.guest(A).app.connections.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(reused, 0, "a poisoned connection carried another request");
}

// covers: A7b, C14.28
#[test]
fn an_answer_that_overtakes_its_request_ends_its_connection() {
    let node = Node::start();
    let x = node.svid("x");
    node.guest(A).serve(|mut link, app| {
        // Answers as soon as the head is there, and reads the rest as whatever it is.
        let Ok(head) = data::read_head(&mut link) else { return };
        app.saw(&head);
        link.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly");
        while let Ok(next) = data::read_head(&mut link) {
            let is_fresh = next.starts_with("GET ") || next.starts_with("POST ");
            app.saw(&if is_fresh { next } else { format!("SMUGGLED {next}") });
            link.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}",
                if is_fresh { "early" } else { "evil!" }
            ));
        }
    });
    for _ in 0..5 {
        let mut tls = node.call(Some(&x), HTTPS).expect("connected");
        tls.send("POST /v1/orders/1 HTTP/1.1\r\nHost: service-a.t.nova\r\nContent-Length: 200000\r\n\r\nstart");
        assert_eq!(tls.answer().expect("an answer").text(), "early");
        let mut other = node.call(Some(&x), HTTPS).expect("connected");
        assert_eq!(other.ask(ORDER).text(), "early");
    }
    let seen = node.guest(A).app.seen();
    assert!(!seen.iter().any(|head| head.starts_with("SMUGGLED")), "{seen:?}");
    assert_eq!(seen.len(), 10);
}

// covers: A7b
#[test]
fn what_http_allows_passes_unchanged() {
    let node = Node::start();
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    node.guest(A).serve(|mut link, app| {
        while let Ok(request) = read_request(&mut link) {
            app.saw(&request);
            let answer = match request.split(' ').nth(1).expect("a target") {
                "/v1/orders/head" => "HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n".to_owned(),
                "/v1/orders/204" => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
                "/v1/orders/304" => "HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\nETag: \"e\"\r\n\r\n".to_owned(),
                "/v1/orders/interim" => {
                    "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
                        .to_owned()
                }
                "/v1/orders/chunked?q=1" => {
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n".to_owned()
                }
                "/v1/orders/empty" => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
                other => format!("HTTP/1.1 500 unexpected {other}\r\nContent-Length: 0\r\n\r\n"),
            };
            link.send(answer);
        }
    });
    let get = |target: &str| format!("GET /v1/orders/{target} HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n");
    tls.send("HEAD /v1/orders/head HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n");
    let head = data::read_answer_to(&mut tls, true).expect("an answer");
    assert_eq!((head.status, head.header("content-length").as_deref()), (200, Some("1234")));
    assert_eq!(tls.ask(get("204")).status, 204);
    let not_modified = tls.ask(get("304"));
    assert_eq!((not_modified.status, not_modified.header("etag").as_deref()), (304, Some("\"e\"")));
    assert_eq!(tls.ask(get("interim")).text(), "ok");
    assert_eq!(tls.ask(get("chunked?q=1")).text(), "abcde");
    assert_eq!(tls.ask(get("empty")).text(), "");
    drop(tls);
    let lines =
        node.audited(6, |line| is(line, &[("kind", "request"), ("direction", "ingress"), ("verdict", "allow")]));
    assert!(lines.iter().all(|line| line["close"] == "done"), "{lines:#?}");
    assert!(lines.iter().all(|line| !line["path"].as_str().expect("a path").contains('?')));
}

// covers: A7b
#[test]
fn big_bodies_pass_both_ways_and_continue_is_asked_for() {
    for half_close in [true, false] {
        let node = Node::with(Plan { half_close, ..Plan::default() });
        let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
        node.guest(A).serve(|mut link, app| {
            while let Ok(request) = read_request(&mut link) {
                let body = request.split_once("\r\n\r\n").expect("a head").1.to_owned();
                app.saw(&format!("{} bytes", body.len()));
                link.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
            }
        });
        let body = "0123456789abcdef".repeat(512 * 1024);
        tls.send(format!(
            "POST /v1/orders/1 HTTP/1.1\r\nHost: service-a.t.nova\r\nContent-Length: {}\r\nExpect: 100-continue\r\n\r\n",
            body.len()
        ));
        let interim = in_time("100-continue", move || {
            let head = data::read_head(&mut tls).expect("an interim answer");
            (head, tls)
        });
        assert!(interim.0.starts_with("HTTP/1.1 100"), "{}", interim.0);
        let mut tls: Tls = interim.1;
        tls.send(&body);
        let answer = tls.answer().expect("an answer");
        assert_eq!((answer.status, answer.body.len()), (200, body.len()));
        assert!(answer.body == body.as_bytes());
        let line = node.audited_once(|line| is(line, &[("kind", "request"), ("direction", "ingress")]));
        assert!(line["bytes_in"] == body.len() && line["bytes_out"] == body.len(), "{line}");
    }
}

// covers: A7b
#[test]
fn an_offer_of_h2c_is_ignored_and_a_websocket_that_no_rule_grants_is_refused() {
    let node = Node::start();
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    for (protocol, status) in [("h2c", 200), ("websocket", 403), ("TLS/1.0", 200)] {
        let answer = tls.ask(format!(
            "GET /v1/orders/1 HTTP/1.1\r\nHost: service-a.t.nova\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
        ));
        assert_eq!(answer.status, status, "{protocol}: {answer:?}");
    }
    assert_eq!(tls.ask(ORDER).status, 200);
    let seen = node.guest(A).app.seen().join("").to_ascii_lowercase();
    assert!(!seen.contains("upgrade"), "{seen}");
    // The end comes in good order: the server says close_notify when the caller asks to close.
    tls.send("GET /v1/orders/1 HTTP/1.1\r\nHost: service-a.t.nova\r\nConnection: close\r\n\r\n");
    assert_eq!(read_answer(&mut tls).expect("an answer").status, 200);
    assert_eq!(tls.read(&mut [0; 16]).expect("a good end"), 0);
}

// covers: A7b
#[test]
fn a_partner_is_let_in_under_its_own_name_and_a_wrapped_stream_keeps_its_end() {
    let node = Node::start();
    let partner = issue(&node.partner, "spiffe://partner/billing", "billing.partner.test");
    let answer = node.call(Some(&partner), HTTPS).expect("connected").ask(ORDER);
    assert_eq!(answer.status, 200, "{answer:?}");
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("peer_ca", "partner-ca")]));
    assert!(is(&line, &[("rule", "partner-to-a"), ("peer", "spiffe://partner/billing")]), "{line}");
    node.guest(A).serve(|mut link, _| {
        if let Ok(all) = link.rest()
            && !all.is_empty()
        {
            link.send(all);
            link.finish();
        }
    });
    let mut tls = node.call(Some(&node.svid("x")), 7443).expect("connected");
    tls.send(b"to the end");
    tls.close_notify();
    let mut back = Vec::new();
    tls.read_to_end(&mut back).expect("a good end");
    assert_eq!(back, b"to the end");
    // The partner has no grant for that port.
    let mut tls = node.call(Some(&partner), 7443).expect("connected");
    let _ = tls.write_all(b"x");
    assert!(!matches!(tls.read(&mut [0; 8]), Ok(1..)));
}

// covers: A7b
#[test]
fn a_connection_whose_request_was_overtaken_by_its_answer_is_not_reusable() {
    let mut exchange = Exchange::new(Limits::default());
    let request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nfirst";
    assert_eq!(exchange.requests(request), Ok(request.len()));
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    assert_eq!(exchange.answers(answer), Ok(answer.len()));
    assert!(!exchange.is_reusable());
    // Also once the rest has gone out: the app may have taken it for the next request.
    assert_eq!(exchange.requests(b"other"), Ok(5));
    assert!(!exchange.is_reusable());
}
