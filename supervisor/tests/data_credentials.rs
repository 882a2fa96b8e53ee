//! Credentials: put where the rule says, into what goes over verified TLS to its host, and into nothing else.

mod credentials_support;
mod data;

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use credentials_support::{
    ALL, BASIC, BEARER, FILLED, HEADER, address, answer, ask, bare, get, plan, post, put, requests, rules, upstream,
};
use data::{
    Link, Node, PATIENCE, Plan, Upstream, X, header, is, read_answer, read_head, read_request, server_config, token,
    until,
};
use rustls::{ServerConnection, StreamOwned};
use serde_json::json;

// covers: D9a
// covers: D9b
#[test]
fn each_form_puts_its_credential_in_its_place() {
    let node = Node::with(plan());
    let upstreams = ALL.map(|(name, ..)| (name, upstream(&node, name)));
    let own = "Authorization: Bearer own\r\nX-Api-Key: own\r\n";
    for (name, upstream) in &upstreams {
        let fields = if *name == "filled" { "Authorization: Token nova_credential_filled\r\n" } else { own };
        let answer = ask(&node, &get(&format!("{name}.test"), "/v1/x?a=b&key=own", fields));
        assert_eq!(answer.status, 200, "{name}: {answer:?}");
        let seen = upstream.seen().remove(0);
        let field = |field: &str| header(&seen, field).unwrap_or_default();
        let key = if *name == "header" { HEADER } else { "own" };
        match *name {
            "bearer" => assert_eq!(field("authorization"), format!("Bearer {BEARER}"), "{seen}"),
            "header" => assert_eq!((field("authorization").as_str(), field("x-api-key").as_str()), ("Bearer own", key)),
            "basic" => assert_eq!(field("authorization"), "Basic cm9ib3Q6YmFzaWMtdmFsdWUtODhlMWFh", "{seen}"),
            "query" => assert!(seen.starts_with("GET /v1/x?a=b&key=query-value-c0ffee%26%3D HTTP/1.1\r\n"), "{seen}"),
            "aws" | "db" => {
                assert!(field("authorization").starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"), "{seen}")
            }
            _ => assert_eq!(field("authorization"), format!("Token {FILLED}"), "{seen}"),
        }
        assert_eq!(seen.to_ascii_lowercase().matches("authorization:").count(), 1, "{seen}");
        let line = node.audited_once(|line| requests(line) && is(line, &[("dest_host", &format!("{name}.test"))]));
        assert!(is(&line, &[("verdict", "allow"), ("credential", name), ("path", "/v1/x")]), "{line}");
    }
    assert!(BASIC.starts_with("robot:"));
}

// covers: D9a
#[test]
fn a_credential_goes_by_every_way_out_that_carries_requests() {
    let node = Node::with(plan());
    let upstream = upstream(&node, "bearer");
    let inside = "GET /v1/x HTTP/1.1\r\nHost: bearer.test:9443\r\nAuthorization: Bearer own\r\n\r\n";
    let mut tunnel = node.proxy(X);
    tunnel.send("CONNECT bearer.test:9443 HTTP/1.1\r\nHost: bearer.test:9443\r\n\r\n");
    assert!(read_head(&mut tunnel).expect("a head").starts_with("HTTP/1.1 200"));
    let mut socks = node.proxy(X);
    socks.send([5, 1, 0]);
    socks.read_exact(&mut [0; 2]).expect("a choice");
    let name = b"bearer.test";
    socks.send([&[5, 1, 0, 3, u8::try_from(name.len()).expect("short")][..], name, &9443_u16.to_be_bytes()].concat());
    socks.read_exact(&mut [0; 10]).expect("a reply");
    let dependency = node.guest(X).dial(2, token(X), "bearer.test:9443");
    for mut link in [tunnel, socks, dependency] {
        assert_eq!(answer(&mut link, inside).status, 200);
    }
    assert_eq!(ask(&node, &get("bearer.test", "/v1/x", "")).status, 200);
    let seen = upstream.seen();
    assert_eq!(seen.len(), 4);
    for seen in seen {
        assert_eq!(header(&seen, "authorization").as_deref(), Some(&*format!("Bearer {BEARER}")), "{seen}");
    }
}

// covers: D9e, A12b
#[test]
fn placeholders_that_would_multiply_a_body_or_a_head_cost_no_memory_and_are_refused() {
    let with_a_long_value = |dir: &std::path::Path, ca: &nova_supervisor::identity::DevCa| {
        (plan().prepare)(dir, ca);
        put(dir, "filled", &"s".repeat(4096));
    };
    let node = Arc::new(Node::with(Plan { prepare: with_a_long_value, ..plan() }));
    let upstream = upstream(&node, "filled");
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid)).expect("it runs");
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a size");
        most.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    let before = resident();
    let json = "Content-Type: application/json\r\n";
    let asking: Vec<_> = (0..8)
        .map(|_| {
            let node = Arc::clone(&node);
            let request = post("filled.test", json, &"nova_credential_filled ".repeat(45_000));
            std::thread::spawn(move || ask(&node, &request).status)
        })
        .collect();
    assert!(asking.into_iter().all(|asked| asked.join().expect("no panic") == 403));
    let field = format!("Authorization: {}\r\n", "nova_credential_filled ".repeat(1000));
    assert_eq!(ask(&node, &get("filled.test", "/v1/x", &field)).status, 403);
    let query = format!("/v1/x?{}", "key=nova_credential_filled&".repeat(1000));
    assert_eq!(ask(&node, &get("filled.test", &query, "")).status, 403);
    let told = |detail: &'static str| move |line: &serde_json::Value| requests(line) && line["detail"] == detail;
    let lines = [node.audited(8, told("credential_body_size")), node.audited(2, told("credential_head_size"))].concat();
    assert!(
        lines.iter().all(|line| is(line, &[("verdict", "deny"), ("reason", "credential_unavailable")])),
        "{lines:#?}"
    );
    assert_eq!(upstream.accepted(), 0, "nothing was dialled");
    let after = resident();
    // Eight bodies as they came, twice while they are read; filled they would be 1.5 GiB.
    assert!(after < before + 64 * 1024, "{before} KiB before, {after} KiB at most");
}

// covers: D9c, D17i (F-EH04, T23)
#[test]
fn a_placeholder_that_goes_elsewhere_is_refused_with_the_text_of_every_denial_and_named_in_the_log() {
    let node = Node::with(plan());
    let upstreams = ["echo", "audit", "bearer", "filled"].map(|name| upstream(&node, name));
    let placeholder = "Authorization: Bearer nova_credential_filled\r\n";
    let denied = ask(&node, &get("nobody.test", "/v1/x", ""));
    let wanted = bare(&denied, "GET http://nobody.test:9443/v1/x");
    for (host, target, fields) in [
        // Another host, with a credential of its own, without one, in audit mode, and a workload.
        ("echo.test", "/v1/x", placeholder),
        ("bearer.test", "/v1/x", "X-Api-Key: nova_credential_filled\r\n"),
        ("audit.test", "/v1/x", placeholder),
        ("service-a.t.nova", "/v1/x", placeholder),
        // Its own host, but another place.
        ("filled.test", "/v1/botnova_credential_filled", ""),
        ("filled.test", "/v1/x?token=nova_credential_filled", ""),
        ("filled.test", "/v1/x", "X-Api-Key: nova_credential_filled\r\n"),
        // Names of nothing.
        ("echo.test", "/v1/x?a=nova%5Fcredential_", ""),
        ("filled.test", "/v1/x", "Authorization: Basic dTpub3ZhX2NyZWRlbnRpYWxfb3RoZXI=\r\n"),
    ] {
        let request = get(host, target, fields).replace("service-a.t.nova:9443", "service-a.t.nova:8443");
        let answer = ask(&node, &request);
        assert_eq!(answer.status, 403, "{host}{target}: {answer:?}");
        let url = request.split(' ').nth(1).and_then(|url| url.split('?').next()).expect("a target");
        assert_eq!(bare(&answer, &format!("GET {url}")), wanted, "{host}{target}");
    }
    let lines = node.audited(9, |line| requests(line) && is(line, &[("reason", "credential_not_granted")]));
    assert!(lines.iter().all(|line| is(line, &[("verdict", "deny"), ("detail", "placeholder")])), "{lines:#?}");
    assert_eq!(lines[0]["credential"], "filled");
    assert!(upstreams.iter().all(|upstream| upstream.accepted() == 0), "nothing was dialled");
    // The same name at another port is another destination.
    let other = get("filled.test", "/v1/x", placeholder).replace(":9443", ":9444");
    assert_eq!(ask(&node, &other).status, 403);
    node.audited_once(|line| is(line, &[("dest_host", "filled.test"), ("reason", "no_grant")]));
}

// covers: D9k, D17i (T23)
#[test]
fn a_pod_that_does_not_list_the_credential_gets_the_text_of_no_grant() {
    let plan = plan();
    let endpoints = plan.endpoints.replace("credentials: [bearer, ", "credentials: [");
    let node = Node::with(Plan { endpoints, ..plan });
    let upstream = upstream(&node, "bearer");
    let request = get("bearer.test", "/v1/x", "");
    let answer = ask(&node, &request);
    let none = ask(&node, &get("nobody.test", "/v1/x", ""));
    let (one, other) =
        (bare(&answer, "GET http://bearer.test:9443/v1/x"), bare(&none, "GET http://nobody.test:9443/v1/x"));
    assert_eq!((answer.status, &one), (403, &other));
    let line = node.audited_once(|line| is(line, &[("reason", "credential_not_granted"), ("kind", "request")]));
    assert!(is(&line, &[("detail", "credential_pod"), ("credential", "bearer"), ("rule", "to-bearer")]), "{line}");
    assert_eq!(upstream.accepted(), 0);
    let replayed = node.ask(&json!({"op": "replay", "decision_id": answer.decision_id()})).expect("an answer");
    assert!(is(&replayed["now"], &[("verdict", "deny"), ("reason", "credential_not_granted")]), "{replayed}");
    assert!(replayed["now"]["hint"].as_str().is_some_and(|hint| hint.contains("no pod of the workload")), "{replayed}");
    // novalet lists it: the next request passes, on a connection that was open before as well.
    let mut link = node.proxy(X);
    assert_eq!(credentials_support::answer(&mut link, &request).status, 403);
    node.edit_endpoint("x", "credentials: [", "credentials: [bearer, ");
    until("the pod may use it", || credentials_support::answer(&mut link, &request).status == 200);
    let asked = json!({"op": "explain_pair", "pair": "x -> bearer.test:9443 GET /v1/x"});
    let explained = node.ask(&asked).expect("an answer");
    assert!(is(&explained[0]["explanation"], &[("verdict", "allow"), ("credential", "bearer")]), "{explained}");
}

// covers: D9g
#[test]
fn a_changed_file_is_used_without_a_restart_and_on_connections_of_its_own() {
    let node = Node::with(plan());
    let upstream = upstream(&node, "bearer");
    let value = || {
        let answer = ask(&node, &get("bearer.test", "/v1/x", ""));
        let sent = upstream.seen().pop().and_then(|seen| header(&seen, "authorization"));
        (answer.status, sent.unwrap_or_default())
    };
    assert_eq!(value(), (200, format!("Bearer {BEARER}")));
    put(node.dir.path(), "bearer", "rotated-value");
    // Asked all the time, so that the connection of before would be there to be used again.
    until("the new value goes out", || value().1 == "Bearer rotated-value");
    assert!(upstream.accepted() >= 2, "the new value has a connection of its own");
    // A value that cannot be used changes nothing, and the operator is told.
    put(node.dir.path(), "bearer", "two\r\nX-Evil: 1");
    until("it is reported", || node.warnings().contains("credential bearer: the old value stays in force"));
    assert_eq!(value().1, "Bearer rotated-value");
    std::fs::remove_file(node.dir.path().join("secrets/bearer")).expect("removed");
    until("what is gone is not used", || value().0 == 403);
    let unavailable = || node.audit().into_iter().rfind(|line| line["reason"] == "credential_unavailable");
    until("it is recorded", || unavailable().is_some());
    let line = unavailable().expect("a line");
    assert!(is(&line, &[("detail", "credential_missing"), ("credential", "bearer")]), "{line}");
    let seen = upstream.seen();
    assert!(seen.iter().all(|seen| !seen.contains("Evil")), "{seen:?}");
}

// covers: D9a
#[test]
fn nothing_is_sent_to_a_destination_that_does_not_prove_its_name() {
    let node = Node::with(plan());
    let stranger = nova_supervisor::identity::DevCa::generate().expect("a CA");
    let who = data::issue(&stranger, "spiffe://web/bearer", "bearer.test");
    let wrong = Upstream::https(&address(&node, "bearer"), &who);
    assert_eq!(ask(&node, &get("bearer.test", "/v1/x", "")).status, 502);
    node.audited_once(|line| is(line, &[("reason", "upstream_identity"), ("credential", "bearer")]));
    assert!(wrong.seen().is_empty());
}

// covers: D9h (F-EH06, T18)
#[test]
fn redirects_are_passed_on_and_never_followed() {
    let node = Node::with(plan());
    let who = server_config(&data::issue(&node.web, "spiffe://web/bearer", "bearer.test"));
    let places = ["http://bearer.test:8080/", "https://evil.test/", "//evil.test", "/v1/next"];
    let next = std::sync::Mutex::new(places.into_iter());
    let _upstream = Upstream::start(&address(&node, "bearer"), move |stream| {
        let Ok(server) = ServerConnection::new(Arc::clone(&who)) else { return };
        let mut stream = StreamOwned::new(server, stream);
        while read_request(&mut stream).is_ok() {
            let Some(place) = next.lock().expect("no panic").next() else { return };
            let answer = format!("HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let plain = Upstream::http(&format!("{}:8080", node.ip(81)));
    for place in places {
        let answer = ask(&node, &get("bearer.test", "/v1/x", ""));
        assert_eq!((answer.status, answer.header("location").as_deref()), (302, Some(place)), "{answer:?}");
    }
    // Whoever follows is decided anew.
    assert_eq!(ask(&node, &get("bearer.test", "/", "").replace(":9443", ":8080")).status, 403);
    assert_eq!(ask(&node, &get("evil.test", "/", "")).status, 403);
    assert_eq!(plain.accepted(), 0);
    for method in ["TRACE", "TRACK"] {
        let request = get("bearer.test", "/v1/x", "").replace("GET", method);
        assert_eq!(ask(&node, &request).status, 400, "{method} would send back what it got");
    }
    node.audited(2, |line| is(line, &[("reason", "unsupported"), ("dest_host", "bearer.test")]));
}

// covers: D9e
#[test]
fn a_declared_body_is_filled_within_its_bound_and_any_other_is_watched() {
    let node = Node::with(plan());
    let upstream = upstream(&node, "filled");
    let json = "Content-Type: application/json\r\n";
    let answer = ask(&node, &post("filled.test", json, r#"{"k": "nova_credential_filled"}"#));
    assert_eq!(answer.status, 200, "{answer:?}");
    let want = r#"{"k": "filled-\"value\"-2b6d90"}"#;
    let seen = upstream.seen().remove(0);
    assert!(seen.ends_with(&format!("\r\n\r\n{want}")), "{seen}");
    assert_eq!(header(&seen, "content-length"), Some(want.len().to_string()));
    let line = node.audited_once(|line| requests(line) && is(line, &[("verdict", "allow")]));
    assert_eq!(line["bytes_in"], 31, "what came from the app; not what the secret made of it: {line}");
    // The same in chunks, cut within the placeholder.
    let mut link = node.proxy(X);
    let head = format!(
        "POST http://filled.test:9443/v1/x HTTP/1.1\r\nHost: filled.test:9443\r\n{json}Transfer-Encoding: chunked\r\n\r\n"
    );
    link.send(format!("{head}d\r\n\"nova_credent\r\nb\r\nial_filled\"\r\n0\r\n\r\n"));
    assert_eq!(read_answer(&mut link).expect("an answer").status, 200);
    assert!(upstream.seen()[1].ends_with(r#""filled-\"value\"-2b6d90""#), "{:?}", upstream.seen());

    let (long, text) = ("x".repeat(1024 * 1024 + 1), "Content-Type: text/plain\r\n");
    for (fields, body, detail) in [
        (json, long.as_str(), "credential_body_size"),
        (&format!("{json}Content-Encoding: gzip\r\n"), "x", "credential_body_encoding"),
        (json, r#"{"k": "nova_credential_bearer"}"#, "placeholder"),
        (text, "a nova_credential_filled", "placeholder"),
    ] {
        let answer = ask(&node, &post("filled.test", fields, body));
        assert_eq!(answer.status, 403, "{detail}: {answer:?}");
    }
    for (detail, count) in [("credential_body_size", 1), ("credential_body_encoding", 1), ("placeholder", 2)] {
        node.audited(count, |line| requests(line) && is(line, &[("verdict", "deny"), ("detail", detail)]));
    }
    assert_eq!(upstream.seen().len(), 2, "{:?}", upstream.seen());
    // A long body of another type passes as it comes.
    assert_eq!(ask(&node, &post("filled.test", text, &long)).status, 200);
}

/// Whether a link was answered; if not, sends the next piece of its body.
fn answered(link: &mut Link) -> bool {
    link.stream.set_read_timeout(Some(Duration::from_millis(1))).expect("set");
    let mut first = [0];
    let said = link.stream.read(&mut first).is_ok();
    link.stream.set_read_timeout(Some(PATIENCE)).expect("set");
    if !said {
        link.send("1\r\nx\r\n");
    }
    said
}

// covers: D9e
#[test]
fn a_request_waits_for_the_place_of_its_body_no_longer_than_for_the_body() {
    let plan = plan();
    let token = "boot_token: 00000000000000000000000000000011\n";
    let endpoints = plan.endpoints.replace(token, &format!("{token}    limits: {{body_timeout_ms: 2000}}\n"));
    let node = Node::with(Plan { endpoints, ..plan });
    let upstream = upstream(&node, "filled");
    // Two more than there are places; all of them go on, slowly, and whoever has a place keeps it.
    let mut links: Vec<Link> = (0..18)
        .map(|_| {
            let mut link = node.proxy(X);
            link.send(
                "POST http://filled.test:9443/v1/x HTTP/1.1\r\nHost: filled.test:9443\r\nContent-Type: application/json\r\n\
                 Transfer-Encoding: chunked\r\n\r\n1\r\n\"\r\n",
            );
            link
        })
        .collect();
    let mut refused = Vec::new();
    until("two of them are told", || {
        std::thread::sleep(Duration::from_millis(50));
        let (told, waiting) = std::mem::take(&mut links).into_iter().partition(|link| answered(&mut link.another()));
        links = waiting;
        let told: Vec<Link> = told;
        refused.extend(told);
        refused.len() >= 2
    });
    assert_eq!(refused.len(), 2);
    for link in &mut refused {
        // Its first letter is read already.
        assert!(read_head(link).expect("an answer").starts_with("TTP/1.1 408"));
    }
    node.audited(2, |line| requests(line) && is(line, &[("verdict", "deny"), ("reason", "body_timeout")]));
    for link in &mut links {
        link.send("1\r\n\"\r\n0\r\n\r\n");
    }
    for link in &mut links {
        assert_eq!(read_answer(link).expect("an answer").status, 200);
    }
    assert_eq!(upstream.seen().len(), 16);
}

// covers: D9a
#[test]
fn a_bundle_that_takes_the_credential_away_ends_what_is_under_way_with_it() {
    let node = Node::with(plan());
    let who = server_config(&data::issue(&node.web, "spiffe://web/bearer", "bearer.test"));
    let _upstream = Upstream::start(&address(&node, "bearer"), move |stream| {
        let Ok(server) = ServerConnection::new(Arc::clone(&who)) else { return };
        let mut stream = StreamOwned::new(server, stream);
        let _ = read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\npiece\r\n");
        let _ = stream.read(&mut [0]);
    });
    let mut link = node.proxy(X);
    link.send(get("bearer.test", "/v1/x", ""));
    assert!(read_head(&mut link).expect("a head").contains(" 200 "));
    node.publish(&rules("").replace("paths: ['/v1/**']}, credential: bearer}", "paths: ['/v1/**']}}"));
    link.wait_closed();
    node.audited_once(|line| is(line, &[("credential", "bearer"), ("close", "policy_revoked")]));
}

// covers: D9c, D9l
#[test]
fn a_websocket_gets_no_credential_and_takes_no_placeholder_with_it() {
    let sockets = "- {id: sockets, tenant: t, from: {workload: x}, to: {external: echo.test, port: 9443, ca: web-ca, addresses: [NET.0/24]}, http: {methods: [GET], paths: [/chat]}, upgrade: [websocket]}\n";
    let node = Node::with(Plan { rules: rules(sockets), ..plan() });
    let hosts = ["bearer", "header", "filled"].map(|name| upstream(&node, name));
    let echo = upstream(&node, "echo");
    let handshake = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    // Where a rule has a credential it grants requests alone: what follows a handshake is looked at by nobody.
    for name in ["bearer", "header", "filled"] {
        let own = format!("{handshake}Authorization: Token nova_credential_filled\r\n");
        let answer = ask(&node, &get(&format!("{name}.test"), "/v1/x", &own));
        assert_eq!(answer.status, 403, "{name}: {answer:?}");
    }
    assert!(hosts.iter().all(|host| host.accepted() == 0));
    // Where a rule grants the WebSocket and has no credential, a placeholder is as wrong as anywhere.
    for field in ["Authorization: Bearer nova_credential_filled", "Sec-WebSocket-Protocol: nova_credential_bearer"] {
        let answer = ask(&node, &get("echo.test", "/chat", &format!("{handshake}{field}\r\n")));
        assert_eq!(answer.status, 403, "{field}: {answer:?}");
    }
    let answer = ask(&node, &get("echo.test", "/chat?key=nova_credential_filled", handshake));
    assert_eq!(answer.status, 403, "{answer:?}");
    node.audited(3, |line| requests(line) && is(line, &[("rule", "sockets"), ("detail", "placeholder")]));
    assert_eq!(echo.accepted(), 0);
    // What the app knows by itself is its own affair.
    let answer = ask(&node, &get("echo.test", "/chat", &format!("{handshake}Authorization: Bearer own\r\n")));
    assert_eq!((answer.status, echo.seen().len()), (200, 1), "{answer:?}");
    assert_eq!(header(&echo.seen()[0], "authorization").as_deref(), Some("Bearer own"));
    assert_eq!(header(&echo.seen()[0], "upgrade").as_deref(), Some("websocket"));
}

// covers: D9d
#[test]
fn a_call_whose_grant_ended_while_its_body_was_read_does_not_go() {
    let node = Node::with(plan());
    let upstream = upstream(&node, "db");
    let mut link = node.proxy(X);
    link.send(post("db.test", "Expect: 100-continue\r\n", "").replace("Length: 0", "Length: 5"));
    let head = read_head(&mut link).expect("it is decided, and its body is wanted");
    assert!(head.starts_with("HTTP/1.1 100"), "{head}");
    node.publish(
        &rules("").replace("[GET, POST, PUT], paths: ['/v1/**']}, credential: db}", "[GET]}, credential: db}"),
    );
    link.send("hello");
    assert_eq!(read_answer(&mut link).expect("an answer").status, 403);
    node.audited_once(|line| requests(line) && is(line, &[("verdict", "deny"), ("reason", "policy_revoked")]));
    assert_eq!(upstream.accepted(), 0);
}

/// A destination that notes every byte and answers nothing.
fn listener(node: &Node, name: &str) -> (Upstream, Arc<Mutex<Vec<u8>>>) {
    let who = server_config(&data::issue(&node.web, &format!("spiffe://web/{name}"), &format!("{name}.test")));
    let heard = Arc::<Mutex<Vec<u8>>>::default();
    let note = Arc::clone(&heard);
    let at = if name == "echo" { format!("{}:9443", node.ip(91)) } else { address(node, name) };
    let upstream = Upstream::start(&at, move |stream| {
        let Ok(server) = ServerConnection::new(Arc::clone(&who)) else { return };
        let mut stream = StreamOwned::new(server, stream);
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut bytes) {
            note.lock().expect("no panic").extend(&bytes[..read]);
        }
    });
    (upstream, heard)
}

// covers: D9n
#[test]
fn a_placeholder_in_a_body_that_gets_no_such_credential_ends_the_call_before_its_name_has_gone() {
    let node = Node::with(plan());
    let hosts = ["echo", "bearer"].map(|name| (name, listener(&node, name)));
    let (text, mut sent) = ("a=nova_credential_filled&b", 0);
    for (name, _) in &hosts {
        let head = format!("POST http://{name}.test:9443/v1/x HTTP/1.1\r\nHost: {name}.test:9443\r\n");
        let whole = format!("{head}Content-Length: {}\r\n\r\n{text}", text.len());
        let cut = |at: usize| {
            let (one, two) = text.split_at(at);
            let chunks = [one, two].map(|part| format!("{:x}\r\n{part}\r\n", part.len())).concat();
            format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
        };
        let trailers = format!(
            "{head}Transfer-Encoding: chunked\r\nTrailer: x-t\r\n\r\n1\r\na\r\n0\r\nx-t: nova_credential_filled\r\n\r\n"
        );
        for request in [whole, cut(2), cut(3), cut(10), cut(17), cut(18), cut(24), trailers] {
            let answer = ask(&node, &request);
            assert_eq!(answer.status, 403, "{request}: {answer:?}");
            sent += 1;
        }
    }
    let lines = node.audited(sent, |line| requests(line) && is(line, &[("reason", "credential_not_granted")]));
    assert!(lines.iter().all(|line| is(line, &[("verdict", "deny"), ("detail", "placeholder")])), "{lines:#?}");
    for (name, (upstream, heard)) in &hosts {
        let heard = heard.lock().expect("no panic").clone();
        assert!(upstream.accepted() > 0 && !heard.is_empty(), "{name}: heads and what is before it go on as they come");
        assert!(!String::from_utf8_lossy(&heard).contains("nova_credential_"), "{name}");
    }
}

// covers: D9n
#[test]
fn bodies_of_a_pod_that_has_no_credential_with_a_placeholder_are_not_looked_at() {
    let plan = plan();
    let endpoints = plan.endpoints.replace(", filled]", "]");
    let node = Node::with(Plan { endpoints, ..plan });
    let upstream = upstream(&node, "echo");
    let answer = ask(&node, &post("echo.test", "", "nova_credential_filled"));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(upstream.seen()[0].ends_with("nova_credential_filled"));
}
