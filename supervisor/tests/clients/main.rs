//! Programs that people call services with, against the real supervisor and a guest with the real relay.
//!
//! Each runs the same list of calls; `judge` compares what it says with what the app saw and with the audit log. A program
//! that is not installed is named in a line that says SKIPPED; where `NOVA_CI` is set it is a failure.

#![allow(clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../data/mod.rs"]
mod data;
#[path = "../relay/mod.rs"]
mod relay;

mod app;
mod curl;
mod grpc;
mod guest;
mod judge;
mod outside;
mod programs;
mod stage;
mod tls;

use std::path::{Path, PathBuf};
use std::process::Command;

use judge::{Abilities, judge};
use programs::{go_clients, installed, java_program, run, script};
use stage::{EDGE, MTLS, PLAIN, Way};

const HTTP2: &str = "HTTP/2.0";

/// Runs one of our clients against a port and judges it.
fn client(port: u16, protocol: &'static str, can: &Abilities, command: impl FnOnce(Way<'_>) -> Command) {
    let (node, app) = stage::http();
    let way = Way { node: &node, port, protocol };
    let said = run(node.dir.path(), command(way).args(way.arguments())).lines();
    judge(way, &app, can, &said);
}

fn curl_on(port: u16, protocol: &'static str, can: &Abilities) {
    let Some(program) = installed("curl") else { return };
    let (node, app) = stage::http();
    let way = Way { node: &node, port, protocol };
    judge(way, &app, can, &curl::calls(&program, way));
}

// covers: C12b
#[test]
fn curl_calls_in_http_1_1() {
    curl_on(MTLS, "h1", &Abilities::default());
}

// covers: C12b
#[test]
fn curl_calls_in_http_2() {
    // One connection for all that one process does, however much at once.
    curl_on(EDGE, "h2", &Abilities { protocol: HTTP2, connections: Some(3), ..Abilities::default() });
}

// covers: C12b
#[test]
fn curl_calls_in_http_2_without_tls() {
    let Some(program) = installed("curl") else { return };
    let (node, app) = stage::http();
    curl::one_by_one(&program, Way { node: &node, port: PLAIN, protocol: "h2" });
    assert_eq!(app.seen().len(), 2);
}

// covers: C12c
#[test]
fn pythons_http_client_and_urllib_call_in_http_1_1() {
    let Some(python) = installed("python3") else { return };
    let can = Abilities {
        expects: false,
        tells_continue: false,
        tells_trailers: false,
        urllib: true,
        ..Abilities::default()
    };
    client(MTLS, "h1", &can, |_| script(&python, "python/client.py"));
}

// covers: C12d
#[test]
fn nodes_https_calls_in_http_1_1() {
    let Some(node) = installed("node") else { return };
    client(MTLS, "h1", &Abilities::default(), |_| script(&node, "node/client.mjs"));
}

// covers: C12d
#[test]
fn nodes_http2_calls() {
    let Some(node) = installed("node") else { return };
    let can = Abilities { protocol: HTTP2, connections: Some(1), ..Abilities::default() };
    client(EDGE, "h2", &can, |_| script(&node, "node/client.mjs"));
}

// covers: C12e
#[test]
fn gos_net_http_calls_in_http_1_1() {
    let Some(program) = go_clients() else { return };
    client(EDGE, "h1", &Abilities::default(), |_| go(&program, "http"));
}

// covers: C12e
#[test]
fn gos_net_http_calls_in_http_2() {
    let Some(program) = go_clients() else { return };
    let can = Abilities { protocol: HTTP2, connections: Some(1), ..Abilities::default() };
    client(MTLS, "h2", &can, |_| go(&program, "http"));
}

// covers: C12e
#[test]
fn gos_net_http_calls_in_http_2_without_tls() {
    let Some(program) = go_clients() else { return };
    let can = Abilities { protocol: HTTP2, connections: Some(1), ..Abilities::default() };
    client(PLAIN, "h2", &can, |_| go(&program, "http"));
}

fn java_can(protocol: &'static str) -> Abilities {
    Abilities { protocol, tells_continue: false, tells_trailers: false, ..Abilities::default() }
}

// covers: C12f
#[test]
fn javas_http_client_calls_in_http_1_1() {
    let Some(java) = installed("java") else { return };
    client(MTLS, "h1", &java_can("HTTP/1.1"), |way| java_client(&java, way));
}

// covers: C12f
#[test]
fn javas_http_client_calls_in_http_2() {
    let Some(java) = installed("java") else { return };
    client(MTLS, "h2", &java_can(HTTP2), |way| java_client(&java, way));
}

// covers: C12f
#[test]
fn javas_http_client_asks_to_upgrade_to_h2c_and_goes_on_in_http_1_1() {
    let Some(java) = installed("java") else { return };
    client(PLAIN, "h2", &java_can("HTTP/1.1"), |way| java_client(&java, way));
}

fn go(program: &PathBuf, part: &str) -> Command {
    let mut command = Command::new(program);
    command.arg(part);
    command
}

fn java_client(java: &Path, way: Way<'_>) -> Command {
    java_program(java, &[format!("-Djdk.net.hosts.file={}", way.file("hosts"))], "java/Client.java")
}
