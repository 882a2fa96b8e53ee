//! A published bundle takes effect on what is open; a broken one on nothing.

mod data;

use std::io::{Read, Write};
use std::time::Duration;

use data::{A, HTTPS, Node, RAW, RULES, Upstream, X, is, read_answer, read_head, read_request, until};

/// A destination that answers with a head and one piece, then waits for its caller to go.
fn endless(address: &str) -> Upstream {
    Upstream::start(address, |mut stream| {
        if read_request(&mut stream).is_ok() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\npiece\r\n");
            let _ = stream.read(&mut [0; 16]);
        }
    })
}

// covers: A5c
// covers: R11
#[test]
fn a_revoked_grant_ends_what_is_open_under_it_and_nothing_else() {
    let node = Node::start();
    let _plain = endless(&format!("{}:8080", node.ip(80)));
    let _tcp = Upstream::start(&format!("{}:5432", node.ip(80)), |mut stream| drop(stream.read(&mut [0; 16])));
    // An endless answer of the app on one ingress connection, an idle one beside it, a raw one.
    node.guest(A).serve(|mut link, app| {
        if link.target == "15432" {
            return drop(link.rest());
        }
        while let Ok(request) = read_request(&mut link) {
            app.saw(&request);
            if request.contains("/endless") {
                link.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\npiece\r\n");
            } else {
                link.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
        }
    });
    let x = node.svid("x");
    let mut busy = node.call(Some(&x), HTTPS).expect("connected");
    busy.send("GET /v1/orders/endless HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(read_head(&mut busy).expect("a head").starts_with("HTTP/1.1 200"));
    let mut idle = node.call(Some(&x), HTTPS).expect("connected");
    assert_eq!(idle.ask("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    let mut raw = data::dial(&node.ip(99), &format!("{}:{RAW}", node.ip(21))).expect("connected");
    raw.write_all(b"x").expect("sent");
    let mut tunnel = node.proxy(X);
    tunnel.send("CONNECT tcp.test:5432 HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(read_head(&mut tunnel).expect("a head").starts_with("HTTP/1.1 200"));
    let mut download = node.proxy(X);
    download.send("GET http://plain.test:8080/ HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(read_head(&mut download).expect("a head").starts_with("HTTP/1.1 200"));
    node.audited(2, |line| is(line, &[("kind", "open")]));

    // A bundle that grants all of it once more cuts nothing.
    node.publish(RULES);
    assert_eq!(idle.ask("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    assert_eq!(node.connections().len(), 5, "{:#?}", node.connections());

    let keep = "rules:\n  - {id: b-to-a, tenant: t, from: {workload: b}, to: {workload: service-a, port: https}}\n";
    node.publish(keep);
    tunnel.wait_closed();
    download.wait_closed();
    assert!(!matches!(raw.read(&mut [0; 8]), Ok(1..)));
    let cut = busy.read_to_end(&mut Vec::new());
    assert!(cut.is_err(), "an answer that was cut does not look whole: {cut:?}");
    assert!(!matches!(idle.read(&mut [0; 8]), Ok(1..)));
    until("nothing is left open", || node.connections().is_empty());
    let revoked = node.audited(8, |line| is(line, &[("close", "policy_revoked")]));
    let kinds: Vec<_> = revoked.iter().map(|line| (&line["direction"], &line["kind"])).collect();
    for wanted in [
        ("egress", "close"),
        ("egress", "request"),
        ("egress", "connection"),
        ("ingress", "request"),
        ("ingress", "close"),
        ("ingress", "connection"),
    ] {
        assert!(
            kinds.iter().any(|(direction, kind)| **direction == *wanted.0 && **kind == *wanted.1),
            "{wanted:?}: {kinds:?}"
        );
    }
}

// covers: A5b
#[test]
fn a_broken_bundle_changes_nothing() {
    let node = Node::start();
    let _plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    let mut link = node.proxy(X);
    let ask = "GET http://plain.test:8080/ HTTP/1.1\r\nHost: x\r\n\r\n";
    link.send(ask);
    assert_eq!(read_answer(&mut link).expect("an answer").status, 200);
    let none = "rules:\n  - {id: b-to-a, tenant: t, from: {workload: b}, to: {workload: service-a, port: https}}\n";
    let good = node.bundle(50, none);
    let mut flipped = good.clone();
    let at = flipped.len() / 2;
    flipped[at] ^= 1;
    let broken = [good[..good.len() * 6 / 10].to_vec(), Vec::new(), b"not a bundle".to_vec(), flipped];
    for bytes in &broken {
        let failures = |answer: serde_json::Value| {
            answer["failures"]
                .as_object()
                .map_or(0, |all| all.values().filter_map(serde_json::Value::as_u64).sum::<u64>())
        };
        let status = || node.ask(&serde_json::json!({"op": "policy"})).expect("an answer");
        let before = failures(status());
        node.put_bundle(bytes);
        until("the bundle is refused", || failures(status()) > before);
        link.send(ask);
        assert_eq!(read_answer(&mut link).expect("an answer").status, 200);
    }
    node.put_bundle(&good);
    until("the good one is taken", || {
        let mut link = node.proxy(X);
        link.send(ask);
        read_answer(&mut link).is_ok_and(|answer| answer.status == 403)
    });
}

// covers: A5c
#[test]
fn a_grant_that_is_revoked_while_its_destination_is_dialled_opens_nothing() {
    let node = Node::start();
    // The callee's handshake hangs: the supervisor dials, and waits for a server that says nothing.
    let hanging = std::net::TcpListener::bind(format!("{}:9443", node.ip(80))).expect("bound");
    let rules = RULES.replace(
        "port: 9443, ca: web-ca, addresses: [NET.80/32]}\n    http: {methods: [GET, POST], paths: ['/v1/**']}",
        "port: 9443, ca: web-ca, addresses: [NET.80/32]}\n    tls: originate",
    );
    assert_ne!(rules, RULES);
    node.publish(&rules);
    let mut link = node.proxy(X);
    link.send("CONNECT api.test:9443 HTTP/1.1\r\nHost: x\r\n\r\n");
    let (stream, _) = hanging.accept().expect("dialled");
    node.publish(&rules.replace(
        "- id: x-to-api\n    tenant: t\n    from: {workload: x}",
        "- id: x-to-api\n    tenant: t\n    from: {workload: b}",
    ));
    // Only now the server answers, and well.
    let config = data::server_config(&data::issue(&node.web, "spiffe://web/api", "api.test"));
    std::thread::spawn(move || {
        let server = rustls::ServerConnection::new(config).expect("a server");
        let mut tls = rustls::StreamOwned::new(server, stream);
        let _ = tls.write_all(b"secret of a destination that x may not reach");
        let _ = tls.read(&mut [0; 16]);
    });
    link.stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    let mut got = Vec::new();
    let _ = link.read_to_end(&mut got);
    assert!(!String::from_utf8_lossy(&got).contains("secret"), "{}", String::from_utf8_lossy(&got));
    node.audited_once(|line| is(line, &[("kind", "close"), ("direction", "egress"), ("close", "policy_revoked")]));
}

/// Two destinations: every rule of the one only audits; of the other, one does not.
const AUDITED: &str = "
rules:
  - id: audited
    tenant: t
    audit: true
    from: {workload: x}
    to: {external: plain.test, port: 8080, addresses: [NET.80/32]}
    http: {methods: [GET], paths: ['/v1/**']}
    tls: none
  - id: half-audited
    tenant: t
    audit: true
    from: {workload: x}
    to: {external: plain.test, port: 8081, addresses: [NET.80/32]}
    http: {methods: [GET], paths: ['/v1/**']}
    tls: none
  - id: strict
    tenant: t
    from: {workload: x}
    to: {external: plain.test, port: 8081, addresses: [NET.80/32]}
    http: {methods: [GET], paths: ['/v2/**']}
    tls: none
";

// covers: B10a
#[test]
fn a_miss_passes_in_audit_mode_only_where_every_rule_audits_and_never_as_bytes() {
    let node = Node::with(data::Plan { rules: AUDITED.to_owned(), ..data::Plan::default() });
    let audited = Upstream::http(&format!("{}:8080", node.ip(80)));
    let strict = Upstream::http(&format!("{}:8081", node.ip(80)));
    let mut link = node.proxy(X);
    let mut ask = |method: &str, target: &str| {
        link.send(format!("{method} http://{target} HTTP/1.1\r\nHost: x\r\n\r\n"));
        read_answer(&mut link).expect("an answer").status
    };
    assert_eq!(ask("DELETE", "plain.test:8081/v1/a"), 403, "one rule of the pair is in earnest");
    assert_eq!(ask("DELETE", "plain.test:8082/v1/a"), 403, "no rule names the pair");
    assert_eq!(ask("GET", "plain.test:8080/v1/a"), 200);
    assert_eq!(ask("DELETE", "plain.test:8080/v9/b"), 200, "a miss that is only logged");
    // Bytes that nobody can read are no miss of a rule that looks at requests.
    let mut tunnel = node.proxy(X);
    tunnel.send("CONNECT plain.test:8080 HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(read_head(&mut tunnel).expect("a head").starts_with("HTTP/1.1 200"));
    tunnel.send([0x16, 3, 1, 0, 0]);
    tunnel.wait_closed();
    node.audited_once(|line| is(line, &[("verdict", "deny"), ("reason", "needs_opaque_grant")]));
    let passed = node.audited_once(|line| is(line, &[("verdict", "would_deny")]));
    assert!(is(&passed, &[("reason", "would_deny"), ("method", "DELETE"), ("path", "/v9/b")]), "{passed}");
    assert!(passed["credential"].is_null() && passed["revision"] == "node-1@1", "{passed}");
    node.audited_once(|line| is(line, &[("verdict", "deny"), ("reason", "l7_mismatch"), ("path", "/v1/a")]));
    node.audited_once(|line| is(line, &[("verdict", "deny"), ("reason", "no_grant")]));
    assert_eq!(audited.seen().len(), 2, "{:?}", audited.seen());
    assert!(strict.seen().is_empty());
}
