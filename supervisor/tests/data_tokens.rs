//! Bearer tokens on ports of mode `tls`, against the real program. Refusals first.

mod data;
mod tokens_support;

use std::fs;
use std::sync::{Arc, LazyLock};

use data::h2::{H2, head};
use data::{A, Answer, Node, Plan, Tls, is, read_request, until};
use serde_json::{Value, json};
use tokens_support::{ISSUER, Key, now, sign};

const EDGE: u16 = 9443;
const MIXED: u16 = 9444;
const OPEN: u16 = 9445;
const PORTS: &str = "      - {name: edge, port: 9443, target_port: 18080, mode: tls, protocol: http, strip_token: true}
      - {name: mixed, port: 9444, target_port: 18080, mode: tls, protocol: http}
      - {name: open, port: 9445, target_port: 18080, mode: tls, protocol: http}
";
const RULES: &str = "
  - {id: alice, tenant: t, from: {jwt: {issuer: 'https://issuer.test', subject: alice}}, to: {workload: service-a, port: edge}, http: {methods: [GET], paths: ['/v1/**']}}
  - {id: admins, tenant: t, from: {cidr: NET.96/28, jwt: {issuer: 'https://issuer.test', claims: {role: [admin, ops]}}}, to: {workload: service-a, port: edge}, http: {methods: [DELETE], paths: ['/v1/**']}}
  - {id: by-address, tenant: t, from: {cidr: NET.96/28}, to: {workload: service-a, port: mixed}, http: {methods: [GET], paths: ['/v1/**']}}
  - {id: by-token, tenant: t, from: {jwt: {issuer: 'https://issuer.test', subject: alice}}, to: {workload: service-a, port: mixed}, http: {methods: [PUT], paths: ['/v1/**']}}
  - {id: sockets, tenant: t, from: {jwt: {issuer: 'https://issuer.test', subject: alice}}, to: {workload: service-a, port: edge}, http: {methods: [GET], paths: ['/ws/**']}, upgrade: [websocket]}
  - {id: open, tenant: t, from: {cidr: NET.96/28}, to: {workload: service-a, port: open}, http: {methods: [GET], paths: ['/v1/**']}}
";
const TOKENS: &str = "[[tokens]]\nissuer = \"https://issuer.test\"\naudiences = [\"orders\"]\njwks = \"jwks.json\"\n\
    algorithms = [\"ES256\"]\nleeway = \"1s\"\n";

/// The issuer of all tests here.
static KEY: LazyLock<Key> = LazyLock::new(|| Key::ec("k1"));

fn start() -> Node {
    let plan = Plan::default();
    let port = "      - {name: wrapped,";
    Node::with(Plan {
        endpoints: plan.endpoints.replacen(port, &format!("{PORTS}{port}"), 1),
        rules: format!("{}{RULES}", plan.rules),
        sections: TOKENS.to_owned(),
        prepare: |dir, _| fs::write(dir.join("jwks.json"), jwks(&KEY)).expect("written"),
        ..plan
    })
}

fn jwks(key: &Key) -> String {
    json!({"keys": [key.jwk()]}).to_string()
}

fn token(change: impl FnOnce(&mut Value)) -> String {
    let mut claims = json!({"iss": ISSUER, "sub": "alice", "aud": "orders", "exp": now() + 60, "secret": "kept-out"});
    change(&mut claims);
    sign(&KEY.header(), &claims, &KEY)
}

fn request(method: &str, token: Option<&str>) -> String {
    let bearer = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    format!("{method} /v1/orders/42 HTTP/1.1\r\nHost: service-a.t.nova\r\n{bearer}\r\n")
}

fn ask(node: &Node, port: u16, method: &str, token: Option<&str>) -> Answer {
    node.call(None, port).expect("connected").ask(request(method, token))
}

/// The line of the decision that an answer names.
fn line_of(node: &Node, answer: &Answer) -> Value {
    let id = answer.decision_id();
    node.audited_once(|line| line["decision_id"] == id.as_str())
}

// covers: C6f
#[test]
fn a_request_without_a_token_is_answered_401_where_only_a_token_would_let_it_in() {
    let node = start();
    let answer = ask(&node, EDGE, "GET", None);
    assert_eq!(answer.status, 401, "{answer:?}");
    assert_eq!(answer.header("www-authenticate").as_deref(), Some("Bearer realm=\"nova\""));
    assert!(!answer.text().contains("issuer.test") && !answer.text().contains("alice"), "{answer:?}");
    let line = line_of(&node, &answer);
    assert!(is(&line, &[("kind", "request"), ("verdict", "deny"), ("reason", "token_missing")]), "{line}");
    // Another scheme is no token.
    let basic = request("GET", None).replace("\r\n\r\n", "\r\nAuthorization: Basic YTpi\r\n\r\n");
    let answer = node.call(None, EDGE).expect("connected").ask(basic);
    assert_eq!((answer.status, line_of(&node, &answer)["reason"].as_str()), (401, Some("token_missing")));
    assert!(node.guest(A).app.seen().is_empty());
}

// covers: C6f
#[test]
fn a_bad_token_is_answered_401_even_where_the_address_alone_would_do() {
    let node = start();
    let mallory = Key::ec("k1");
    let claims = json!({"iss": ISSUER, "sub": "alice", "aud": "orders", "exp": now() + 60});
    let bad = [
        ("token_signature", sign(&mallory.header(), &claims, &mallory)),
        ("token_expired", token(|claims| claims["exp"] = (now() - 10).into())),
        ("token_audience", token(|claims| claims["aud"] = "invoices".into())),
        ("token_issuer", token(|claims| claims["iss"] = "https://evil.test".into())),
        ("token_malformed", "not-a-token".to_owned()),
        ("token_oversized", "x".repeat(9000)),
    ];
    for port in [EDGE, MIXED] {
        for (fault, token) in &bad {
            let answer = ask(&node, port, "GET", Some(token));
            assert_eq!(answer.status, 401, "{fault}: {answer:?}");
            let challenge = answer.header("www-authenticate");
            assert_eq!(challenge.as_deref(), Some("Bearer realm=\"nova\", error=\"invalid_token\""), "{fault}");
            assert!(!answer.text().contains(fault), "the caller learns only that it is bad: {answer:?}");
            let line = line_of(&node, &answer);
            assert!(is(&line, &[("verdict", "deny"), ("reason", "token_invalid"), ("detail", fault)]), "{line}");
        }
    }
    assert!(node.guest(A).app.seen().is_empty());
    assert_eq!(ask(&node, MIXED, "GET", None).status, 200, "the address alone does, without a token");
}

// covers: C6j
#[test]
fn the_line_of_a_call_with_a_token_names_its_subject_and_issuer_whether_it_is_let_in_or_not() {
    let node = start();
    let named = |sub: Value| token(|claims| claims["sub"] = sub);
    let long = format!("token:{}...", "x".repeat(256));
    for (subject, status, peer) in [
        (json!("alice"), 200, "token:alice"),
        (json!("eve\n\u{202e}\""), 403, "token:eve\\u{a}\\u{202e}\""),
        (json!("x".repeat(2000)), 403, &long),
        (Value::Null, 403, "token:"),
    ] {
        let mut tls = node.call(None, EDGE).expect("connected");
        let answer = tls.ask(request("GET", Some(&named(subject))));
        assert_eq!(answer.status, status, "{peer}");
        let line = match status {
            200 => node.audited_once(|line| is(line, &[("kind", "request"), ("rule", "alice")])),
            _ => line_of(&node, &answer),
        };
        assert!(is(&line, &[("peer", peer), ("peer_ca", ISSUER)]), "{line}");
    }
    // What is not verified is nobody's.
    let mallory = Key::ec("k1");
    let forged = sign(&mallory.header(), &json!({"iss": ISSUER, "sub": "alice", "aud": "orders"}), &mallory);
    let line = line_of(&node, &ask(&node, EDGE, "GET", Some(&forged)));
    assert!(line["peer"].is_null() && line["peer_ca"].is_null(), "{line}");
}

// covers: C6c (T30)
#[test]
fn two_authorization_fields_are_refused_whichever_of_them_is_good() {
    let node = start();
    let good = token(|_| {});
    for (first, second) in [(good.as_str(), "x"), ("x", good.as_str()), (good.as_str(), good.as_str())] {
        let twice =
            request("GET", Some(first)).replace("\r\n\r\n", &format!("\r\nauthorization: Bearer {second}\r\n\r\n"));
        let answer = node.call(None, EDGE).expect("connected").ask(twice);
        assert_eq!(answer.status, 401, "{answer:?}");
        assert!(is(&line_of(&node, &answer), &[("reason", "token_invalid"), ("detail", "token_repeated")]));
    }
    assert!(node.guest(A).app.seen().is_empty());
}

// covers: C6b
// covers: C6g (K18)
#[test]
fn a_good_token_is_decided_on_recorded_without_itself_and_replayed_from_the_record() {
    let node = start();
    let good = token(|_| {});
    assert_eq!(ask(&node, EDGE, "GET", Some(&good)).status, 200);
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("verdict", "allow"), ("rule", "alice")]));
    assert_eq!(line["input"]["jwt"], json!({"issuer": ISSUER, "subject": "alice"}), "{line}");
    // Nobody else, and nobody whose role is not asked for.
    let bob = ask(&node, EDGE, "GET", Some(&token(|claims| claims["sub"] = "bob".into())));
    assert_eq!(bob.status, 403, "{bob:?}");
    let guest = ask(&node, EDGE, "DELETE", Some(&token(|claims| claims["role"] = "guest".into())));
    assert_eq!(guest.status, 403, "{guest:?}");
    let admin = token(|claims| (claims["role"], claims["sub"]) = (json!(["x", "ops"]), "carol".into()));
    assert_eq!(ask(&node, EDGE, "DELETE", Some(&admin)).status, 200);
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("rule", "admins")]));
    let wanted = json!({"issuer": ISSUER, "subject": "carol", "claims": {"role": ["x", "ops"]}});
    assert_eq!(line["input"]["jwt"], wanted, "{line}");
    // From the record alone: the issuer's keys and the token are not needed.
    let replayed = node.ask(&json!({"op": "replay", "decision_id": line["decision_id"]})).expect("an answer");
    assert_eq!(
        (&replayed["then"]["verdict"], &replayed["then"]["rule"]),
        (&json!("allow"), &json!("admins")),
        "{replayed}"
    );
    // Neither the log nor the app has a token.
    let log = fs::read_to_string(node.dir.path().join("audit.jsonl")).expect("the log");
    for secret in [good.as_str(), admin.as_str(), "kept-out"] {
        assert!(!log.contains(secret) && !node.log().contains(secret));
    }
    let seen = node.guest(A).app.seen();
    assert!(
        seen.len() == 2 && seen.iter().all(|request| !request.to_ascii_lowercase().contains("authorization")),
        "{seen:?}"
    );
}

// covers: C6b (K33)
#[test]
fn an_address_beside_a_token_is_one_more_condition() {
    let node = start();
    let admin = token(|claims| claims["role"] = "admin".into());
    let elsewhere = format!("{}:{EDGE}", node.ip(21));
    let mut tls = Tls::connect(&node.ip(50), &elsewhere, None).expect("connected");
    assert_eq!(tls.ask(request("DELETE", Some(&admin))).status, 403);
    assert_eq!(tls.ask(request("GET", Some(&admin))).status, 200, "alice may come from anywhere");
    assert_eq!(ask(&node, EDGE, "DELETE", Some(&admin)).status, 200);
}

// covers: C6f
#[test]
fn a_token_that_no_rule_of_the_port_asks_for_is_the_apps_own() {
    let node = start();
    assert_eq!(ask(&node, OPEN, "GET", Some("of.the.app")).status, 200);
    assert!(
        node.guest(A).app.seen()[0].contains("Authorization: Bearer of.the.app")
            || node.guest(A).app.seen()[0].contains("authorization: Bearer of.the.app")
    );
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("rule", "open")]));
    assert!(line["input"]["jwt"].is_null(), "{line}");
}

// covers: C6f
#[test]
fn a_token_that_ends_lets_its_exchange_finish_and_no_other_begin() {
    let node = start();
    let go = node.guest(A).serve_in_halves();
    let short = token(|claims| claims["exp"] = (now() + 2).into());
    let mut tls = node.call(None, EDGE).expect("connected");
    tls.send(request("GET", Some(&short)));
    until("the app has it", || node.guest(A).app.seen().len() == 1);
    // On another connection, so that the first one's answer stays where it is.
    until("the token has ended", || {
        let answer = ask(&node, EDGE, "DELETE", Some(&short));
        answer.status == 401
    });
    go.send(()).expect("the app waits");
    assert_eq!(tls.answer().expect("whole").text(), "first-last");
    let answer = tls.ask(request("GET", Some(&short)));
    assert_eq!(answer.status, 401, "decided anew on the same connection, and not from memory");
    assert!(is(&line_of(&node, &answer), &[("reason", "token_invalid"), ("detail", "token_expired")]));
    assert_eq!(node.guest(A).app.seen().len(), 1);
}

// covers: C6d
#[test]
fn keys_in_a_file_are_followed_and_a_broken_file_changes_nothing() {
    let node = start();
    let mut tls = node.call(None, EDGE).expect("connected");
    let good = token(|_| {});
    assert_eq!(tls.ask(request("GET", Some(&good))).status, 200);
    node.put("jwks.json", b"{\"keys\": [");
    until("the broken file is noticed", || node.warnings().contains("jwks.json"));
    assert_eq!(tls.ask(request("GET", Some(&good))).status, 200);
    node.put("jwks.json", jwks(&Key::ec("k2")).as_bytes());
    // The token was good a moment ago on this very connection: with its key it ends.
    until("the key is withdrawn", || tls.ask(request("GET", Some(&good))).status == 401);
    assert!(!node.warnings().contains("jwks.json"));
}

// covers: C6f
#[test]
fn each_stream_of_http_2_is_decided_with_its_own_token_and_grpc_callers_read_status_16() {
    let node = start();
    let mut config = rustls::ClientConfig::clone(&data::config(None));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let tcp = data::dial(&node.ip(99), &format!("{}:{EDGE}", node.ip(21))).expect("connected");
    let tls = Tls::over(tcp, Arc::new(config), "service-a.t.nova").expect("a handshake");
    let mut h2 = H2::client(tls);
    let bearer = |token: &str| format!("Bearer {token}");
    let (good, bob) = (bearer(&token(|_| {})), bearer(&token(|claims| claims["sub"] = "bob".into())));
    let mut ask = |stream: u32, more: &[(&str, &str)]| {
        let mut fields = head("GET", "/v1/orders/42");
        fields.extend(more);
        h2.headers(stream, &fields, true);
        h2.reply(stream)
    };
    assert_eq!(ask(1, &[]).status(), 401);
    assert_eq!(ask(3, &[("authorization", &good)]).status(), 200);
    assert_eq!(ask(5, &[("authorization", &bob)]).status(), 403);
    let twice = ask(7, &[("authorization", &good), ("authorization", &good)]);
    assert_eq!(
        (twice.status(), twice.get("www-authenticate")),
        (401, Some("Bearer realm=\"nova\", error=\"invalid_token\""))
    );
    let grpc = ask(9, &[("content-type", "application/grpc"), ("authorization", "Bearer x")]);
    assert_eq!((grpc.status(), grpc.get("grpc-status")), (200, Some("16")));
    assert_eq!(ask(11, &[("authorization", &good)]).status(), 200);
    assert_eq!(node.guest(A).app.seen().len(), 2);
}

// covers: C3i
#[test]
fn a_websocket_ends_with_the_token_that_let_it_in() {
    let node = start();
    node.guest(A).serve(|mut link, app| {
        if let Ok(head) = read_request(&mut link) {
            app.saw(&head);
            link.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
            let _ = link.rest();
        }
    });
    let short = token(|claims| claims["exp"] = (now() + 3).into());
    let upgrade = "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let handshake = |token| request("GET", token).replace("/v1/orders/42", "/ws/room").replace("\r\n\r\n", upgrade);
    let mut without = node.call(None, EDGE).expect("connected");
    assert_eq!(without.ask(handshake(None)).status, 401);
    let mut tls = node.call(None, EDGE).expect("connected");
    assert_eq!(tls.ask(handshake(Some(&short))).status, 101);
    assert!(tls.is_closed());
    let close = node.audited_once(|line| is(line, &[("kind", "close"), ("direction", "ingress")]));
    assert!(is(&close, &[("close", "token_invalid"), ("detail", "token_expired"), ("rule", "sockets")]), "{close}");
    assert!(!node.guest(A).app.seen().join("").to_ascii_lowercase().contains("authorization"));
}
