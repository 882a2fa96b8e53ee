//! Programs that people call the world with, inside of a guest whose TLS is intercepted: with what nova-init installs and sets,
//! through the real relay. Each is told nothing but a URL.

#![allow(clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../data/mod.rs"]
mod data;
mod process;
#[path = "../clients/programs.rs"]
mod programs;
#[path = "../relay/mod.rs"]
mod relay;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use data::{Node, Plan, Upstream, X, is, issue};
use programs::{Ended, installed, java_program, python_with, run_with, script, sources};
use relay::Relay;
use serde_json::json;

const RULES: &str = "
external_cas: [{name: web-ca, pem_file: web-ca.pem}]
rules:
  - {id: look, tenant: t, from: {workload: x}, to: {external: look.test, port: 9443, ca: web-ca, addresses: [NET.80/32]}, http: {methods: [GET], paths: ['/v1/**']}, tls: intercept}
";
const URL: &str = "https://look.test:9443/v1/things?of=mine";

struct Guest {
    node: Node,
    upstream: Upstream,
    relay: Relay,
}

impl Guest {
    fn start() -> Self {
        let hosts = vec![("look.test".to_owned(), "NET.80".to_owned())];
        let node = Node::with(Plan { rules: RULES.to_owned(), hosts, half_close: false, ..Plan::default() });
        let upstream =
            Upstream::https(&format!("{}:9443", node.ip(80)), &issue(&node.web, "spiffe://web/host", "look.test"));
        let relay = Relay::start(node.dir.path(), X, &json!({"trust_dir": node.dir.path().join("trust")}));
        Self { node, upstream, relay }
    }

    fn run(&self, mut command: Command, variables: &BTreeMap<String, String>) -> Ended {
        command.env_clear().envs(variables);
        run_with(Stdio::null(), self.node.dir.path(), &mut command)
    }

    /// Calls with the CA and without it.
    fn judge(&self, command: impl Fn() -> Command) {
        let ended = self.run(command(), &self.relay.environment());
        assert!(ended.success && ended.out.contains("GET /v1/things?of=mine HTTP/1.1"), "{ended:#?}");
        assert_eq!(self.upstream.seen().len(), 1);
        let line = self.node.audited_once(|line| line["path"] == "/v1/things");
        assert!(is(&line, &[("verdict", "allow"), ("rule", "look")]) && line["intercepted"] == true, "{line}");
        let ended = self.run(command(), &self.relay.environment_without_trust());
        assert!(!ended.success, "{ended:#?}");
        let line = self.node.audited_once(|line| line["reason"] == "client_rejected_ca");
        assert!(line["detail"].as_str().is_some_and(|detail| detail.contains("does not trust the pod's CA")), "{line}");
        println!("without the CA: {}", line["detail"]);
        assert_eq!(self.upstream.seen().len(), 1);
    }
}

// covers: D6i
#[test]
fn curl_calls_through_an_intercepted_tunnel() {
    let Some(curl) = installed("curl") else { return };
    let guest = Guest::start();
    guest.judge(|| {
        let mut command = Command::new(&curl);
        command.args(["-q", "-sSf", "--max-time", "20", URL]);
        command
    });
}

// covers: D6i
#[test]
fn openssl_calls_through_an_intercepted_tunnel() {
    let Some(openssl) = installed("openssl") else { return };
    let guest = Guest::start();
    let proxy = guest.relay.proxy();
    for version in ["-tls1_2", "-tls1_3"] {
        let mut command = Command::new(&openssl);
        command.args(["s_client", "-proxy", &proxy, "-connect", "look.test:9443", "-servername", "look.test", version]);
        command.args(["-verify_return_error", "-verify_hostname", "look.test", "-x509_strict"]);
        let ended = guest.run(command, &guest.relay.environment());
        assert!(ended.out.contains("Verify return code: 0 (ok)") && ended.out.contains("New, TLSv1."), "{ended:#?}");
        assert!(!ended.out.contains("Reused, ") && !ended.out.contains("ession ticket"), "{ended:#?}");
    }
}

// covers: D6i
#[test]
fn python_calls_through_an_intercepted_tunnel() {
    let Some(python) = installed("python3") else { return };
    Guest::start().judge(|| get(&python, "get.py"));
}

// covers: D1k, D6i
#[test]
fn libraries_of_python_call_through_an_intercepted_tunnel() {
    for library in ["requests", "httpx", "aiohttp"] {
        let Some(python) = python_with(library) else { return };
        Guest::start().judge(|| get(&python, &format!("{library}_get.py")));
    }
}

// covers: D6i
#[test]
fn node_calls_through_an_intercepted_tunnel() {
    let Some(node) = installed("node") else { return };
    Guest::start().judge(|| get(&node, "get.mjs"));
}

// covers: D6i
#[test]
fn go_calls_through_an_intercepted_tunnel() {
    let Some(go) = installed("go") else { return };
    let guest = Guest::start();
    let program = guest.node.dir.path().join("get");
    let mut build = Command::new(&go);
    build.args(["build", "-o"]).arg(&program).arg(sources().join("intercept/get.go"));
    let built = build.output().expect("go starts");
    assert!(built.status.success(), "go build: {}", String::from_utf8_lossy(&built.stderr));
    guest.judge(|| {
        let mut command = Command::new(&program);
        command.arg(URL);
        command
    });
}

// covers: D6i
#[test]
fn java_calls_through_an_intercepted_tunnel() {
    let Some(java) = installed("java") else { return };
    Guest::start().judge(|| {
        let mut command = java_program(&java, &[], "intercept/Get.java");
        command.arg(URL);
        command
    });
}

fn get(interpreter: &Path, file: &str) -> Command {
    let mut command = script(interpreter, &format!("intercept/{file}"));
    command.arg(URL);
    command
}

// covers: D6k
#[test]
fn a_running_guest_gets_the_next_ca_and_whatever_starts_in_it_is_served_all_the_time() {
    if installed("curl").is_none() || installed("openssl").is_none() {
        return;
    }
    let guest = process::Guest::start("[interception]\nlifetime = \"20s\"\n");
    let with_reader = installed("python3").is_some();
    if with_reader {
        guest.start_reader();
    }
    assert!(guest.curl() && guest.openssl());
    let read = || std::fs::read_to_string(guest.file("trust/ca.pem")).expect("there at each moment");
    let first = read();
    data::until("the guest trusts both", || {
        assert!(guest.curl());
        read().matches("BEGIN CERTIFICATE").count() == 2
    });
    if with_reader {
        assert!(guest.reader().contains("GET /v1/things"), "what was read before goes on to be good");
    }
    data::until("the first one is over and gone", || {
        assert!(guest.curl());
        !read().contains(&first)
    });
    assert!(guest.openssl());
    if with_reader {
        let said = guest.reader();
        assert!(said.starts_with("failed: "), "its CA is over: {said}");
    }
}

// covers: D6m
#[test]
fn after_the_supervisor_was_killed_what_starts_in_the_same_guest_is_served_again() {
    if installed("curl").is_none() || installed("openssl").is_none() {
        return;
    }
    let mut guest = process::Guest::start("");
    let with_reader = installed("python3").is_some();
    if with_reader {
        guest.start_reader();
        assert!(guest.reader().contains("GET /v1/things"));
    }
    assert!(guest.curl() && guest.openssl());
    guest.node.restart();
    data::until("curl is served again", || guest.curl());
    assert!(guest.openssl());
    if with_reader {
        let said = guest.reader();
        assert!(said.starts_with("failed: "), "it knows the CA of before only: {said}");
        let named = |line: &serde_json::Value| {
            line["detail"].as_str().is_some_and(|detail| detail.contains("restart it if it read its store before"))
        };
        data::until("the log says what to do", || guest.node.audit().iter().any(named));
    }
}
