//! Credentials over HTTP/2: towards hosts that pick it, and from apps that speak it inside a tunnel.

mod credentials_support;
mod data;

use std::sync::{Arc, Mutex};

use credentials_support::{ALL, AWS, FILLED, SESSION, address, answer, ask, get, plan, post};
use data::h2::{END_STREAM, Event, H2, HEADERS};
use data::{Node, Plan, Upstream, X, is, read_head, server_config};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

type Fields = Vec<(String, String)>;

/// What a host saw of a request: its fields, the names that must never be indexed, and whether it could remember a value.
#[derive(Clone, Debug, Default)]
struct Seen {
    fields: Fields,
    never: Vec<String>,
    remembers: bool,
    body: String,
}

impl Seen {
    fn get(&self, name: &str) -> &str {
        data::h2::find(&self.fields, name).unwrap_or_default()
    }
}

/// A host of `name` that picks HTTP/2 and answers 200.
fn host(node: &Node, name: &str, value: &'static str) -> (Upstream, Arc<Mutex<Vec<Seen>>>) {
    let who = data::issue(&node.web, &format!("spiffe://web/{name}"), &format!("{name}.test"));
    let mut config = ServerConfig::clone(&server_config(&who));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let (config, seen) = (Arc::new(config), Arc::<Mutex<Vec<Seen>>>::default());
    let log = Arc::clone(&seen);
    let upstream = Upstream::start(&address(node, name), move |stream| {
        let Ok(server) = ServerConnection::new(Arc::clone(&config)) else { return };
        let Ok(mut h2) = H2::server(StreamOwned::new(server, stream)) else { return };
        let mut open = Seen::default();
        while let Ok(event) = h2.event() {
            let (stream, is_over) = match event {
                Event::Headers { stream, fields, end } => {
                    let never = std::mem::take(&mut h2.decoder.never);
                    open = Seen { fields, never, remembers: h2.decoder.remembers(value), body: String::new() };
                    (stream, end)
                }
                Event::Data { stream, bytes, end } => {
                    open.body += &String::from_utf8_lossy(&bytes);
                    (stream, end)
                }
                _ => continue,
            };
            if is_over {
                log.lock().expect("no panic").push(std::mem::take(&mut open));
                h2.send(HEADERS, 4 | END_STREAM, stream, &[0x88]);
            }
        }
    });
    (upstream, seen)
}

// covers: D9m, D17e (T19)
// covers: D9i (T46)
#[test]
fn over_http2_no_value_is_ever_indexed_or_logged() {
    let node = Node::with(Plan { log: "trace", ..plan() });
    for (name, value, _) in ALL {
        let (upstream, seen) = host(&node, name, if value.is_empty() { "AKIDEXAMPLE" } else { &value[..8] });
        let placeholder = "Authorization: Bearer nova_credential_filled\r\n";
        let fields = if name == "filled" { placeholder } else { "Authorization: Bearer own\r\nX-Api-Key: own\r\n" };
        // On one connection of the app, which stays on one thread.
        let mut link = node.proxy(X);
        for _ in 0..3 {
            assert_eq!(answer(&mut link, &get(&format!("{name}.test"), "/v1/x?key=1", fields)).status, 200, "{name}");
        }
        let seen = seen.lock().expect("no panic").clone();
        assert_eq!((upstream.accepted(), seen.len()), (1, 3), "{name}: one connection for all");
        for seen in &seen {
            let where_ = match name {
                "query" => ":path",
                "header" => "x-api-key",
                _ => "authorization",
            };
            let sent = seen.get(where_);
            assert!(!sent.is_empty() && !sent.contains("own") && !sent.contains("nova_credential"), "{name}: {seen:?}");
            assert!(!seen.remembers, "{name}: {seen:?}");
            assert!(name == "query" || seen.never.iter().any(|never| never == where_), "{name}: {seen:?}");
            assert_eq!(seen.get(":authority"), format!("{name}.test:9443"));
        }
    }
    let log = node.log();
    assert!(log.contains("TRACE h2") || log.contains("TRACE hyper"), "everything is turned on");
    for value in ["bearer-value", "header-value", "cm9ib3Q6", "query-value", "filled-", "Signature=", AWS, SESSION] {
        assert!(!log.contains(value), "{value}");
    }
}

// covers: D9m
#[test]
fn an_app_that_speaks_http2_gets_the_same_and_each_stream_is_refused_on_its_own() {
    let node = Node::with(plan());
    let (_upstream, seen) = host(&node, "filled", "filled-");
    let mut link = node.proxy(X);
    link.send("CONNECT filled.test:9443 HTTP/1.1\r\nHost: filled.test:9443\r\n\r\n");
    assert!(read_head(&mut link).expect("a head").starts_with("HTTP/1.1 200"));
    let mut app = H2::client(link);
    let head = |method, more: &[(&'static str, &'static str)]| {
        let mut fields =
            vec![(":method", method), (":scheme", "http"), (":authority", "filled.test:9443"), (":path", "/v1/x")];
        fields.extend(more);
        fields
    };
    app.headers(1, &head("GET", &[("x-other", "nova_credential_filled")]), true);
    assert_eq!(app.reply(1).status(), 403);
    app.headers(3, &head("GET", &[("authorization", "Bearer nova_credential_filled")]), true);
    assert_eq!(app.reply(3).status(), 200);
    app.headers(5, &head("POST", &[("content-type", "application/json")]), false);
    app.data(5, b"{\"k\": \"nova_cred", false);
    app.data(5, b"ential_filled\"}", true);
    assert_eq!(app.reply(5).status(), 200);
    app.headers(7, &head("POST", &[("content-type", "application/json")]), false);
    app.data(7, b"nova_credential_bearer", true);
    assert_eq!(app.reply(7).status(), 403);
    app.headers(9, &head("POST", &[("content-type", "text/plain")]), false);
    app.data(9, b"nova_credential_filled", true);
    assert_eq!(app.reply(9).status(), 403);
    let seen = seen.lock().expect("no panic").clone();
    assert_eq!(seen[0].get("authorization"), format!("Bearer {FILLED}"));
    assert_eq!((seen[1].body.as_str(), seen[1].get("content-length")), (r#"{"k": "filled-\"value\"-2b6d90"}"#, "32"));
    assert!(!seen.iter().any(|seen| seen.body.contains("nova_credential")), "{seen:?}");
    node.audited(3, |line| {
        is(line, &[("reason", "credential_not_granted"), ("verdict", "deny"), ("detail", "placeholder")])
    });
}

// covers: D9m
#[test]
fn a_body_that_is_filled_arrives_whole_over_http2() {
    let node = Node::with(plan());
    let (_upstream, seen) = host(&node, "filled", "filled-");
    let long = format!(r#"{{"pad": "{}", "k": "nova_credential_filled"}}"#, "x".repeat(200_000));
    let answer = ask(&node, &post("filled.test", "Content-Type: application/json\r\n", &long));
    assert_eq!(answer.status, 200, "{answer:?}");
    let want = long.replace("nova_credential_filled", r#"filled-\"value\"-2b6d90"#);
    assert!(seen.lock().expect("no panic")[0].body == want);
}

// covers: D9n
#[test]
fn over_http2_a_placeholder_in_a_body_that_gets_none_ends_its_stream_and_no_other() {
    let node = Node::with(plan());
    let (_upstream, seen) = host(&node, "bearer", "bearer-");
    let mut link = node.proxy(X);
    link.send("CONNECT bearer.test:9443 HTTP/1.1\r\nHost: bearer.test:9443\r\n\r\n");
    assert!(read_head(&mut link).expect("a head").starts_with("HTTP/1.1 200"));
    let mut app = H2::client(link);
    let head = [(":method", "POST"), (":scheme", "http"), (":authority", "bearer.test:9443"), (":path", "/v1/x")];
    for (stream, parts, status) in [
        (1, ["a=nova_creden", "tial_filled"], 403),
        (3, ["a=nova_creden", "tials"], 200),
        (5, ["nova_credential_", "filled"], 403),
    ] {
        app.headers(stream, &head, false);
        app.data(stream, parts[0].as_bytes(), false);
        app.data(stream, parts[1].as_bytes(), true);
        assert_eq!(app.reply(stream).status(), status, "{parts:?}");
    }
    let seen = seen.lock().expect("no panic").clone();
    assert_eq!(seen.iter().map(|seen| seen.body.as_str()).collect::<Vec<_>>(), ["a=nova_credentials"]);
    node.audited(2, |line| is(line, &[("reason", "credential_not_granted"), ("detail", "placeholder")]));
}
