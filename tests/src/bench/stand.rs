//! What both benches need around the proxies: a folder, processes, the signed bundle, the audit log.

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

use super::call::Call;
use super::case::Case;
use crate::lab::files::write_secret;
use crate::lab::pki::{Ca, Handover};
use crate::lab::spawn::{Proc, run};
use crate::lab::wait_for;

pub(super) const PROMPT: Duration = Duration::from_secs(20);
/// Threads of each proxy.
pub(super) const WORKERS: usize = 2;
/// Boot token of every guest.
pub(super) const TOKEN: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// One proxy, which may have several ways in.
pub(super) struct Proxy {
    pub(super) pids: Vec<u32>,
    /// Muxer and relay, where they are processes of their own. Their CPU is the guest's, not the proxy's.
    pub(super) relay_pids: Vec<u32>,
}

/// A connection whose memory is looked at, and of which proxy.
pub(super) struct Idle {
    pub(super) name: &'static str,
    pub(super) proxy: usize,
    pub(super) call: Call,
}

/// Everything that runs, and what is measured of it.
pub(super) struct Stand {
    pub(super) proxies: Vec<Proxy>,
    pub(super) cases: Vec<Case>,
    pub(super) idle: Vec<Idle>,
    /// `--version` of the proxies.
    pub(super) versions: Vec<String>,
    processes: Vec<Proc>,
    dir: TempDir,
}

impl Stand {
    /// An empty folder, on a disk, where the log of a real node would be.
    pub(super) fn new() -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("nova-bench-").tempdir_in("/var/tmp")?;
        let (proxies, cases, idle, versions, processes) = Default::default();
        Ok(Self { proxies, cases, idle, versions, processes, dir })
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts a program that runs until the bench ends, and gives its process id.
    pub(super) fn start(&mut self, name: &str, argv: &[String]) -> anyhow::Result<u32> {
        let process = Proc::start_here(name, self.dir.path(), argv)?;
        let pid = process.pid();
        self.processes.push(process);
        Ok(pid)
    }

    /// Fails when a process has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        self.processes.iter_mut().try_for_each(Proc::check)
    }

    /// Waits until what was started does what `look` asks for.
    pub(super) fn wait_for(&mut self, what: &str, look: impl Fn() -> anyhow::Result<()>) -> anyhow::Result<()> {
        wait_for(what, PROMPT, || {
            self.check()?;
            look()
        })
    }

    pub(super) fn wait_for_port(&mut self, what: &str, addr: SocketAddr) -> anyhow::Result<()> {
        self.wait_for(what, || Ok(std::net::TcpStream::connect(addr).map(drop)?))
    }

    pub(super) fn wait_for_file(&mut self, file: &Path) -> anyhow::Result<()> {
        self.wait_for(&file.display().to_string(), || Ok(fs::metadata(file).map(drop)?))
    }

    /// Starts the supervisor on `endpoints` and `rules`; `more` is configuration that only one bench has.
    pub(super) fn start_nova(
        &mut self,
        bins: &Path,
        ca: &Ca,
        (endpoints, rules): (&str, &str),
        more: &str,
    ) -> anyhow::Result<u32> {
        let dir = self.dir().to_owned();
        fs::write(dir.join("endpoints.yaml"), endpoints)?;
        fs::write(dir.join("rules.yaml"), rules)?;
        publish(bins, &dir)?;
        let handover = Handover::new(&ca.identity())?;
        fs::write(dir.join("supervisor.toml"), supervisor(&dir, handover.number()) + more)?;
        let program = text(&bins.join("nova-supervisor"));
        self.versions.push(first_line(&run(Command::new(&program).arg("--version"))?.stdout));
        let config = text(&dir.join("supervisor.toml"));
        self.start("supervisor", &[program, "run".into(), "--config".into(), config])
    }

    /// A guest as on a link that loses half-close: the emulated muxer of the pod `pod`, and the relay, of which `relay` is the
    /// configuration beside the link.
    pub(super) fn start_guest(
        &mut self,
        bins: &Path,
        pod: &str,
        relay: &serde_json::Value,
    ) -> anyhow::Result<Vec<u32>> {
        let dir = self.dir().to_owned();
        let guest = dir.join("relay");
        fs::create_dir_all(&guest)?;
        let mut config = json!({
            "link": {"unix": {"dir": guest}}, "boot_token": hex::encode(TOKEN), "host_ports": [15001],
            "guest_port": 15080, "framed": true, "dependencies": [],
        });
        if let (Some(config), Some(relay)) = (config.as_object_mut(), relay.as_object()) {
            config.extend(relay.clone());
        }
        write_secret(&dir.join("relay.json"), &config.to_string())?;
        let socket = text(&dir.join("guests").join(pod).join("v.sock"));
        let muxer =
            [text(&bins.join("novalet-ref")), "mux".into(), "--socket".into(), socket, "--guest".into(), text(&guest)];
        let muxer = self.start("mux", &muxer)?;
        // It reads its configuration from standard input, as nova-init gives it.
        let (program, file) = (text(&bins.join("nova-relay")), text(&dir.join("relay.json")));
        let relay = self.start("relay", &["sh".into(), "-c".into(), "exec \"$0\" < \"$1\"".into(), program, file])?;
        Ok(vec![muxer, relay])
    }

    fn audit_log(&self) -> PathBuf {
        self.dir().join("audit.jsonl")
    }

    /// The supervisor appends, so that cutting the file is safe. A gigabyte of log is nobody's wish.
    pub(super) fn empty_audit_log(&self) -> anyhow::Result<()> {
        Ok(fs::OpenOptions::new().write(true).open(self.audit_log())?.set_len(0)?)
    }

    /// Lines of that kind, as soon as there are `at_least` of them, or after a while.
    pub(super) fn audited(&self, kind: &str, at_least: u64) -> anyhow::Result<u64> {
        let wanted = format!("\"kind\":\"{kind}\",\"");
        let is_wanted = |line: &Vec<u8>| line.windows(wanted.len()).any(|part| part == wanted.as_bytes());
        let count = || -> anyhow::Result<u64> {
            let file = BufReader::with_capacity(1 << 20, fs::File::open(self.audit_log())?);
            Ok(file.split(b'\n').map_while(Result::ok).filter(is_wanted).count() as u64)
        };
        wait_for("audit lines", PROMPT, || {
            let lines = count()?;
            anyhow::ensure!(lines >= at_least, "{lines} lines");
            Ok(lines)
        })
        .or_else(|_| count())
    }
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
pub(super) fn free_address(ip: &str) -> anyhow::Result<SocketAddr> {
    TcpListener::bind((ip, 0))?.local_addr().context("a free address")
}

pub(super) fn first_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().next().unwrap_or_default().to_owned()
}

pub(super) fn text(path: &Path) -> String {
    path.display().to_string()
}
