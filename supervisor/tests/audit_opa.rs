//! The decision log in OPA's form: one event per decision, nothing secret in it, and the names that real OPA writes.

mod data;
#[allow(dead_code, reason = "shared with the tests of the policy crate")]
#[path = "../../policy/tests/opa/opa.rs"]
mod opa;

use std::collections::BTreeSet;
use std::io::Read;

use data::{HTTPS, Node, Plan, Upstream, X, is, read_answer, read_head, until};
use nova_policy::decision::Decision;
use serde_json::{Value, json};

fn node() -> Node {
    Node::with(Plan { audit: "opa_file = \"opa.jsonl\"", ..Plan::default() })
}

fn events(node: &Node) -> Vec<Value> {
    let text = std::fs::read_to_string(node.dir.path().join("opa.jsonl")).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Calls of every kind, granted and denied; then every connection is over.
fn traffic(node: &Node) {
    let _plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    let _tcp = Upstream::start(&format!("{}:5432", node.ip(80)), |mut stream| drop(stream.read(&mut [0; 16])));
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    for path in ["/v1/orders/1?card=secret-in-query", "/admin"] {
        let secrets = "Authorization: Bearer secret-in-header\r\nCookie: secret-in-header";
        tls.ask(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{secrets}\r\n\r\n"));
    }
    let mut link = node.proxy(X);
    for port in [8080, 8081] {
        let body = "secret-in-body";
        let head = format!("POST http://plain.test:{port}/p?secret-in-query HTTP/1.1\r\nHost: plain.test");
        link.send(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        read_answer(&mut link).expect("an answer");
    }
    let mut tunnel = node.proxy(X);
    tunnel.send("CONNECT tcp.test:5432 HTTP/1.1\r\nHost: x\r\n\r\n");
    read_head(&mut tunnel).expect("an answer");
    drop((tls, link, tunnel));
    until("all connections ended", || node.open("x") == 0 && node.open("service-a") == 0);
    node.audited(1, |line| is(line, &[("kind", "close")]));
}

// covers: B12a
#[test]
fn each_decision_is_one_event_with_the_answer_of_the_policy_and_no_secret() {
    let node = node();
    traffic(&node);
    let decided = |line: &Value| line["input"].is_object() && line["kind"] != "close";
    until("the events are written", || {
        let decisions = node.audit().iter().filter(|line| decided(line)).count();
        decisions >= 6 && events(&node).len() >= decisions
    });
    let (lines, events) = (node.audit(), events(&node));
    let of = |id: &Value| events.iter().filter(|event| event["decision_id"] == *id).collect::<Vec<_>>();
    for line in lines.iter().filter(|line| decided(line)) {
        let all = of(&line["decision_id"]);
        assert_eq!(all.len(), 1, "{line}: {all:#?}");
        let event = all[0];
        assert_eq!(event["bundles"], json!({"nova": {"revision": line["revision"]}}));
        assert_eq!((&event["path"], &event["input"]), (&json!("nova/authz/decision"), &line["input"]));
        let result: Decision = serde_json::from_value(event["result"].clone()).expect("a decision");
        assert_eq!(result.allow, line["verdict"] == "allow", "{line}");
        assert_eq!(
            (result.reason.as_str(), &*result.rule_id),
            (line["reason"].as_str().expect("a reason"), line["rule"].as_str().unwrap_or_default())
        );
        assert_eq!(
            (&event["labels"]["node"], &event["labels"]["version"]),
            (&json!("node-1"), &json!(env!("CARGO_PKG_VERSION")))
        );
        let by = if line["direction"] == "ingress" { line["src"].clone() } else { json!(node.ip(11)) };
        assert_eq!(event["requested_by"], by);
        assert!(event["timestamp"].as_str() <= line["time"].as_str(), "decided before it was written: {event}");
    }
    assert_eq!(events.len(), lines.iter().filter(|line| decided(line)).count(), "nothing else is an event");
    let numbers: BTreeSet<_> = events.iter().map(|event| event["req_id"].as_u64().expect("a number")).collect();
    assert_eq!(numbers.len(), events.len());
    let ids: BTreeSet<_> = events.iter().map(|event| event["labels"]["id"].to_string()).collect();
    assert_eq!(ids.len(), 1, "one process");
    let text = std::fs::read_to_string(node.dir.path().join("opa.jsonl")).expect("the log");
    assert!(!text.contains("secret") && text.contains("/v1/orders/1"), "{text}");
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(node.dir.path().join("opa.jsonl")).expect("the log").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// A full disk under the copy stops nothing: the audit log is the record.
// covers: B12b
#[test]
fn events_that_cannot_be_written_refuse_nothing_and_are_told() {
    let node = Node::with(Plan { audit: "opa_file = \"/dev/full\"", ..Plan::default() });
    traffic(&node);
    let ready = || node.ask(&json!({"op": "ready"})).expect("an answer");
    until("the node warns", || ready()["warnings"].to_string().contains("opa_file cannot be written"));
    assert_eq!(ready()["ready"], true);
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    assert_eq!(tls.ask("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
}

/// Names of our events and of those that real OPA writes about the same input, on the same bundle.
// covers: B12c
#[test]
fn the_events_have_the_names_that_real_opa_writes() {
    let Some(program) = opa::program() else { return };
    let node = node();
    traffic(&node);
    until("events are written", || events(&node).len() >= 6);
    let ours = events(&node);
    let dir = tempfile::tempdir().expect("a temporary folder");
    std::fs::copy(node.dir.path().join("bundle.tar.gz"), dir.path().join("nova.tar.gz")).expect("copied");
    // A bundle beside it, which erases something, as operators of OPA do.
    let mask = dir.path().join("mask");
    std::fs::create_dir(&mask).expect("created");
    std::fs::write(mask.join(".manifest"), r#"{"roots": ["system"]}"#).expect("written");
    std::fs::write(mask.join("mask.rego"), "package system.log\n\nmask contains \"/input/source\"\n").expect("written");
    let arguments = ["-b", "nova.tar.gz", "--skip-verify", "--set", "decision_logs.console=true", "mask"];
    let server = opa::Server::start(&program, dir.path(), &arguments).expect("OPA serves our bundle");
    let asked = ours.iter().find(|event| event["input"]["direction"] == "egress").expect("an event of x");
    let result: Value = server.client().ask(&asked["input"]).expect("OPA answers").expect("a decision");
    let mut theirs = Value::Null;
    until("OPA has logged it", || {
        let text = std::fs::read_to_string(dir.path().join("opa.log")).unwrap_or_default();
        let mut logged = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        theirs = logged.rfind(|line| line["decision_id"].is_string()).unwrap_or_default();
        theirs.is_object()
    });
    let names = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<BTreeSet<_>>();
    // What the logger of the console adds to every line, and what we do not measure.
    let console = ["level", "metrics", "msg", "time", "type"].map(str::to_owned);
    let mut wanted: BTreeSet<_> = names(&theirs).into_iter().filter(|name| !console.contains(name)).collect();
    assert!(wanted.contains("erased"), "{theirs}");
    // Over its Unix socket OPA knows no client and numbers no request.
    wanted.extend(["requested_by", "req_id"].map(str::to_owned));
    for event in &ours {
        let mut has = names(event);
        has.insert("erased".to_owned());
        assert_eq!(has, wanted, "{event}\n{theirs}");
    }
    assert_eq!(theirs["path"], asked["path"]);
    assert_eq!(names(&theirs["result"]), names(&asked["result"]));
    assert_eq!(result, asked["result"], "and the same answer");
    assert!(theirs["labels"]["id"].is_string() && theirs["labels"]["version"].is_string(), "{theirs}");
    assert_eq!(theirs["bundles"]["nova.tar.gz"], asked["bundles"]["nova"], "one more bundle is the mask");
}
