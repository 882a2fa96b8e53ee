//! Programs that people call the world with, inside of a guest whose TLS is intercepted: with what nova-init installs and sets,
//! through the real relay. Each is told nothing but a URL.

#![allow(clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../data/mod.rs"]
mod data;
#[allow(dead_code, reason = "the clients of ingress use the rest")]
#[path = "../clients/programs.rs"]
mod programs;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use data::{Node, Plan, Upstream, X, is, issue};
use nova_relay::handover::Handed;
use nova_relay::init::config::GuestConfig;
use nova_relay::init::surroundings::environment;
use nova_relay::init::trust;
use nova_relay::relay::Relay;
use programs::{Ended, installed, run_with, sources};

const RULES: &str = "
external_cas: [{name: web-ca, pem_file: web-ca.pem}]
rules:
  - {id: look, tenant: t, from: {workload: x}, to: {external: look.test, port: 9443, ca: web-ca, addresses: [NET.80/32]}, http: {methods: [GET], paths: ['/v1/**']}, tls: intercept}
";
const URL: &str = "https://look.test:9443/v1/things?of=mine";

struct Guest {
    node: Node,
    upstream: Upstream,
    /// What the app's environment is, and what it would be without a CA.
    trusting: BTreeMap<String, String>,
    doubting: BTreeMap<String, String>,
    proxy: u16,
}

impl Guest {
    fn start() -> Self {
        let hosts = vec![("look.test".to_owned(), "NET.80".to_owned())];
        let node = Node::with(Plan { rules: RULES.to_owned(), hosts, half_close: false, ..Plan::default() });
        let upstream =
            Upstream::https(&format!("{}:9443", node.ip(80)), &issue(&node.web, "spiffe://web/host", "look.test"));
        let pod = node.dir.path().join("guests").join(X);
        let link = pod.join("relay");
        std::fs::create_dir(&link).expect("a folder");
        symlink(pod.join("v.sock_15001"), link.join("host_15001")).expect("linked");
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
        let config: GuestConfig = serde_json::from_value(serde_json::json!({
            "workload": "x", "workload_ip": node.ip(11), "boot_token": "00000000000000000000000000000011",
            "link": {"unix": {"dir": link}}, "host_ports": [15001], "guest_port": 15080, "framed": true,
            "proxy_port": free.port(), "trust_dir": node.dir.path().join("trust"), "command": ["app"],
        }))
        .expect("a configuration");
        let (ready, wait) = mpsc::channel();
        let shared = config.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let relay = Relay::start(shared.for_relay(), Handed::default()).expect("the relay starts");
                let trust = trust::prepare(&shared).await.expect("the files are written");
                ready.send(trust.expect("a CA")).expect("somebody waits");
                relay.serve().await;
            });
        });
        let installed = wait.recv().expect("the guest is ready");
        let variables = |trust| {
            let mut all = environment(&config, trust);
            // The machine's own, which is the image here.
            for name in ["PATH", "HOME"] {
                all.insert(name.to_owned(), std::env::var(name).unwrap_or_default());
            }
            all
        };
        let (trusting, doubting) = (variables(Some(&installed)), variables(None));
        Self { node, upstream, trusting, doubting, proxy: free.port() }
    }

    fn run(&self, mut command: Command, variables: &BTreeMap<String, String>) -> Ended {
        command.env_clear().envs(variables);
        run_with(Stdio::null(), self.node.dir.path(), &mut command)
    }

    /// Calls with the CA and without it.
    fn judge(&self, command: impl Fn() -> Command) {
        let ended = self.run(command(), &self.trusting);
        assert!(ended.success && ended.out.contains("GET /v1/things?of=mine HTTP/1.1"), "{ended:#?}");
        assert_eq!(self.upstream.seen().len(), 1);
        let line = self.node.audited_once(|line| line["path"] == "/v1/things");
        assert!(is(&line, &[("verdict", "allow"), ("rule", "look")]) && line["intercepted"] == true, "{line}");
        let ended = self.run(command(), &self.doubting);
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
    let proxy = format!("127.0.0.1:{}", guest.proxy);
    for version in ["-tls1_2", "-tls1_3"] {
        let mut command = Command::new(&openssl);
        command.args(["s_client", "-proxy", &proxy, "-connect", "look.test:9443", "-servername", "look.test", version]);
        command.args(["-verify_return_error", "-verify_hostname", "look.test", "-x509_strict"]);
        let ended = guest.run(command, &guest.trusting);
        assert!(ended.out.contains("Verify return code: 0 (ok)") && ended.out.contains("New, TLSv1."), "{ended:#?}");
        assert!(!ended.out.contains("Reused, ") && !ended.out.contains("ession ticket"), "{ended:#?}");
    }
}

// covers: D6i
#[test]
fn python_calls_through_an_intercepted_tunnel() {
    let Some(python) = installed("python3") else { return };
    Guest::start().judge(|| script(&python, "get.py"));
}

// covers: D6i
#[test]
fn node_calls_through_an_intercepted_tunnel() {
    let Some(node) = installed("node") else { return };
    Guest::start().judge(|| script(&node, "get.mjs"));
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
        let mut command = Command::new(&java);
        command
            .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"])
            .arg(sources().join("intercept/Get.java"))
            .arg(URL);
        command
    });
}

fn script(interpreter: &std::path::Path, file: &str) -> Command {
    let mut command = Command::new(interpreter);
    command.arg(sources().join("intercept").join(file)).arg(URL);
    command
}
