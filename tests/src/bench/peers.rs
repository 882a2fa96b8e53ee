//! The proxies under measurement, each started as its operator would.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::json;
use tempfile::TempDir;

use super::callers::{CALLEE, CALLEE_BEHIND_RELAY, Callers};
use super::upstream::Listeners;
use crate::lab::files::write_secret;
use crate::lab::pki::Handover;
use crate::lab::spawn::{Proc, run};
use crate::lab::wait_for;

const PROMPT: Duration = Duration::from_secs(20);
/// Threads of each proxy.
const WORKERS: usize = 2;
const TOKEN: &str = "000102030405060708090a0b0c0d0e0f";

/// One way through one proxy.
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) addr: SocketAddr,
    /// Name that its certificate has.
    pub(super) server_name: &'static str,
    /// The proxy's processes.
    pub(super) pids: Vec<u32>,
    /// Muxer and relay, where they are processes of their own. Their CPU is the guest's, not the proxy's.
    pub(super) relay_pids: Vec<u32>,
    pub(super) is_nova: bool,
    /// The same process serves several peers: its memory is looked at once.
    pub(super) counts_memory: bool,
}

/// Everything that runs.
pub(super) struct Stand {
    peers: Vec<Peer>,
    processes: Vec<Proc>,
    dir: TempDir,
    /// `--version` of the proxies.
    pub(super) versions: Vec<String>,
}

impl Stand {
    /// Starts upstream and proxies.
    pub(super) fn start(bins: &Path, callers: &Callers) -> anyhow::Result<Self> {
        // A disk, where the log of a real node would be.
        let dir = tempfile::Builder::new().prefix("nova-bench-").tempdir_in("/var/tmp")?;
        let path = dir.path();
        for folder in ["guests/pod-x", "guests/pod-y", "guests/pod-a", "guests/pod-b", "relay"] {
            fs::create_dir_all(path.join(folder))?;
        }
        let unix = path.join("app.sock");
        let upstream = Listeners::bind(&unix, &path.join("guests/pod-a/v.sock"))?;
        let app = upstream.tcp.local_addr()?;
        upstream.serve()?;
        let mut stand = Self { peers: Vec::new(), processes: Vec::new(), dir, versions: Vec::new() };
        stand.start_haproxy(callers, &unix, app)?;
        stand.start_relay(bins, app)?;
        stand.start_nova(bins, callers)?;
        Ok(stand)
    }

    pub(super) fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// Fails when a process has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        self.processes.iter_mut().try_for_each(Proc::check)
    }

    fn audit_log(&self) -> PathBuf {
        self.dir.path().join("audit.jsonl")
    }

    /// The supervisor appends, so that cutting the file is safe. A gigabyte of log is nobody's wish.
    pub(super) fn empty_audit_log(&self) -> anyhow::Result<()> {
        Ok(fs::OpenOptions::new().write(true).open(self.audit_log())?.set_len(0)?)
    }

    /// Lines about requests, as soon as there are `at_least` of them, or after a while.
    pub(super) fn audited_requests(&self, at_least: u64) -> anyhow::Result<u64> {
        let count = || -> anyhow::Result<u64> {
            let file = BufReader::with_capacity(1 << 20, fs::File::open(self.audit_log())?);
            let is_request = |line: &Vec<u8>| line.windows(18).any(|part| part == b"\"kind\":\"request\",\"");
            Ok(file.split(b'\n').map_while(Result::ok).filter(is_request).count() as u64)
        };
        wait_for("audit lines", PROMPT, || {
            let lines = count()?;
            anyhow::ensure!(lines >= at_least, "{lines} lines");
            Ok(lines)
        })
        .or_else(|_| count())
    }

    fn start_haproxy(&mut self, callers: &Callers, unix: &Path, app: SocketAddr) -> anyhow::Result<()> {
        let dir = self.dir.path().to_owned();
        fs::write(dir.join("ca.pem"), callers.ca.certificate())?;
        write_secret(&dir.join("server.pem"), &callers.ca.leaf_named(CALLEE, None, Some(CALLEE))?)?;
        let (over_unix, over_tcp) = (free_address("127.0.0.1")?, free_address("127.0.0.1")?);
        let mut text = format!(
            "global\n  nbthread {WORKERS}\n  maxconn 4000\n  ssl-default-bind-options ssl-min-ver TLSv1.3 no-tls-tickets\n  \
             tune.ssl.cachesize 0\ndefaults\n  mode http\n  timeout client 60s\n  timeout server 60s\n  \
             timeout connect 5s\n  http-reuse always\n"
        );
        for (name, listen, server) in
            [("unix", over_unix, format!("unix@{}", unix.display())), ("tcp", over_tcp, app.to_string())]
        {
            text.push_str(&format!(
                "frontend in_{name}\n  bind {listen} ssl crt {0}/server.pem ca-file {0}/ca.pem verify required alpn \
                 http/1.1\n  acl x ssl_c_s_dn(cn) -m str client-x\n  acl get method GET\n  \
                 http-request deny unless x get\n  default_backend to_{name}\nbackend to_{name}\n  server a {server}\n",
                dir.display()
            ));
        }
        fs::write(dir.join("haproxy.cfg"), text)?;
        let version = run(Command::new("haproxy").arg("-v"))?;
        self.versions.push(first_line(&version.stdout));
        let config = dir.join("haproxy.cfg").display().to_string();
        let haproxy = Proc::start_here("haproxy", &dir, ["haproxy", "-db", "-f", &config])?;
        let pids = vec![haproxy.pid()];
        self.processes.push(haproxy);
        for (name, addr, counts_memory) in
            [("HAProxy, Unix socket", over_unix, true), ("HAProxy, TCP", over_tcp, false)]
        {
            self.wait_for_port(name, addr)?;
            let (pids, relay_pids) = (pids.clone(), Vec::new());
            self.peers.push(Peer { name, addr, server_name: CALLEE, pids, relay_pids, is_nova: false, counts_memory });
        }
        Ok(())
    }

    /// A guest as on a link that loses half-close: the emulated muxer, and the relay in front of the app.
    fn start_relay(&mut self, bins: &Path, app: SocketAddr) -> anyhow::Result<()> {
        let dir = self.dir.path().to_owned();
        let guest = dir.join("relay");
        let proxy_port = free_address("127.0.0.1")?.port();
        let config = json!({
            "link": {"unix": {"dir": guest}}, "boot_token": TOKEN, "host_ports": [15001], "guest_port": 15080,
            "framed": true, "proxy_port": proxy_port, "ingress": [{"tcp": app.port()}], "dependencies": [],
        });
        write_secret(&dir.join("relay.json"), &config.to_string())?;
        fs::write(dir.join("app-port"), app.port().to_string())?;
        let text = |path: PathBuf| path.display().to_string();
        let socket = text(dir.join("guests/pod-b/v.sock"));
        let mux =
            [text(bins.join("novalet-ref")), "mux".into(), "--socket".into(), socket, "--guest".into(), text(guest)];
        self.processes.push(Proc::start_here("mux", &dir, mux)?);
        // It reads its configuration from standard input, as nova-init gives it.
        let (program, file) = (text(bins.join("nova-relay")), text(dir.join("relay.json")));
        let relay = ["sh".into(), "-c".into(), "exec \"$0\" < \"$1\"".into(), program, file];
        self.processes.push(Proc::start_here("relay", &dir, relay)?);
        Ok(())
    }

    fn start_nova(&mut self, bins: &Path, callers: &Callers) -> anyhow::Result<()> {
        let dir = self.dir.path().to_owned();
        let (direct, relayed) = (free_address("127.0.1.21")?, free_address("127.0.1.31")?);
        let app_port = fs::read_to_string(dir.join("app-port"))?;
        fs::write(dir.join("endpoints.yaml"), endpoints(direct, relayed, &app_port))?;
        fs::write(dir.join("rules.yaml"), RULES)?;
        publish(bins, &dir)?;
        let handover = Handover::new(&callers.ca.identity())?;
        fs::write(dir.join("supervisor.toml"), supervisor(&dir, handover.number()))?;
        let program = bins.join("nova-supervisor").display().to_string();
        self.versions.push(first_line(&run(Command::new(&program).arg("--version"))?.stdout));
        let config = dir.join("supervisor.toml").display().to_string();
        let nova = Proc::start_here("supervisor", &dir, [&program, "run", "--config", &config])?;
        drop(handover);
        let pids = vec![nova.pid()];
        let guest = self.processes[1..].iter().map(Proc::pid).collect();
        self.processes.push(nova);
        let ways = [
            ("nova, guest link", direct, CALLEE, Vec::new()),
            ("nova, framed, through nova-relay", relayed, CALLEE_BEHIND_RELAY, guest),
        ];
        for (name, addr, server_name, relay_pids) in ways {
            self.wait_for_port(name, addr)?;
            let (pids, counts_memory) = (pids.clone(), relay_pids.is_empty());
            self.peers.push(Peer { name, addr, server_name, pids, relay_pids, is_nova: true, counts_memory });
        }
        Ok(())
    }

    fn wait_for_port(&mut self, what: &str, addr: SocketAddr) -> anyhow::Result<()> {
        wait_for(what, PROMPT, || {
            self.check()?;
            std::net::TcpStream::connect(addr)?;
            Ok(())
        })
    }
}

const RULES: &str = "rules:
  - id: x-to-a
    tenant: t
    from: { workload: x }
    to: { workload: service-a, port: https }
    http: { methods: [GET], paths: [\"/v1/orders/**\", /large] }
  - id: x-to-b
    tenant: t
    from: { workload: x }
    to: { workload: service-b, port: https }
    http: { methods: [GET], paths: [\"/v1/orders/**\", /large] }
";

fn endpoints(direct: SocketAddr, relayed: SocketAddr, app_port: &str) -> String {
    let caller = |id: &str, ip: &str| {
        format!(
            "  - workload_id: {id}\n    tenant: t\n    pod_uid: pod-{id}\n    generation: 1\n    workload_ip: {ip}\n    \
             backend: {{ hybrid: {{ file: v.sock, half_close: false }} }}\n    ports: []\n    state: ready\n    \
             boot_token: {TOKEN}\n"
        )
    };
    let callee = |letter: &str, addr: SocketAddr, half_close: bool| {
        format!(
            "  - workload_id: service-{letter}\n    tenant: t\n    pod_uid: pod-{letter}\n    generation: 1\n    \
             workload_ip: {}\n    backend: {{ hybrid: {{ file: v.sock, half_close: {half_close} }} }}\n    ports:\n      \
             - {{ name: https, port: {}, target_port: {app_port}, mode: mtls, protocol: http }}\n    state: ready\n    \
             boot_token: {TOKEN}\n    limits: {{ max_connections: 4000 }}\n",
            addr.ip(),
            addr.port()
        )
    };
    ["endpoints:\n".to_owned(), caller("x", "127.0.1.11"), caller("y", "127.0.1.12"), callee("a", direct, true)]
        .concat()
        + &callee("b", relayed, false)
}

fn supervisor(dir: &Path, ca_fd: i32) -> String {
    let dir = dir.display();
    format!(
        "[node]\nid = \"node-1\"\nmode = \"dev\"\nworkers = {WORKERS}\n\n\
         [endpoints]\nfile = \"{dir}/endpoints.yaml\"\n\n\
         [policy]\nbundle = \"{dir}/bundle.tar.gz\"\nkeys = \"{dir}/keys.json\"\nstore = \"{dir}/store\"\n\n\
         [identity]\nsource = \"dev\"\nca_fd = {ca_fd}\n\n\
         [guests]\nroot = \"{dir}/guests\"\n\n\
         [routes]\nmode = \"none\"\n\n\
         [audit]\nfile = \"{dir}/audit.jsonl\"\n\n\
         [admin]\nsocket = \"{dir}/admin.sock\"\n"
    )
}

fn publish(bins: &Path, dir: &Path) -> anyhow::Result<()> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    write_secret(&dir.join("signing.pem"), &key.serialize_pem())?;
    fs::write(dir.join("keys.json"), json!({"bench": ["ES256", key.public_key_pem()]}).to_string())?;
    let mut build = Command::new(bins.join("nova-policy"));
    build.current_dir(dir).args(["bundle", "build", "--rules", "rules.yaml", "--workloads", "endpoints.yaml"]);
    build.args(["--node", "node-1", "--key", "signing.pem", "--key-id", "bench", "-o", "bundle.tar.gz"]);
    run(&mut build)?;
    Ok(())
}

/// An address that is free now; whoever takes it in between makes the start fail, not the measurement wrong.
fn free_address(ip: &str) -> anyhow::Result<SocketAddr> {
    TcpListener::bind((ip, 0))?.local_addr().context("a free address")
}

fn first_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().next().unwrap_or_default().to_owned()
}
