//! The node: novalet-ref with its guests, and the supervisor, started as an operator would.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};

use super::files::{self, NodeFiles, Workload};
use super::guest::Guest;
use super::net::Network;
use super::pki::{Ca, Handover};
use super::spawn::{Proc, command, run};
use super::stage::{GuestKind, Stage};
use super::wait_for;
use super::world::World;
use crate::programs::client;
use crate::programs::talk;

/// The supervisor's user where there is more than one user.
const SUPERVISOR_UID: u32 = 64_000;
/// A guest under emulation on a busy machine takes its time.
const BOOT: Duration = Duration::from_secs(240);
const PROMPT: Duration = Duration::from_secs(20);

/// A running node with its world.
pub struct Node {
    /// What the guests are.
    pub kind: GuestKind,
    /// The binaries.
    pub stage: Stage,
    /// Folder of the run.
    pub run: PathBuf,
    /// Who the outside is.
    pub world: World,
    /// The CA of the node.
    pub dev_ca: Ca,
    /// The CA that a rule names.
    pub partner_ca: Ca,
    /// A CA that nobody knows.
    pub stranger_ca: Ca,
    /// The namespaces.
    pub net: Network,
    supervisor: Proc,
    novalet: Proc,
}

/// Shows what is going on while it goes on.
pub fn step<T>(what: &str, action: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let start = Instant::now();
    eprint!("{what} ...");
    let done = action().with_context(|| what.to_owned());
    eprintln!(" {} ({:.1} s)", if done.is_ok() { "done" } else { "FAILED" }, start.elapsed().as_secs_f64());
    done
}

impl Node {
    /// Starts everything and waits until every workload serves.
    ///
    /// # Errors
    /// When a part does not come up, with what it said.
    pub fn start(stage: &Stage, kind: GuestKind, run_dir: &Path) -> anyhow::Result<Self> {
        let logs = run_dir.join("logs");
        fs::create_dir(&logs)?;
        let net = step("network: namespaces node, world and outside", || Network::make(&logs))?;
        let (dev_ca, partner_ca, stranger_ca) = (
            Ca::new("lab dev CA", Some("spiffe://dev.invalid"))?,
            Ca::new("lab partner CA", Some("spiffe://partner"))?,
            Ca::new("lab stranger CA", Some("spiffe://partner"))?,
        );
        let stripe_ca = Ca::new("lab stripe CA", None)?;
        let world = step("world: resolver, api.stripe.com stub, TCP server", || {
            World::start(&net, &stripe_ca, run_dir, &logs)
        })?;
        let dir = run_dir.join("node");
        fs::create_dir(&dir)?;
        fs::write(dir.join("partner-ca.pem"), partner_ca.certificate())?;
        fs::write(dir.join("stripe-ca.pem"), stripe_ca.certificate())?;
        fs::write(dir.join("placements.yaml"), files::placements(kind))?;
        make_signing_key(&dir)?;
        step("policy: rules compiled, bundle signed", || publish(stage, &dir, files::RULES))?;
        let novalet = start_novalet(stage, kind, &net, run_dir, &logs)?;
        let supervisor = start_supervisor(stage, kind, &net, run_dir, &logs, &dev_ca)?;
        let run = run_dir.to_owned();
        let mut node =
            Self { kind, stage: stage.clone(), run, world, dev_ca, partner_ca, stranger_ca, net, supervisor, novalet };
        step(&format!("guests: three {} guests until their workloads serve", kind.name()), || {
            node.wait_until_serving()
        })?;
        Ok(node)
    }

    /// Waits until every workload serves.
    ///
    /// # Errors
    /// When one does not in time.
    pub fn wait_until_serving(&mut self) -> anyhow::Result<()> {
        wait_for("workloads serve", BOOT, || {
            self.check()?;
            for Workload { id, pod, .. } in files::WORKLOADS {
                let phase = self.phase(pod)?;
                if phase != "SERVING" {
                    bail!("{id} is {phase}");
                }
            }
            Ok(())
        })
    }

    /// Fails when a process of the node has ended.
    ///
    /// # Errors
    /// With its last words.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.novalet.check()?;
        self.supervisor.check()
    }

    /// What the supervisor acknowledged last for a pod.
    ///
    /// # Errors
    /// When novalet-ref does not answer.
    pub fn phase(&self, pod: &str) -> anyhow::Result<String> {
        let status: Value = serde_json::from_str(&self.novalet(&["status", "--json"])?)?;
        let pods = status["pods"].as_array().context("pods")?;
        let pod = pods.iter().find(|entry| entry["pod_uid"] == pod).with_context(|| format!("no pod {pod}"))?;
        let ack = &pod["acks"][0];
        Ok(ack["phase"].as_str().filter(|phase| !phase.is_empty()).unwrap_or("not acknowledged").to_owned())
    }

    /// A guest, by its workload.
    #[must_use]
    pub fn guest(&self, workload: Workload) -> Guest {
        let uplink = match self.kind {
            GuestKind::Microvm => "vsock:2:15001",
            GuestKind::Process => "unix:/run/nova/link/host_15001",
        };
        Guest { socket: self.run.join("pods").join(workload.pod).join("v.sock"), uplink: uplink.into() }
    }

    /// Boot token of a pod, as only novalet-ref and the guest's root know it.
    ///
    /// # Errors
    /// When the pod has none.
    pub fn boot_token(&self, workload: Workload) -> anyhow::Result<[u8; 16]> {
        let file = self.run.join("novalet/pods").join(workload.pod).join("guest.json");
        let config: Value = match self.kind {
            GuestKind::Process => serde_json::from_slice(&fs::read(file)?)?,
            // A microVM has it in the last segment of its image.
            GuestKind::Microvm => in_image(&file.with_file_name("initrd.cpio"))?,
        };
        let token = hex::decode(config["boot_token"].as_str().context("boot_token")?)?;
        token.try_into().map_err(|_| anyhow::anyhow!("a boot token of another length"))
    }

    /// Compiles, signs and publishes rules; the supervisor picks the file up by itself.
    ///
    /// # Errors
    /// When the rules have mistakes.
    pub fn publish(&self, rules: &str) -> anyhow::Result<()> {
        publish(&self.stage, &self.run.join("node"), rules)
    }

    /// The audit log so far.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn audit(&self) -> anyhow::Result<Vec<Value>> {
        files::json_lines(&self.run.join("node/audit.jsonl"))
    }

    /// An operator's sub-command of the supervisor, with `--json`.
    ///
    /// # Errors
    /// When it fails.
    pub fn supervisor(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let socket = self.run.join("node/admin.sock").display().to_string();
        let mut command = Command::new(self.stage.host("nova-supervisor"));
        command.args(arguments).args(["--socket", &socket]);
        Ok(String::from_utf8_lossy(&run(&mut command)?.stdout).into_owned())
    }

    /// An operator's sub-command of novalet-ref.
    ///
    /// # Errors
    /// When it fails.
    pub fn novalet(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(self.stage.host("novalet-ref"));
        command.args(arguments).arg("--run-dir").arg(self.run.join("novalet"));
        Ok(String::from_utf8_lossy(&run(&mut command)?.stdout).into_owned())
    }

    /// A raw mutual TLS call from outside; `identity` is handed over on a descriptor.
    ///
    /// # Errors
    /// When the client cannot be run.
    pub fn call_from_outside(
        &self,
        to: Workload,
        identity: Option<&str>,
        path: &str,
    ) -> anyhow::Result<client::Outcome> {
        let me = std::env::current_exe()?.display().to_string();
        let (address, sni) = (format!("{}:443", to.ip), to.host());
        let roots = self.run.join("node/dev-ca.pem").display().to_string();
        let mut argv: Vec<&str> =
            vec![&me, "client", "--connect", &address, "--sni", &sni, "--roots", &roots, "--get", path];
        let handover = identity.map(Handover::new).transpose()?;
        let number = handover.as_ref().map(|pipe| pipe.number().to_string());
        if let Some(number) = &number {
            argv.extend(["--identity-fd", number]);
        }
        let output = run(&mut command(self.net.outside, argv)?)?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// A scripted conversation from outside.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn talk_from_outside(
        &self,
        to: SocketAddr,
        script: &[talk::Step],
        limit: Duration,
    ) -> anyhow::Result<talk::Outcome> {
        let me = std::env::current_exe()?.display().to_string();
        let (to, limit) = (format!("tcp:{to}"), limit.as_millis().to_string());
        let mut command = command(self.net.outside, [&me, "talk", "--to", &to, "--timeout-ms", &limit])?;
        let mut child = command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn()?;
        serde_json::to_writer(child.stdin.take().context("stdin")?, script)?;
        Ok(serde_json::from_slice(&child.wait_with_output()?.stdout)?)
    }

    /// Process id of the supervisor.
    #[must_use]
    pub fn supervisor_pid(&self) -> u32 {
        self.supervisor.pid()
    }

    /// What the supervisor said last, for the report of a failure.
    #[must_use]
    pub fn last_words(&self) -> String {
        format!("supervisor:\n{}\nnovalet-ref:\n{}", self.supervisor.log_tail(), self.novalet.log_tail())
    }

    /// Copies all logs to `folder`.
    ///
    /// # Errors
    /// When a file cannot be copied.
    pub fn save(&self, folder: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(folder)?;
        fs::copy(self.run.join("node/audit.jsonl"), folder.join("audit.jsonl"))?;
        let pods = fs::read_dir(self.run.join("novalet/pods"))?.flatten().map(|entry| entry.path());
        for source in pods.chain([self.run.join("logs"), self.run.join("world")]) {
            let prefix = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
            for entry in fs::read_dir(&source)?.flatten().filter(|entry| entry.path().is_file()) {
                let name = entry.file_name().to_string_lossy().into_owned();
                // Logs and records; not the images and keys beside them.
                if name.ends_with(".log") || !name.contains('.') {
                    fs::copy(entry.path(), folder.join(format!("{prefix}-{name}")))?;
                }
            }
        }
        Ok(())
    }

    /// Ends the node as an operator would: everything drained, nothing left.
    ///
    /// # Errors
    /// When a process cannot be waited for.
    pub fn stop(self) -> anyhow::Result<()> {
        self.novalet.stop(PROMPT)?;
        self.supervisor.stop(PROMPT)
    }
}

/// The last segment of a pod's image is a cpio archive whose only file is its configuration.
fn in_image(image: &Path) -> anyhow::Result<Value> {
    let bytes = fs::read(image)?;
    let name = b"nova/guest.json\0";
    let at = bytes.windows(name.len()).rposition(|window| window == name).context("no guest.json in the image")?;
    let start = at + bytes[at..].iter().position(|byte| *byte == b'{').context("no JSON in the image")?;
    let mut values = serde_json::Deserializer::from_slice(&bytes[start..]).into_iter();
    Ok(values.next().context("no JSON in the image")??)
}

/// The key that signs bundles, and the file by which the node knows it.
fn make_signing_key(dir: &Path) -> anyhow::Result<()> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    files::write_secret(&dir.join("signing.pem"), &key.serialize_pem())?;
    fs::write(dir.join("keys.json"), json!({"lab": ["ES256", key.public_key_pem()]}).to_string())?;
    Ok(())
}

fn publish(stage: &Stage, dir: &Path, rules: &str) -> anyhow::Result<()> {
    fs::write(dir.join("rules.yaml"), rules)?;
    let mut command = Command::new(stage.host("nova-policy"));
    command.current_dir(dir).args(["bundle", "build", "--rules", "rules.yaml", "--workloads", "placements.yaml"]);
    command.args(["--node", "node-1", "--key", "signing.pem", "--key-id", "lab", "-o", "bundle.tar.gz"]);
    run(&mut command)?;
    Ok(())
}

fn start_novalet(stage: &Stage, kind: GuestKind, net: &Network, run_dir: &Path, logs: &Path) -> anyhow::Result<Proc> {
    let control = run_dir.join("control");
    fs::create_dir(&control)?;
    let text = |path: PathBuf| path.display().to_string();
    let mut argv = vec![text(stage.host("novalet-ref")), "run".into(), "--node".into(), "node-1".into()];
    for (option, path) in [
        ("--placements", run_dir.join("node/placements.yaml")),
        ("--control-socket", control.join("novalet.sock")),
        ("--guest-root", run_dir.join("pods")),
        ("--run-dir", run_dir.join("novalet")),
        ("--guest-bin-dir", stage.guest_bins.clone()),
    ] {
        argv.extend([option.into(), text(path)]);
    }
    argv.extend(["--guests".into(), kind.name().into()]);
    if kind == GuestKind::Microvm {
        let uid = SUPERVISOR_UID.to_string();
        argv.extend(["--supervisor-uid".into(), uid.clone(), "--supervisor-gid".into(), uid]);
        for (option, path) in [
            ("--qemu", &stage.qemu),
            ("--kernel", &stage.kernel),
            ("--modules", &stage.modules),
            ("--vhost-device-vsock", &stage.vhost_device_vsock),
        ] {
            argv.extend([option.into(), text(path.clone().context("the stage has no tools for microVMs")?)]);
        }
    }
    let mut novalet = Proc::start("novalet-ref", net.node, logs, argv)?;
    step("novalet-ref: control socket, guests starting", || {
        wait_for("its control socket", BOOT, || {
            novalet.check()?;
            if control.join("novalet.sock").exists() { Ok(()) } else { bail!("not there yet") }
        })
    })?;
    Ok(novalet)
}

fn start_supervisor(
    stage: &Stage,
    kind: GuestKind,
    net: &Network,
    run_dir: &Path,
    logs: &Path,
    ca: &Ca,
) -> anyhow::Result<Proc> {
    let dir = run_dir.join("node");
    let handover = Handover::new(&ca.identity())?;
    let run_as = (kind == GuestKind::Microvm).then_some(SUPERVISOR_UID);
    let config = dir.join("supervisor.toml");
    let (guest_root, control) = (run_dir.join("pods"), run_dir.join("control/novalet.sock"));
    let files = NodeFiles { dir: &dir, guest_root: &guest_root, control: &control, ca_fd: handover.number(), run_as };
    fs::write(&config, files::supervisor(&files))?;
    if let Some(uid) = run_as {
        chown(&dir, Some(uid), Some(uid))?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o750))?;
    }
    let (program, config) = (stage.host("nova-supervisor").display().to_string(), config.display().to_string());
    let mut supervisor = Proc::start("supervisor", net.node, logs, [&program, "run", "--config", &config])?;
    step("supervisor: started", || {
        wait_for("its admin socket", PROMPT, || {
            supervisor.check()?;
            if dir.join("admin.sock").exists() { Ok(()) } else { bail!("not there yet") }
        })
    })?;
    Ok(supervisor)
}
