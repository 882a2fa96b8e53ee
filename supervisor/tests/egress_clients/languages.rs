//! The HTTP clients of languages, each with a program of a few lines that says what it got.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::data::is;
use crate::programs::{GrpcApp, go_clients, installed, java_program, run, run_with, script};
use crate::stage::{GRPC, PLAIN, SECURE, Stage};

/// Runs a client, which asks for the same four things, and judges what it says.
fn client(mut command: Command, agent: &str) {
    let stage = Stage::start(Vec::new());
    let ca = stage.file("web.pem");
    for (name, value) in [("url", PLAIN), ("secure", SECURE), ("proxy", &stage.proxy), ("ca", &ca)] {
        command.arg(format!("--{name}")).arg(value);
    }
    let said = run(stage.node.dir.path(), &mut command).lines();
    let wanted = [("get", 200), ("secure", 200), ("denied", 403), ("again", 200)];
    let got: Vec<(&str, Value)> =
        said.iter().map(|line| (line["call"].as_str().expect("a call"), line["status"].clone())).collect();
    assert_eq!(got, wanted.map(|(call, status)| (call, json!(status))), "{said:#?}");
    assert!(stage.saw("/files/hello", agent), "{:#?}", stage.seen());
    let denied = stage.node.audited_once(|line| is(line, &[("verdict", "deny"), ("direction", "egress")]));
    assert!(is(&denied, &[("reason", "l7_mismatch"), ("path", "/secret")]), "{denied}");
    stage.node.audited(2, |line| is(line, &[("kind", "request"), ("verdict", "allow"), ("rule", "plain")]));
}

// covers: D1f
#[test]
fn pythons_urllib_calls_through_the_proxy() {
    let Some(python) = installed("python3") else { return };
    client(script(&python, "python/proxy.py"), "Python-urllib/");
}

// covers: D1g
#[test]
fn nodes_http_calls_through_the_proxy() {
    let Some(node) = installed("node") else { return };
    client(script(&node, "node/proxy.mjs"), "node-test");
}

// covers: D1h
#[test]
fn gos_net_http_calls_through_the_proxy() {
    let Some(program) = go_clients() else { return };
    let mut command = Command::new(program);
    command.arg("proxy");
    client(command, "Go-http-client/");
}

// covers: D1h
#[test]
fn grpc_go_passes_the_interoperability_cases_through_the_proxy_and_reads_denials_as_status_7() {
    let Some(program) = go_clients() else { return };
    let stage = Stage::start(Vec::new());
    let app = GrpcApp::start(&program, &format!("{}:50051", stage.node.ip(80)));
    let mut command = Command::new(&program);
    command.args(["grpc", "--url", GRPC]).env("HTTPS_PROXY", format!("http://{}", stage.proxy)).env_remove("NO_PROXY");
    let said = run_with(Stdio::null(), stage.node.dir.path(), command.env_remove("no_proxy")).lines();
    assert!(said.iter().all(|line| line["error"].is_null()), "{said:#?}");
    assert_eq!(said.last().map(|line| line["call"].clone()), Some(json!("after_denied")), "{said:#?}");
    let denied: Vec<&Value> = said.iter().filter(|line| line["call"].to_string().contains("denied_")).collect();
    assert_eq!(denied.iter().filter(|line| line["code"] == 7).count(), 4, "{said:#?}");
    let reached = |call: &str| app.calls().iter().any(|line| line["method"].to_string().contains(call));
    assert!(reached("EmptyCall") && !reached("UnimplementedCall") && !reached("HalfDuplexCall"), "{:#?}", app.calls());
    let refused = stage.node.audited(4, |line| is(line, &[("kind", "request"), ("verdict", "deny")]));
    assert!(refused.iter().all(|line| line["grpc_status"] == 7 && line["direction"] == "egress"), "{refused:#?}");
}

// covers: D1i
#[test]
fn javas_http_client_calls_through_the_proxy_offering_h2c_each_time() {
    let Some(java) = installed("java") else { return };
    client(java_program(&java, &[], "java/Proxy.java"), "Java-http-client/");
}
