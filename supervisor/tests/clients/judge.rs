//! Whether a client got what it should have got, judged by what it says, what the app saw and what the audit log says.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::app::{App, BODY, Seen, TOGETHER};
use crate::data::{header, is};
use crate::stage::{MTLS, Way};

const ASKED: &str = "/v1/orders/42?color=blue&color=%20red";

/// What a client can do, and what of it it can tell.
pub(crate) struct Abilities {
    pub(crate) protocol: &'static str,
    /// It can wait for 100.
    pub(crate) expects: bool,
    /// It says whether 100 came.
    pub(crate) tells_continue: bool,
    pub(crate) tells_trailers: bool,
    /// A second way to call, with one call and one refusal.
    pub(crate) urllib: bool,
    /// Connections in all, where that is certain.
    pub(crate) connections: Option<usize>,
}

impl Default for Abilities {
    fn default() -> Self {
        Self {
            protocol: "HTTP/1.1",
            expects: true,
            tells_continue: true,
            tells_trailers: true,
            urllib: false,
            connections: None,
        }
    }
}

pub(crate) fn judge(way: Way<'_>, app: &App, can: &Abilities, said: &[Value]) {
    let calls: Vec<&str> = said.iter().map(|line| line["call"].as_str().expect("a call")).collect();
    let mut expected = vec!["get", "echo", "expect", "head", "none", "denied", "reuse", "together"];
    expected.retain(|call| can.expects || *call != "expect");
    expected.extend(can.urllib.then_some("urllib"));
    expected.push("denied_upload");
    assert_eq!(calls, expected, "{said:#?}");
    for line in said {
        what_it_says(can, line);
    }
    what_the_app_saw(way, app, can);
    what_the_log_says(way, app, can, said);
}

fn what_it_says(can: &Abilities, line: &Value) {
    let has = |fields: Value| {
        for (name, value) in fields.as_object().expect("fields") {
            assert_eq!(&line[name], value, "{name} of {line}");
        }
    };
    assert!(line["error"].is_null(), "{line}");
    if !line["status"].is_null() {
        has(json!({"protocol": can.protocol}));
    }
    match line["call"].as_str().expect("a call") {
        "get" => has(json!({"status": 200, "body": format!("GET {ASKED} HTTP/1.1"), "type": "text/plain"})),
        call @ ("echo" | "expect") => {
            has(json!({"status": 200, "length": BODY, "same": true}));
            if can.tells_trailers {
                has(json!({"trailer": BODY.to_string()}));
            }
            if can.tells_continue {
                has(json!({"continued": call == "expect"}));
            }
        }
        "head" => has(json!({"status": 200, "content_length": "1234", "length": 0})),
        "none" => has(json!({"status": 204, "length": 0})),
        "denied" | "denied_upload" => {
            has(json!({"status": 403, "type": "application/problem+json", "problem_status": 403}));
        }
        "reuse" => has(json!({"statuses": vec![200; 20]})),
        "together" => has(json!({"statuses": vec![200; TOGETHER]})),
        "urllib" => has(json!({"statuses": [200, 403], "problem_status": 403})),
        other => panic!("unknown call {other}"),
    }
}

fn what_the_app_saw(way: Way<'_>, app: &App, can: &Abilities) {
    let get = |path: &str| format!("GET {path} HTTP/1.1");
    let mut expected = vec![get(ASKED), get("/v1/orders/none"), "HEAD /v1/orders/42 HTTP/1.1".to_owned()];
    expected.extend(vec!["POST /v1/orders/echo HTTP/1.1".to_owned(); 1 + usize::from(can.expects)]);
    expected.extend((0..20).map(|number| get(&format!("/v1/orders/{number}"))));
    expected.extend(vec![get("/v1/orders/together"); TOGETHER]);
    expected.extend(can.urllib.then(|| get("/v1/orders/7")));
    expected.sort();
    let seen = app.seen();
    let mut lines: Vec<&str> = seen.iter().map(Seen::line).collect();
    lines.sort_unstable();
    assert_eq!(lines, expected);
    for request in &seen {
        let head = &request.head;
        assert_eq!(header(head, "x-forwarded-for").as_deref(), Some("127.0.0.1"), "{head}");
        let identity = header(head, "x-forwarded-client-cert");
        assert_eq!(identity.is_some_and(|who| who.contains("URI=spiffe://dev.invalid/t/t/w/x")), way.port == MTLS);
        for name in ["upgrade", "http2-settings", "connection", "keep-alive", "expect"] {
            assert_eq!(header(head, name), None, "{name} of {head}");
        }
        let body = if request.line().starts_with("POST") { BODY } else { 0 };
        assert_eq!((request.body, request.whole), (body, true), "{head}");
    }
}

fn what_the_log_says(way: Way<'_>, app: &App, can: &Abilities, said: &[Value]) {
    let node = way.node;
    let peer = (way.port == MTLS).then_some("spiffe://dev.invalid/t/t/w/x");
    let allowed = node.audited(app.seen().len(), |line| is(line, &[("kind", "request"), ("verdict", "allow")]));
    let refusals = 2 + usize::from(can.urllib);
    let denied = node.audited(refusals, |line| is(line, &[("kind", "request"), ("verdict", "deny")]));
    node.audited(allowed.len() + denied.len(), |line| line["kind"] == "request");
    assert!(allowed.iter().all(|line| line["peer"].as_str() == peer && line["src"].is_string()), "{allowed:#?}");
    assert!(denied.iter().all(|line| line["reason"] == "l7_mismatch" && line["status"] == 403), "{denied:#?}");
    for refused in said.iter().filter(|line| line["call"].as_str().is_some_and(|call| call.starts_with("denied"))) {
        assert!(denied.iter().any(|line| line["decision_id"] == refused["decision_id"]), "{refused}");
    }
    let sources = |lines: &[&Value]| {
        lines.iter().map(|line| line["src"].as_str().expect("a source").to_owned()).collect::<BTreeSet<_>>()
    };
    let all: Vec<&Value> = allowed.iter().chain(&denied).collect();
    // One after the other, a refusal among them, goes over one connection.
    let alone = |line: &&Value| line["path"] == "/v1/orders/42" || line["path"] == "/v1/orders/19";
    let alone: Vec<&Value> = all.iter().copied().filter(alone).collect();
    assert!(alone.iter().any(|line| line["verdict"] == "deny"), "{alone:#?}");
    assert_eq!(sources(&alone).len(), 1, "{alone:#?}");
    if let Some(connections) = can.connections {
        assert_eq!(sources(&all).len(), connections, "{:#?}", sources(&all));
    }
}
