//! Calls that care what carries them: gRPC, WebSockets, secrets, and calls between workloads. Judged by what the other side
//! received, and on which connection.

mod credentials_support;
mod data;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use credentials_support::BEARER;
use data::h2::{Event, GOAWAY, H2, REFUSED_STREAM, Reply, find};
use data::secure::{Connection, Host, TlsServer, speaks};
use data::{A, App, HTTPS, Link, Node, Plan, RULES, Shared, X, is, issue, read_answer, read_head, until};
use nova_proto::ids::SpiffeId;
use nova_supervisor::identity::{DevCa, Issued};

const GET: &str = "/orders.v1.Orders/Get";
const HOUR: Duration = Duration::from_secs(3600);
const H2_FIRST: &[&str] = &["h2", "http/1.1"];

/// HTTP/2 inside a tunnel of x.
fn tunnel(node: &Node, authority: &str) -> H2<Link> {
    let mut link = node.proxy(X);
    link.send(format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n"));
    assert!(read_head(&mut link).expect("an answer").starts_with("HTTP/1.1 200"));
    H2::client(link)
}

fn head<'a>(method: &'a str, authority: &'a str, path: &'a str) -> Vec<(&'a str, &'a str)> {
    let mut fields = vec![(":method", method), (":scheme", "http"), (":authority", authority), (":path", path)];
    if method == "POST" {
        fields.extend([("content-type", "application/grpc"), ("te", "trailers"), ("grpc-timeout", "5S")]);
    }
    fields
}

fn certificate(node: &Node) -> Issued {
    issue(&node.web, "spiffe://web/api", "api.test")
}

fn rule(port: u16, more: &str) -> String {
    format!(
        "  - id: x-to-{port}\n    tenant: t\n    from: {{workload: x}}\n    to: {{external: api.test, port: {port}, ca: web-ca, \
         addresses: [NET.80/32]}}\n    {more}\n"
    )
}

/// Sends every message back as it comes, and a status at the end.
fn echo<S: Read + Write>(h2: &mut H2<S>, event: Event) {
    match event {
        Event::Headers { stream, end: false, .. } => {
            h2.headers(stream, &[(":status", "200"), ("content-type", "application/grpc")], false);
        }
        Event::Headers { stream, end: true, .. } => {
            h2.headers(stream, &[(":status", "200"), ("grpc-status", "5"), ("grpc-message", "no%20such")], true);
        }
        Event::Data { stream, bytes, end } => {
            h2.data(stream, &bytes, false);
            if end {
                h2.headers(stream, &[("grpc-status", "0"), ("x-detail-bin", "AAE=")], true);
            }
        }
        _ => {}
    }
}

/// A call whose both sides talk in turn, and one that is answered by trailers alone.
fn talk(h2: &mut H2<Link>, authority: &str, stream: u32) {
    h2.headers(stream, &head("POST", authority, GET), false);
    let event = h2.event().expect("the head comes before any message");
    assert!(matches!(event, Event::Headers { end: false, .. }), "{event:?}");
    for turn in 0..4 {
        let message = format!("turn {turn}").into_bytes();
        h2.data(stream, &message, false);
        assert_eq!(h2.event().expect("an echo"), Event::Data { stream, bytes: message, end: false });
    }
    h2.data(stream, b"last", true);
    let reply = h2.reply(stream);
    let trailers = if reply.trailers.is_empty() { &reply.fields } else { &reply.trailers };
    assert_eq!((find(trailers, "grpc-status"), find(trailers, "x-detail-bin")), (Some("0"), Some("AAE=")), "{reply:?}");
    h2.headers(stream + 2, &head("POST", authority, GET), true);
    let Reply { fields, trailers, body, .. } = h2.reply(stream + 2);
    assert_eq!((find(&fields, "grpc-status"), find(&fields, "grpc-message")), (Some("5"), Some("no%20such")));
    assert!(trailers.is_empty() && body.is_empty());
}

// covers: D5h
#[test]
fn grpc_of_an_app_reaches_a_host_outside_with_both_directions_and_trailers() {
    let rules = format!("{RULES}{}", rule(9444, "grpc: {services: [orders.v1.Orders], methods: [Get]}"));
    let node = Node::with(Plan { rules, ..Plan::default() });
    let config = speaks(&certificate(&node), H2_FIRST);
    let host = Host::start(&format!("{}:9444", node.ip(80)), config, |connection, tls| {
        let Ok(mut h2) = H2::server(tls) else { return };
        while let Ok(event) = h2.event() {
            if let Event::Headers { fields, .. } = &event {
                connection.saw_fields(fields);
            }
            echo(&mut h2, event);
        }
    });
    let mut h2 = tunnel(&node, "api.test:9444");
    talk(&mut h2, "api.test:9444", 1);
    talk(&mut h2, "api.test:9444", 5);
    let seen = host.log.all();
    assert_eq!((seen.len(), host.upstream.accepted()), (4, 1));
    for seen in &seen {
        let path = format!(":path: {GET}");
        let wanted = [":method: POST", ":scheme: https", ":authority: api.test:9444", &path, "te: trailers"];
        assert!(wanted.iter().all(|line| seen.has(line)), "{seen:?}");
        assert!(seen.alpn == "h2" && seen.has("grpc-timeout: 5S"), "{seen:?}");
    }
    // What no rule grants is a status of gRPC, and nothing of it arrives.
    h2.headers(9, &head("POST", "api.test:9444", "/orders.v1.Orders/Delete"), true);
    let denied = h2.reply(9);
    assert_eq!((denied.status(), denied.get("grpc-status")), (200, Some("7")), "{denied:?}");
    assert_eq!(host.log.all().len(), 4);
    node.audited(4, |line| is(line, &[("kind", "request"), ("direction", "egress"), ("rule", "x-to-9444")]));
}

// covers: D5b
// covers: D5h
#[test]
fn grpc_between_workloads_is_http2_all_the_way_with_both_identities() {
    let plan = Plan::default();
    let https = "      - {name: https, port: 8443, target_port: 18080, mode: mtls, protocol: http}\n      - {name: raw";
    let rpc = "      - {name: rpc, port: 50051, target_port: 18051, mode: mtls, protocol: grpc}\n";
    let granted = "  - id: x-to-a-rpc\n    tenant: t\n    from: {workload: x}\n    to: {workload: service-a, port: rpc}\n    \
                   grpc: {services: [orders.v1.Orders], methods: [Get]}\n";
    let node = Node::with(Plan {
        endpoints: plan.endpoints.replacen(https, &format!("{rpc}{https}"), 1),
        rules: format!("{RULES}{granted}"),
        ..plan
    });
    node.guest(A).serve(|link, app: &App| {
        // The check of the app's health connects and says nothing.
        let Ok(mut h2) = H2::server(link) else { return };
        app.connections.fetch_add(1, Ordering::SeqCst);
        while let Ok(event) = h2.event() {
            if let Event::Headers { fields, .. } = &event {
                app.saw(&format!("{fields:?}"));
            }
            echo(&mut h2, event);
        }
    });
    let mut h2 = tunnel(&node, "service-a.t.nova:50051");
    talk(&mut h2, "service-a.t.nova:50051", 1);
    talk(&mut h2, "service-a.t.nova:50051", 5);
    let app = &node.guest(A).app;
    assert_eq!((app.seen().len(), app.connections.load(Ordering::SeqCst)), (4, 1));
    assert!(app.seen().iter().all(|seen| seen.contains("URI=spiffe://dev.invalid/t/t/w/x")), "{:#?}", app.seen());
    drop(h2);
    let both =
        |line: &serde_json::Value| is(line, &[("kind", "request"), ("rule", "x-to-a-rpc"), ("verdict", "allow")]);
    let lines = node.audited(8, both);
    assert_eq!(lines.iter().filter(|line| line["direction"] == "egress").count(), 4);
}

/// A host whose first `turning` connections turn each request away undone, by a reset or by GOAWAY.
fn host_that_turns_away(node: &Node, turning: usize, with_goaway: bool) -> Host {
    Host::start(&format!("{}:9443", node.ip(80)), speaks(&certificate(node), H2_FIRST), move |connection, tls| {
        let Ok(mut h2) = H2::server(tls) else { return };
        while let Ok(event) = h2.event() {
            let Event::Headers { stream, fields, .. } = event else { continue };
            connection.saw_fields(&fields);
            match (connection.number < turning, with_goaway) {
                (false, _) => h2.headers(stream, &[(":status", "204")], true),
                (true, false) => h2.reset(stream, REFUSED_STREAM),
                (true, true) => h2.send(GOAWAY, 0, 0, &[0; 8]),
            }
        }
    })
}

/// The status that a request of x gets, and what its line says.
fn ask_api(node: &Node, method: &str, more: &str) -> (u16, serde_json::Value) {
    let mut link = node.proxy(X);
    link.send(format!("{method} http://api.test:9443/v1/a HTTP/1.1\r\nHost: api.test:9443\r\n{more}"));
    let status = read_answer(&mut link).expect("an answer").status;
    drop(link);
    (status, node.audited_once(|line| is(line, &[("kind", "request"), ("path", "/v1/a")])))
}

// covers: D5h
#[test]
fn a_request_that_was_turned_away_undone_is_sent_once_more_on_another_connection() {
    for with_goaway in [false, true] {
        let node = Node::start();
        let host = host_that_turns_away(&node, 1, with_goaway);
        let (status, line) = ask_api(&node, "GET", "\r\n");
        assert_eq!(status, 204, "{with_goaway}");
        assert!(is(&line, &[("verdict", "allow"), ("close", "done")]) && line["status"] == 204, "{line}");
        assert_eq!(host.log.connections(), [0, 1], "{with_goaway}");
        let seen = host.log.all();
        assert_eq!((seen.len(), &seen[0].head), (2, &seen[1].head), "the same request");
    }
}

// covers: D5h
#[test]
fn a_request_is_not_sent_a_third_time_nor_again_once_some_of_its_body_may_be_read() {
    let node = Node::start();
    let host = host_that_turns_away(&node, usize::MAX, false);
    let (status, line) = ask_api(&node, "GET", "\r\n");
    assert_eq!((status, host.log.all().len()), (502, 2));
    assert!(is(&line, &[("verdict", "error"), ("reason", "upstream_closed")]), "{line}");
    let node = Node::start();
    let host = host_that_turns_away(&node, 1, false);
    let (status, _) = ask_api(&node, "POST", "Content-Length: 4\r\n\r\nbody");
    assert_eq!((status, host.log.all().len()), (502, 1));
}

// covers: D5d
#[test]
fn an_app_of_http2_is_understood_by_a_host_of_http1() {
    let node = Node::start();
    let host = Host::polite(&format!("{}:9443", node.ip(80)), speaks(&certificate(&node), &["http/1.1"]));
    let mut h2 = tunnel(&node, "api.test:9443");
    for stream in [1, 3] {
        let mut fields = head("GET", "api.test:9443", "/v1/a?b=c");
        fields.extend([("cookie", "a=1"), ("cookie", "b=2")]);
        h2.headers(stream, &fields, true);
        let reply = h2.reply(stream);
        assert_eq!((reply.status(), reply.text().as_str()), (200, "0"), "{reply:?}");
    }
    for seen in host.log.all() {
        let wanted = ["GET /v1/a?b=c HTTP/1.1", "host: api.test:9443", "cookie: a=1; b=2"];
        assert!(wanted.iter().all(|line| seen.has(line)) && !seen.head.contains(":authority"), "{seen:?}");
    }
}

// covers: C10b
#[test]
fn streams_of_an_app_to_a_host_of_http1_take_no_more_than_their_endpoints_share() {
    // Of 256 files an endpoint of three has 16 connections of its own, 48 that all share, and 10 spare descriptors.
    let node = Node::with(Plan { files: Some(256), ..Plan::default() });
    let silent = |connection: &Connection, mut tls: TlsServer| {
        connection.saw(read_head(&mut tls).unwrap_or_default());
        let _ = tls.read(&mut [0; 8]);
    };
    let host = Host::start(&format!("{}:9443", node.ip(80)), speaks(&certificate(&node), &["http/1.1"]), silent);
    let mut h2 = tunnel(&node, "api.test:9443");
    for stream in 0..100 {
        h2.headers(2 * stream + 1, &head("GET", "api.test:9443", "/v1/a"), true);
    }
    // One comes with the tunnel's own place, which is one of the 64.
    let fits = 1 + 10 + 63;
    for _ in fits..100 {
        while !matches!(h2.event().expect("a refusal"), Event::Headers { fields, .. } if find(&fields, ":status") == Some("503"))
        {
        }
    }
    until("the others are there", || host.log.all().len() == fits);
    node.audited(100 - fits, |line| is(line, &[("reason", "limit_process"), ("workload", "x"), ("kind", "request")]));
}

// covers: D5d
#[test]
fn a_websocket_is_offered_http1_alone_where_other_requests_go_in_http2() {
    let ws = rule(9445, "http: {methods: [GET], paths: ['/**']}\n    upgrade: [websocket]");
    let plain =
        rule(9446, "http: {methods: [GET], paths: ['/**']}").replace("9446", "9445").replace("x-to-9445", "x-to-other");
    let node = Node::with(Plan { rules: format!("{RULES}{ws}{plain}"), ..Plan::default() });
    let host = Host::start(&format!("{}:9445", node.ip(80)), speaks(&certificate(&node), H2_FIRST), serve_both);
    let ask = |path: &str, more: &str| {
        let mut link = node.proxy(X);
        link.send(format!("GET http://api.test:9445{path} HTTP/1.1\r\nHost: api.test:9445\r\n{more}\r\n"));
        link
    };
    assert_eq!(read_answer(&mut ask("/a", "")).expect("an answer").status, 200);
    let more = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let mut link = ask("/ws", more);
    assert_eq!(read_answer(&mut link).expect("an answer").status, 101);
    link.send("frame");
    let mut back = [0; 5];
    link.read_exact(&mut back).expect("an echo");
    assert_eq!(&back, b"frame");
    let alpn: Vec<_> = host.log.all().into_iter().map(|seen| seen.alpn).collect();
    assert_eq!(alpn, ["h2", "http/1.1"]);
}

/// One WebSocket that echoes in HTTP/1.1, polite answers in HTTP/2.
fn serve_both(connection: &Connection, mut tls: TlsServer) {
    if connection.alpn == "h2" {
        return data::secure::serve_h2(connection, tls, |_, _| vec![(":status", "200")]);
    }
    let Ok(request) = data::read_request(&mut tls) else { return };
    connection.saw(request.replace("\r\n", "\n"));
    let _ = tls.write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    let mut bytes = [0; 5];
    if tls.read_exact(&mut bytes).is_ok() {
        let _ = tls.write_all(&bytes);
    }
}

// covers: D5f
#[test]
fn a_secret_is_never_indexed_and_a_connection_carries_one_value_only() {
    let node = Node::with(credentials_support::plan());
    let who = issue(&node.web, "spiffe://web/bearer", "bearer.test");
    let marked: Shared<Vec<String>> = Arc::default();
    let noted = Arc::clone(&marked);
    let address = credentials_support::address(&node, "bearer");
    let host = Host::start(&address, speaks(&who, H2_FIRST), move |connection, tls| {
        let Ok(mut h2) = H2::server(tls) else { return };
        while let Ok(event) = h2.event() {
            let Event::Headers { stream, fields, .. } = event else { continue };
            connection.saw_fields(&fields);
            *noted.lock().expect("no panic") = h2.decoder.never.clone();
            h2.headers(stream, &[(":status", "204")], true);
        }
    });
    let request = credentials_support::get("bearer.test", "/v1/x", "");
    let mut link = node.proxy(X);
    for _ in 0..3 {
        assert_eq!(credentials_support::answer(&mut link, &request).status, 204);
    }
    let seen = host.log.all();
    let field = format!("authorization: Bearer {BEARER}");
    assert!(seen.iter().all(|seen| seen.connection == 0 && seen.has(&field)), "{seen:#?}");
    assert_eq!(*marked.lock().expect("no panic"), ["authorization"; 3]);
    credentials_support::put(node.dir.path(), "bearer", "another-value");
    until("the new value is sent", || {
        assert_eq!(credentials_support::answer(&mut link, &request).status, 204);
        host.log.all().last().is_some_and(|seen| seen.has("authorization: Bearer another-value"))
    });
    let is_old = |connection: usize| connection == 0;
    let seen = host.log.all();
    assert!(seen.iter().all(|seen| seen.has(&field) == is_old(seen.connection)), "{seen:#?}");
}

// covers: D5f
#[test]
fn connections_to_workloads_are_not_used_again_once_other_cas_are_trusted() {
    let node = Node::with(Plan {
        hosts: vec![("service-a.t.nova".to_owned(), "NET.70".to_owned())],
        identity: "federated = [{trust_domain = \"partner.example\", bundle = \"partner.pem\"}]\n".to_owned(),
        prepare: |dir, _| {
            let partner = DevCa::generate().expect("a CA");
            std::fs::write(dir.join("partner.pem"), partner.certificate_pem()).expect("written");
        },
        ..Plan::default()
    });
    let host = Host::polite(&format!("{}:{HTTPS}", node.ip(70)), speaks(&node.svid("service-a"), &[]));
    let mut link = node.proxy(X);
    let mut ask = || {
        link.send("GET http://service-a.t.nova:8443/v1/orders/1 HTTP/1.1\r\nHost: service-a.t.nova:8443\r\n\r\n");
        read_answer(&mut link).expect("an answer").text()
    };
    assert_eq!([ask(), ask()], ["0", "0"]);
    node.put("partner.pem", DevCa::generate().expect("a CA").certificate_pem().as_bytes());
    // Asked all the time, so that no connection is given up because it is idle.
    until("a new connection is used", || ask() != "0");
    assert_eq!([ask(), ask()], ["1", "1"]);
    assert_eq!(host.upstream.accepted(), 2);
}

/// A node whose SVIDs come from files.
fn with_files(prepare: fn(&Path, &DevCa)) -> Node {
    let plan = Plan::default();
    Node::with(Plan {
        endpoints: format!("trust_domain: prod.test\n{}", plan.endpoints),
        hosts: vec![("service-a.t.nova".to_owned(), "NET.70".to_owned())],
        identity: "source = \"files\"\ndir = \"svids\"\ntrust_domain = \"prod.test\"\n".to_owned(),
        prepare,
        ..plan
    })
}

fn put_svids(dir: &Path, ca: &DevCa) {
    fs::create_dir(dir.join("svids")).expect("made");
    fs::write(dir.join("svids/bundle.pem"), ca.certificate_pem()).expect("written");
    ["x", "service-a", "b"].iter().for_each(|workload| put_svid(dir, ca, workload, HOUR));
}

// covers: D5f
#[test]
fn no_call_is_made_with_an_svid_that_has_ended_not_even_on_a_connection_of_before() {
    let node = with_files(|dir, ca| {
        put_svids(dir, ca);
        put_svid(dir, ca, "x", Duration::from_secs(6));
    });
    let end = SystemTime::now() + Duration::from_secs(6);
    let who = issue(&node.ca, "spiffe://prod.test/t/t/w/service-a", "service-a.t.nova");
    let host = Host::polite(&format!("{}:{HTTPS}", node.ip(70)), speaks(&who, &[]));
    let ask = |link: &mut Link| {
        link.send("GET http://service-a.t.nova:8443/v1/orders/1 HTTP/1.1\r\nHost: service-a.t.nova:8443\r\n\r\n");
        read_answer(link).expect("an answer")
    };
    let mut link = node.proxy(X);
    let refused = loop {
        let now = SystemTime::now();
        let answer = ask(&mut link);
        if answer.status != 200 {
            break answer;
        }
        assert!(now < end, "served {:?} too late", now.duration_since(end));
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(refused.status, 503, "{refused:?}");
    let id = refused.decision_id();
    let line = node.audited_once(|line| is(line, &[("decision_id", &id), ("kind", "request")]));
    assert!(is(&line, &[("reason", "endpoint_not_ready")]), "{line}");
    let served = host.log.all().len();
    assert!(served > 1 && host.log.connections().iter().all(|connection| *connection == 0), "{:?}", host.log.all());
    // A renewed one goes on.
    put_svid(node.dir.path(), &node.ca, "x", HOUR);
    until("it is used", || ask(&mut node.proxy(X)).status == 200);
}

// covers: D5f
#[test]
fn a_new_svid_is_used_on_connections_of_its_own() {
    let node = with_files(put_svids);
    let who = issue(&node.ca, "spiffe://prod.test/t/t/w/service-a", "service-a.t.nova");
    let host = Host::polite(&format!("{}:{HTTPS}", node.ip(70)), speaks(&who, &[]));
    let mut link = node.proxy(X);
    let mut ask = || {
        link.send("GET http://service-a.t.nova:8443/v1/orders/1 HTTP/1.1\r\nHost: service-a.t.nova:8443\r\n\r\n");
        read_answer(&mut link).expect("an answer").text()
    };
    assert_eq!([ask(), ask()], ["0", "0"]);
    put_svid(node.dir.path(), &node.ca, "x", HOUR);
    until("a new connection is used", || ask() != "0");
    assert_eq!([ask(), ask()], ["1", "1"]);
    assert_eq!(host.upstream.accepted(), 2);
}

// covers: D5f
#[test]
fn a_connection_of_one_rule_carries_nothing_of_another_that_believes_another_ca() {
    let of = |id: &str, host: &str, ca: &str, path: &str| {
        format!(
            "  - id: {id}\n    tenant: t\n    from: {{workload: x}}\n    to: {{external: '{host}', port: 9443, ca: {ca}, \
             addresses: [NET.80/32]}}\n    http: {{methods: [GET], paths: ['{path}']}}\n"
        )
    };
    // Rules of one destination agree; one of a wildcard above it need not.
    let believes = of("believes", "api.host.test", "web-ca", "/v1/**");
    let doubts = of("doubts", "*.host.test", "partner-ca", "/v2/**");
    let node = Node::with(Plan {
        rules: format!("{RULES}{believes}{doubts}"),
        hosts: vec![("api.host.test".to_owned(), "NET.80".to_owned())],
        ..Plan::default()
    });
    let who = issue(&node.web, "spiffe://web/api", "api.host.test");
    let host = Host::polite(&format!("{}:9443", node.ip(80)), speaks(&who, H2_FIRST));
    let mut link = node.proxy(X);
    for (path, status) in [("/v1/a", 200), ("/v2/a", 502), ("/v1/b", 200)] {
        link.send(format!("GET http://api.host.test:9443{path} HTTP/1.1\r\nHost: api.host.test:9443\r\n\r\n"));
        assert_eq!(read_answer(&mut link).expect("an answer").status, status, "{path}");
    }
    assert!(host.log.all().iter().all(|seen| seen.has(":path: /v1/a") || seen.has(":path: /v1/b")));
}

// covers: D5f
#[test]
fn pods_of_one_workload_that_have_one_certificate_share_no_connection() {
    let plan = Plan::default();
    // The pod of b is another one of x.
    let (others, b) = plan.endpoints.split_at(plan.endpoints.find("  - workload_id: b\n").expect("a row"));
    let ports = "ports: [{name: https, port: 8443, target_port: 18080, mode: mtls, protocol: http}]";
    let second = b.replace("workload_id: b\n", "workload_id: x\n").replace(ports, "ports: []");
    let node = Node::with(Plan {
        rules: RULES[..RULES.find("  - id: b-to-plain").expect("a rule")].to_owned(),
        endpoints: format!("trust_domain: prod.test\n{others}{second}"),
        identity: "source = \"files\"\ndir = \"svids\"\ntrust_domain = \"prod.test\"\n".to_owned(),
        prepare: |dir, ca| {
            fs::create_dir(dir.join("svids")).expect("made");
            fs::write(dir.join("svids/bundle.pem"), ca.certificate_pem()).expect("written");
            ["x", "service-a"].iter().for_each(|workload| put_svid(dir, ca, workload, HOUR));
        },
        ..plan
    });
    let host = Host::polite(&format!("{}:9443", node.ip(80)), speaks(&certificate(&node), H2_FIRST));
    let ask = |pod: &str| {
        let mut link = node.proxy(pod);
        link.send("GET http://api.test:9443/v1/a HTTP/1.1\r\nHost: api.test:9443\r\n\r\n");
        read_answer(&mut link).map(|answer| answer.status).ok()
    };
    until("the second pod may call out", || ask(data::B) == Some(200));
    let before = host.log.all().len();
    // Each of the two threads serves each of the two pods.
    let pods = [X, X, data::B, data::B, X, X];
    assert!(pods.iter().all(|pod| ask(pod) == Some(200)));
    let from: Vec<_> = host.log.all().into_iter().skip(before).map(|seen| seen.from).collect();
    let wanted = pods.map(|pod| node.ip(if pod == X { 11 } else { 31 }));
    assert_eq!(from, wanted, "a call leaves with the address of its own pod");
}

/// A fresh pair of files. For a moment they do not match, and the pair of before stays in force.
fn put_svid(dir: &Path, ca: &DevCa, workload: &str, life: Duration) {
    let id = SpiffeId::new(format!("spiffe://prod.test/t/t/w/{workload}")).expect("an id");
    let issued = ca.issue(&id, &format!("{workload}.t.nova"), life).expect("issued");
    let files = [("key", issued.key_pem().to_string()), ("crt", issued.chain_pem())];
    for (kind, text) in files {
        let (file, beside) =
            (dir.join(format!("svids/{workload}.t.{kind}")), dir.join(format!("svids/{workload}.new")));
        fs::write(&beside, text).expect("written");
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).expect("set");
        fs::rename(beside, file).expect("renamed");
    }
}
