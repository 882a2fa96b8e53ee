//! A node whose supervisor is the real program and whose guests, callers and destinations are this test: each as hostile as
//! the test wants. Every node has loopback addresses of its own, so tests run side by side.
#![allow(dead_code, unused_imports, unreachable_pub, reason = "each test binary uses its own part of it")]
#![allow(clippy::panic, reason = "a test that cannot go on fails")]

mod client;
mod guest;
pub mod h2;
mod hpack;
mod http;
pub mod secure;
mod upstream;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nova_policy::bundle::{KeyPair, SigningKey, VerifyKeys};
use nova_policy::compile::{Options, SourceText};
use nova_policy::publish::{self, Publish};
use nova_proto::ids::SpiffeId;
use nova_supervisor::identity::{DevCa, Issued};
use serde_json::{Value, json};

pub use client::{Tls, TlsError, config, config_of, config_with, dial};
pub use guest::{App, Guest, Link, hello, polite};
pub use hpack::encode as hpack_of;
pub use http::{Answer, header, read_answer, read_answer_to, read_head, read_request};
pub use upstream::{Upstream, server_config};

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);
pub const X: &str = "pod-x";
pub const A: &str = "pod-a";
pub const B: &str = "pod-b";
pub const HTTPS: u16 = 8443;
pub const RAW: u16 = 5432;

/// `NET` stands for the first three octets of the node's addresses.
const ENDPOINTS: &str = "
endpoints:
  - workload_id: x
    tenant: t
    pod_uid: pod-x
    generation: 1
    workload_ip: NET.11
    backend: {hybrid: {file: v.sock, half_close: HALF}}
    ports: []
    state: ready
    drain_timeout_ms: 8000
    boot_token: 00000000000000000000000000000011
    dependencies: [{host: dep.test, port: 5432, guest_ip: 127.0.1.1}, {host: service-a.t.nova, port: 8443, guest_ip: 127.0.1.2}]
  - workload_id: service-a
    tenant: t
    pod_uid: pod-a
    generation: 1
    workload_ip: NET.21
    backend: {hybrid: {file: v.sock, half_close: HALF}}
    ports:
      - {name: https, port: 8443, target_port: 18080, mode: mtls, protocol: http}
      - {name: raw, port: 5432, target_port: 15432, mode: tcp, protocol: tcp}
      - {name: wrapped, port: 7443, target_port: 15432, mode: mtls, protocol: tcp}
    state: ready
    drain_timeout_ms: 8000
    boot_token: 00000000000000000000000000000021
  - workload_id: b
    tenant: t
    pod_uid: pod-b
    generation: 1
    workload_ip: NET.31
    backend: {hybrid: {file: v.sock, half_close: HALF}}
    ports: [{name: https, port: 8443, target_port: 18080, mode: mtls, protocol: http}]
    state: ready
    drain_timeout_ms: 8000
    boot_token: 00000000000000000000000000000031
";

/// What most tests decide on.
pub const RULES: &str = "
external_cas:
  - {name: partner-ca, pem_file: partner-ca.pem}
  - {name: web-ca, pem_file: web-ca.pem}
rules:
  - id: x-to-a
    tenant: t
    from: {workload: x}
    to: {workload: service-a, port: https}
    http: {methods: [GET, HEAD, POST, PUT], paths: ['/v1/orders/**']}
  - id: partner-to-a
    tenant: t
    from: {external_ca: partner-ca, uri: 'spiffe://partner/*'}
    to: {workload: service-a, port: https}
    http: {methods: [GET], paths: ['/v1/orders/**']}
  - id: outside-to-a-raw
    tenant: t
    from: {cidr: NET.96/28}
    to: {workload: service-a, port: raw}
  - id: x-to-a-wrapped
    tenant: t
    from: {workload: x}
    to: {workload: service-a, port: wrapped}
  - id: x-to-plain
    tenant: t
    from: {workload: x}
    to: {external: plain.test, port: 8080, addresses: [NET.80/32]}
    http: {methods: [GET, HEAD, POST, PUT], paths: ['/**']}
    tls: none
  - id: x-to-api
    tenant: t
    from: {workload: x}
    to: {external: api.test, port: 9443, ca: web-ca, addresses: [NET.80/32]}
    http: {methods: [GET, POST], paths: ['/v1/**']}
  - id: x-to-upgraded
    tenant: t
    from: {workload: x}
    to: {external: up.test, port: 443, ca: web-ca, addresses: [NET.80/32]}
    http: {methods: [GET], paths: ['/**']}
  - id: x-to-tcp
    tenant: t
    from: {workload: x}
    to: {external: tcp.test, port: 5432, addresses: [NET.80/32]}
  - id: x-to-dep
    tenant: t
    from: {workload: x}
    to: {external: dep.test, port: 5432, addresses: [NET.80/32]}
  - id: b-to-plain
    tenant: t
    from: {workload: b}
    to: {external: plain.test, port: 8080, addresses: [NET.80/32]}
    http: {methods: [GET, POST], paths: ['/**']}
    tls: none
";

/// What a node is made of.
pub struct Plan {
    pub rules: String,
    pub endpoints: String,
    /// Extra names, beside those of the workloads and `*.test`.
    pub hosts: Vec<(String, String)>,
    /// Whether the links carry half-close; if not, connections are framed.
    pub half_close: bool,
    pub lab: bool,
    /// The supervisor's limit of open files.
    pub files: Option<u64>,
    /// Further lines of `[identity]`, or all of them, `source` first.
    pub identity: String,
    /// Further sections of the configuration.
    pub sections: String,
    /// Makes files of the node's folder before it starts.
    pub prepare: fn(&std::path::Path, &DevCa),
    /// What is logged.
    pub log: &'static str,
    /// Variables of the supervisor's environment; `DIR` is the node's folder.
    pub env: Vec<(&'static str, &'static str)>,
    /// More lines of `[policy]` and of `[audit]`.
    pub policy: &'static str,
    pub audit: &'static str,
    /// And of `[resolver]`.
    pub resolver: &'static str,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            rules: RULES.to_owned(),
            endpoints: ENDPOINTS.to_owned(),
            hosts: Vec::new(),
            half_close: true,
            lab: true,
            files: None,
            identity: String::new(),
            sections: String::new(),
            prepare: |_, _| {},
            log: "warn,nova_supervisor=debug,nova_supervisor::control=warn",
            env: Vec::new(),
            policy: "",
            audit: "",
            resolver: "",
        }
    }
}

pub struct Node {
    pub dir: tempfile::TempDir,
    pub ca: DevCa,
    pub partner: DevCa,
    pub web: DevCa,
    child: Mutex<Child>,
    pub pid: u32,
    net: String,
    key: SigningKey,
    serial: AtomicU64,
    endpoints: Mutex<String>,
    guests: Vec<Guest>,
    plan: Plan,
}

static NODES: AtomicU32 = AtomicU32::new(0);
/// While a descriptor without CLOEXEC is open, no other test of this process may start a program.
static SPAWN: Mutex<()> = Mutex::new(());

impl Node {
    pub fn start() -> Self {
        Self::with(Plan::default())
    }

    /// Starts guests and supervisor and waits until service-a and b serve, if the plan has them.
    pub fn with(plan: Plan) -> Self {
        let number = NODES.fetch_add(1, Ordering::Relaxed);
        let net = format!("127.{}.{}", 64 + std::process::id() % 150, 1 + number);
        let dir = tempfile::tempdir().expect("a temporary folder");
        let half = plan.half_close.to_string();
        let endpoints = plan.endpoints.replace("NET", &net).replace("HALF", &half);
        let guests = [X, A, B].map(|pod| Guest::start(&dir.path().join("guests").join(pod), !plan.half_close)).into();
        let pair = KeyPair::es256().expect("a key");
        let ca = DevCa::generate().expect("a CA");
        fs::write(dir.path().join("keys.json"), {
            let mut keys = VerifyKeys::default();
            keys.insert("release", pair.algorithm, &pair.public_pem);
            keys.to_json()
        })
        .expect("written");
        fs::write(dir.path().join("endpoints.yaml"), &endpoints).expect("written");
        (plan.prepare)(dir.path(), &ca);
        let (child, pid) = spawn(&dir, &net, &plan, &ca);
        let node = Self {
            dir,
            ca,
            partner: DevCa::generate().expect("a CA"),
            web: DevCa::generate().expect("a CA"),
            child: Mutex::new(child),
            pid,
            net,
            key: SigningKey::from_pem(pair.private_pem.as_bytes()).expect("a signing key"),
            serial: AtomicU64::new(0),
            endpoints: Mutex::new(endpoints),
            guests,
            plan,
        };
        node.publish(&node.plan.rules);
        let is_there = |workload: &&str| node.plan.endpoints.contains(&format!("workload_id: {workload}\n"));
        node.wait_serving(&["service-a", "b"].into_iter().filter(is_there).collect::<Vec<_>>());
        until("x may call out", || node.stage("x").is_some_and(|stage| stage != "waiting"));
        node
    }

    /// Kills the supervisor, as the kernel would, and starts another one on what is on disk.
    pub fn restart(&mut self) {
        {
            let mut child = self.child.lock().expect("no panic");
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
        let (child, pid) = spawn(&self.dir, &self.net, &self.plan, &self.ca);
        (self.child, self.pid) = (Mutex::new(child), pid);
        self.wait_serving(&["service-a", "b"]);
        until("x may call out", || self.stage("x").is_some_and(|stage| stage != "waiting"));
    }

    /// `NET.n`
    pub fn ip(&self, n: u8) -> String {
        format!("{}.{n}", self.net)
    }

    pub fn text(&self, text: &str) -> String {
        text.replace("NET", &self.net)
    }

    pub fn guest(&self, pod: &str) -> &Guest {
        let at = [X, A, B].iter().position(|name| *name == pod).expect("a pod of the plan");
        &self.guests[at]
    }

    /// What guest `pod` opens towards the supervisor: a proxy connection with the right token.
    pub fn proxy(&self, pod: &str) -> Link {
        self.guest(pod).dial(1, token(pod), "")
    }

    pub fn svid(&self, workload: &str) -> Issued {
        issue(&self.ca, &format!("spiffe://dev.invalid/t/t/w/{workload}"), &format!("{workload}.t.nova"))
    }

    /// mTLS to `service-a`'s port as `who`, from `NET.99`.
    pub fn call(&self, who: Option<&Issued>, port: u16) -> Result<Tls, TlsError> {
        Tls::connect(&self.ip(99), &format!("{}:{port}", self.ip(21)), who)
    }

    /// HTTP/2 to `service-a`'s port as `who`, from `NET.99`.
    pub fn call_h2(&self, who: &Issued, port: u16) -> h2::H2<Tls> {
        let tls = self.call_alpn(who, port, &["h2"]).expect("connected");
        assert_eq!(tls.alpn().as_deref(), Some("h2"));
        h2::H2::client(tls)
    }

    /// mTLS with these protocols on offer.
    pub fn call_alpn(&self, who: &Issued, port: u16, offered: &[&str]) -> Result<Tls, TlsError> {
        let mut config = rustls::ClientConfig::clone(&config(Some(who)));
        config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
        let tcp = dial(&self.ip(99), &format!("{}:{port}", self.ip(21)))?;
        Tls::over(tcp, Arc::new(config), "service-a.t.nova")
    }

    /// Compiles, signs and puts a bundle in place; returns when it decides.
    pub fn publish(&self, rules: &str) -> u64 {
        self.publish_until(rules, 3600)
    }

    pub fn publish_until(&self, rules: &str, expires_in: u64) -> u64 {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed) + 1;
        self.put_bundle(&self.bundle_until(serial, rules, expires_in));
        until("the bundle is active", || {
            self.ask(&json!({"op": "policy"}))
                .is_some_and(|answer| answer.to_string().contains(&format!("node-1@{serial}\"")))
        });
        serial
    }

    pub fn bundle(&self, serial: u64, rules: &str) -> Vec<u8> {
        self.bundle_until(serial, rules, 3600)
    }

    /// A bundle that is good for so many seconds.
    pub fn bundle_until(&self, serial: u64, rules: &str, expires_in: u64) -> Vec<u8> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let load = |name: &str| match name {
            "partner-ca.pem" => Ok(self.partner.certificate_pem().into_bytes()),
            "web-ca.pem" => Ok(self.web.certificate_pem().into_bytes()),
            other => Err(std::io::Error::other(other.to_owned())),
        };
        publish::publish(
            SourceText { file: "rules.yaml", text: &self.text(rules) },
            SourceText { file: "endpoints.yaml", text: &self.endpoints.lock().expect("no panic") },
            &Options { node: "node-1".to_owned(), lab: true },
            &load,
            &Publish { key: &self.key, key_id: "release", serial, now, expires_in },
        )
        .unwrap_or_else(|error| panic!("the rules of a test compile: {error}"))
    }

    pub fn put_bundle(&self, bytes: &[u8]) {
        self.put("bundle.tar.gz", bytes);
    }

    /// Replaces text in `endpoints.yaml` within the row of `workload`.
    pub fn edit_endpoint(&self, workload: &str, from: &str, to: &str) {
        let mut text = self.endpoints.lock().expect("no panic");
        let row = text.find(&format!("workload_id: {workload}\n")).expect("a row");
        let at = row + text[row..].find(from).expect("the text is there");
        text.replace_range(at..at + from.len(), to);
        self.put("endpoints.yaml", text.as_bytes());
    }

    /// Takes the whole row of the last endpoint away.
    pub fn remove_endpoint(&self, workload: &str) {
        let mut text = self.endpoints.lock().expect("no panic");
        let row = text.find(&format!("  - workload_id: {workload}\n")).expect("a row");
        let end = text[row + 4..].find("  - workload_id").map_or(text.len(), |at| row + 4 + at);
        text.replace_range(row..end, "");
        self.put("endpoints.yaml", text.as_bytes());
    }

    /// What `ready` warns of.
    pub fn warnings(&self) -> String {
        self.ask(&json!({"op": "ready"})).map(|ready| ready["warnings"].to_string()).unwrap_or_default()
    }

    /// Puts a file in the node's folder in one step.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let beside = self.dir.path().join(format!("{name}.new"));
        fs::write(&beside, bytes).expect("written");
        fs::rename(beside, self.dir.path().join(name)).expect("renamed");
    }

    /// One question to the operator's socket.
    pub fn ask(&self, question: &Value) -> Option<Value> {
        let mut stream = UnixStream::connect(self.dir.path().join("admin.sock")).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        writeln!(stream, "{question}").ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        Some(serde_json::from_str::<Value>(&line).ok()?["result"].take())
    }

    pub fn endpoint(&self, workload: &str) -> Option<Value> {
        let all = self.ask(&json!({"op": "endpoints"}))?;
        all.as_array()?.iter().find(|row| row["workload"] == workload).cloned()
    }

    pub fn stage(&self, workload: &str) -> Option<String> {
        Some(self.endpoint(workload)?["stage"].as_str()?.to_owned())
    }

    pub fn wait_serving(&self, workloads: &[&str]) {
        for workload in workloads {
            until(&format!("{workload} serves"), || self.stage(workload).as_deref() == Some("serving"));
        }
    }

    /// Connections of an endpoint that count against its cap.
    pub fn open(&self, workload: &str) -> u64 {
        self.endpoint(workload).and_then(|row| row["connections"].as_u64()).expect("an endpoint")
    }

    /// All listed connections.
    pub fn connections(&self) -> Vec<Value> {
        self.ask(&json!({"op": "connections"})).and_then(|all| all.as_array().cloned()).expect("a list")
    }

    /// The audit log as of now.
    pub fn audit(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.dir.path().join("audit.jsonl")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}"))).collect()
    }

    /// Waits until `count` lines of the log fit, and says which; more than `count` fail the test.
    pub fn audited(&self, count: usize, fits: impl Fn(&Value) -> bool) -> Vec<Value> {
        let all = || self.audit().into_iter().filter(|line| fits(line)).collect::<Vec<_>>();
        let deadline = Instant::now() + PATIENCE;
        while all().len() < count && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let found = all();
        assert_eq!(found.len(), count, "lines that fit: {found:#?}\nof {:#?}", self.audit());
        found
    }

    /// The only line that fits.
    pub fn audited_once(&self, fits: impl Fn(&Value) -> bool) -> Value {
        self.audited(1, fits).remove(0)
    }

    /// Descriptors of the supervisor.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid)).map_or(0, Iterator::count)
    }

    pub fn terminate(&self) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.pid).expect("a pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM).expect("it runs");
    }

    /// Waits for the end, and says with which code.
    pub fn wait_exit(&self) -> Option<i32> {
        until("the supervisor ends", || !self.is_running());
        self.child.lock().expect("no panic").wait().expect("a child").code()
    }

    pub fn is_running(&self) -> bool {
        self.child.lock().expect("no panic").try_wait().expect("a child").is_none()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("stderr")).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
        let log = self.log();
        if std::thread::panicking() {
            eprintln!("--- supervisor's log\n{log}");
        } else {
            assert!(!log.contains("panicked"), "the supervisor panicked:\n{log}");
        }
    }
}

fn spawn(dir: &tempfile::TempDir, net: &str, plan: &Plan, ca: &DevCa) -> (Child, u32) {
    let _alone = SPAWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).expect("a pipe");
    File::from(write).write_all(ca.to_pem().expect("a CA").as_bytes()).expect("fits");
    let inherited: OwnedFd = nix::unistd::dup(&read).expect("a descriptor");
    let config = dir.path().join("supervisor.toml");
    fs::write(&config, config_text(net, plan, inherited.as_raw_fd())).expect("written");
    let program = env!("CARGO_BIN_EXE_nova-supervisor");
    let mut command = match plan.files {
        None => Command::new(program),
        Some(files) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("ulimit -n {files} && exec \"$0\" \"$@\""), program]);
            shell
        }
    };
    let child = command
        .args(["run", "--config"])
        .arg(config)
        .env("RUST_LOG", plan.log)
        .env("NO_COLOR", "1")
        .env_remove("SSL_CERT_FILE")
        .env_remove("SSL_CERT_DIR")
        .envs(plan.env.iter().map(|(name, value)| (name, value.replace("DIR", &dir.path().display().to_string()))))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(dir.path().join("stderr")).expect("a file"))
        .spawn()
        .expect("the supervisor starts");
    let pid = child.id();
    (child, pid)
}

fn config_text(net: &str, plan: &Plan, ca_fd: i32) -> String {
    let mut hosts =
        vec![("service-a.t.nova".to_owned(), format!("{net}.21")), ("b.t.nova".to_owned(), format!("{net}.31"))];
    for name in ["plain.test", "api.test", "up.test", "tcp.test", "dep.test"] {
        hosts.push((name.to_owned(), format!("{net}.80")));
    }
    for (name, address) in &plan.hosts {
        hosts.retain(|(known, _)| known != name);
        hosts.push((name.clone(), address.replace("NET", net)));
    }
    let hosts: Vec<_> = hosts
        .iter()
        .map(|(name, addresses)| {
            let list: Vec<_> = addresses.split(',').map(|address| format!("\"{}\"", address.trim())).collect();
            format!("\"{name}\" = [{}]", list.join(", "))
        })
        .collect();
    let (policy, audit, resolver) = (plan.policy, plan.audit, plan.resolver.replace("NET", net));
    let is_whole = plan.identity.starts_with("source");
    let dev = if is_whole { String::new() } else { format!("source = \"dev\"\nca_fd = {ca_fd}\n") };
    let identity = format!("{dev}{}", plan.identity);
    let sections = plan.sections.replace("NET", net);
    let lab = if plan.lab { "[lab]\nallow_destinations = [\"127.0.0.0/8\"]\n" } else { "" };
    format!(
        "[node]\nid = \"node-1\"\nmode = \"dev\"\nworkers = 2\n[endpoints]\nfile = \"endpoints.yaml\"\n\
         [policy]\nbundle = \"bundle.tar.gz\"\nkeys = \"keys.json\"\nstore = \"store\"\n{policy}\n\
         [identity]\n{identity}[guests]\nroot = \"guests\"\n[routes]\nmode = \"none\"\n\
         [resolver]\nhosts = {{ {} }}\n{resolver}\n[audit]\nfile = \"audit.jsonl\"\n{audit}\n[admin]\nsocket = \"admin.sock\"\n{lab}{sections}",
        hosts.join(", ")
    )
}

pub fn issue(ca: &DevCa, id: &str, dns: &str) -> Issued {
    ca.issue(&SpiffeId::new(id).expect("a SPIFFE ID"), dns, Duration::from_secs(3600)).expect("issued")
}

pub fn token(pod: &str) -> [u8; 16] {
    let mut token = [0; 16];
    token[15] = match pod {
        X => 0x11,
        A => 0x21,
        _ => 0x31,
    };
    token
}

/// Polls until `holds`, and fails the test after [`PATIENCE`].
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs something that may hang and fails the test if it does.
pub fn in_time<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(run()));
    wait.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("not in time or failed: {what}"))
}

/// Descriptors after everything that was open has been noticed as closed.
pub fn settles(node: &Node, before: usize) {
    until("descriptors come back", || node.descriptors() <= before + 8);
    until("nothing is listed", || node.connections().is_empty() && node.open("x") == 0);
}

/// A thousand connections and who makes them need more descriptors than a shell gives.
pub fn many_descriptors() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("up to the hard limit");
}

pub type Shared<T> = Arc<Mutex<T>>;

pub fn is(line: &Value, fields: &[(&str, &str)]) -> bool {
    fields.iter().all(|(name, value)| line[*name] == *value)
}

pub fn socket_of(dir: &tempfile::TempDir, pod: &str) -> PathBuf {
    dir.path().join("guests").join(pod).join("v.sock")
}
