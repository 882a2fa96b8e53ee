//! Clients of gRPC against a gRPC server with reflection that is the app of a guest.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::data::{Node, is};
use crate::programs::{Ended, GrpcApp, go_clients, grpcurl, run};
use crate::stage::{EDGE, MTLS, NAME, Way, node};

const RULES: &str = "rules:
  - id: x-calls
    tenant: t
    from: {workload: x}
    to: {workload: service-a, port: mtls}
    grpc: {services: [grpc.testing.TestService], methods: [EmptyCall, UnaryCall, StreamingInputCall, StreamingOutputCall, FullDuplexCall]}
  - id: x-reflects
    tenant: t
    from: {workload: x}
    to: {workload: service-a, port: mtls}
    grpc: {services: [grpc.reflection.v1.ServerReflection]}
  - id: outside-calls
    tenant: t
    from: {cidr: 127.0.0.1/32}
    to: {workload: service-a, port: edge}
    grpc: {services: [grpc.testing.TestService], methods: [EmptyCall]}
  - id: outside-reflects
    tenant: t
    from: {cidr: 127.0.0.1/32}
    to: {workload: service-a, port: edge}
    grpc: {services: [grpc.reflection.v1.ServerReflection]}
";
const CASES: [&str; 12] = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "custom_metadata",
    "status_code_and_message",
    "special_status_message",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
];

/// A node whose service-a is a gRPC server with reflection, built by Go.
fn start(program: &Path) -> (Node, GrpcApp) {
    let app = GrpcApp::start(program, "127.0.0.1:0");
    let node = node("grpc", app.port, RULES);
    (node, app)
}

fn paths(lines: &[Value], field: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in lines {
        *counts.entry(line[field].as_str().expect("a path").to_owned()).or_default() += 1;
    }
    counts
}

// covers: C12g
#[test]
fn grpc_go_passes_the_interoperability_cases_and_reads_denials_as_status_7() {
    let Some(program) = go_clients() else { return };
    let (node, app) = start(&program);
    let way = Way { node: &node, port: MTLS, protocol: "h2" };
    let said = run(node.dir.path(), Command::new(&program).arg("grpc").args(way.arguments())).lines();
    let denials = ["denied_unary", "denied_stream"];
    let calls: Vec<&str> = said.iter().map(|line| line["call"].as_str().expect("a call")).collect();
    assert_eq!(calls, [&denials[..], &CASES, &["together"], &denials, &["after_denied"]].concat());
    for line in &said {
        assert!(line["error"].is_null(), "{line}");
        if denials.contains(&line["call"].as_str().expect("a call")) {
            assert_eq!(line["code"], 7, "{line}");
        }
    }
    let service = "/grpc.testing.TestService";
    let once = |call: &str| app.calls().iter().filter(|line| line["method"] == format!("{service}/{call}")).count();
    // A cancelled stream ends in the app a moment after the client has gone on. One has a deadline of a millisecond, and
    // may not get that far.
    let cancelled = || app.calls().iter().any(|call| call["cancelled"] == true);
    crate::data::until("all streams have ended in the app", || once("FullDuplexCall") >= 13 && cancelled());
    node.audited_once(|line| is(line, &[("kind", "connection"), ("direction", "ingress")]));
    let seen = app.calls();
    assert_eq!(once("EmptyCall"), 2);
    assert_eq!(once("UnimplementedCall") + once("HalfDuplexCall"), 0, "what is denied never arrives");
    assert!(seen.iter().all(|call| call["deadline"] == true), "deadlines cross: {seen:#?}");
    let by_x = |call: &Value| call["xfcc"].to_string().contains("URI=spiffe://dev.invalid/t/t/w/x");
    assert!(seen.iter().all(by_x), "{seen:#?}");
    let (denied, allowed): (Vec<_>, Vec<_>) =
        node.audit().into_iter().filter(|line| line["kind"] == "request").partition(|line| line["verdict"] == "deny");
    // One line a call; a call that its client gave up at once may have a line and not have reached the app.
    let (arrived, mut passed) = (paths(&seen, "method"), paths(&allowed, "path"));
    for call in ["StreamingInputCall", "FullDuplexCall"].map(|call| format!("{service}/{call}")) {
        let given_up = passed[&call] - arrived[&call];
        assert!(given_up <= 1, "{call}: {passed:#?} {arrived:#?}");
        *passed.entry(call).or_default() -= given_up;
    }
    assert_eq!(arrived, passed);
    assert_eq!(denied.len(), 4, "{denied:#?}");
    assert!(denied.iter().all(|line| line["grpc_status"] == 7 && line["reason"] == "l7_mismatch"), "{denied:#?}");
    // All of it over one connection, which denials leave alone.
    assert!(denied.iter().chain(&allowed).all(|line| line["src"] == denied[0]["src"]), "{allowed:#?}");
}

fn curl_grpc(program: &Path, way: Way<'_>, what: &[&str]) -> Ended {
    let mut command = Command::new(program);
    command.args(["-max-time", "20", "-cacert", &way.file("ca.pem"), "-authority", NAME]);
    if way.port == MTLS {
        command.args(["-cert", &way.file("x.crt"), "-key", &way.file("x.key")]);
    }
    command.arg(format!("{}:{}", way.address(), way.port)).args(what);
    run(way.node.dir.path(), &mut command)
}

// covers: C12h
#[test]
fn grpcurl_lists_services_calls_what_is_allowed_and_is_denied_the_rest() {
    let Some(server) = go_clients() else { return };
    let Some(program) = grpcurl() else { return };
    let (node, app) = start(&server);
    for port in [EDGE, MTLS] {
        let way = Way { node: &node, port, protocol: "h2" };
        let listed = curl_grpc(&program, way, &["list"]);
        let services: Vec<&str> = listed.out.lines().collect();
        assert!(services.contains(&"grpc.testing.TestService"), "{listed:#?}");
        let called = curl_grpc(&program, way, &["grpc.testing.TestService/EmptyCall"]);
        assert_eq!(called.out.trim(), "{}", "{called:#?}");
        let denied = curl_grpc(&program, way, &["grpc.testing.TestService/UnimplementedCall"]);
        assert!(!denied.success && denied.err.contains("Code: PermissionDenied"), "{denied:#?}");
    }
    // Whoever has no certificate gets no further than the handshake.
    let stranger = Way { node: &node, port: EDGE, protocol: "h2" };
    let to = format!("{}:{MTLS}", stranger.address());
    let mut command = Command::new(&program);
    command.args(["-max-time", "20", "-connect-timeout", "5", "-cacert", &stranger.file("ca.pem"), "-authority", NAME]);
    assert!(!run(node.dir.path(), command.args([to.as_str(), "list"])).success);
    let called = |method: &str| app.calls().iter().filter(|call| call["method"] == method).count();
    assert_eq!(called("/grpc.testing.TestService/EmptyCall"), 2);
    assert_eq!(called("/grpc.testing.TestService/UnimplementedCall"), 0);
    let denied = node.audited(2, |line| is(line, &[("kind", "request"), ("verdict", "deny")]));
    assert!(denied.iter().all(|line| line["grpc_status"] == json!(7)), "{denied:#?}");
}
