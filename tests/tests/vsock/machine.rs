//! One virtual machine, from image to power-off. It has no device but a serial port: its vsock is the kernel's loopback.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nova_novalet::image::cpio::Archive;
use nova_novalet::image::{ImageSpec, Machine};
use serde::Deserialize;

use crate::parts::Parts;

/// From the start of QEMU to its end; about 20 s beside a compiler.
const DEADLINE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);
/// What the guest loads: no transport but the loopback, so no CID leads anywhere else.
const MODULES: [&str; 3] = ["vsock", "vmw_vsock_virtio_transport_common", "vsock_loopback"];
/// Given to the relay by nova-init, and to the checks, which play the supervisor.
const TOKEN: &str = "a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5";

/// What one check said.
#[derive(Deserialize)]
pub(crate) struct Check {
    check: String,
    pub(crate) ok: bool,
    pub(crate) detail: String,
    pub(crate) ms: u64,
}

/// What the machine said.
#[derive(Default)]
pub(crate) struct Found {
    /// By name.
    pub(crate) checks: BTreeMap<String, Check>,
    serial: String,
    ended: String,
}

impl Found {
    /// How the run went; the whole console when something failed.
    pub(crate) fn explain(&self, with_console: bool) {
        println!("{}", self.ended);
        if with_console {
            println!("the machine's console:\n{}", self.serial);
        }
    }
}

/// Boots it and reads what it says.
pub(crate) fn run(parts: &Parts) -> Found {
    let folder = tempfile::tempdir().expect("a folder");
    let initrd = folder.path().join("initrd.cpio");
    image(parts, &initrd);
    let serial = folder.path().join("serial.log");
    let start = Instant::now();
    let mut qemu = Qemu::start(&parts.kernel, &initrd, &serial);
    let ended = qemu.wait(start + DEADLINE);
    let ended = format!("the machine ran for {:.1} s and {ended}", start.elapsed().as_secs_f64());
    let text = fs::read(&serial).unwrap_or_default();
    let serial = String::from_utf8_lossy(&text).replace('\r', "");
    let checks = serial.lines().filter_map(parse).map(|check| (check.check.clone(), check)).collect();
    Found { checks, serial, ended }
}

/// The console is shared with everything that speaks in the guest: a check's object ends its line, but need not begin it.
fn parse(line: &str) -> Option<Check> {
    serde_json::from_str(line.get(line.find("{\"check\":")?..)?).ok()
}

/// novalet's image for microVMs, and behind it what only this machine has.
fn image(parts: &Parts, initrd: &Path) {
    let base = ImageSpec {
        bin_dir: parts.programs.clone(),
        busybox: parts.busybox.clone(),
        curl: None,
        ping: None,
        modules: parts.modules.clone(),
        machine: Machine::Microvm,
        extra_modules: vec!["vsock_loopback".into()],
    };
    let base = base.build(&initrd.with_extension("base")).expect("the base image");
    base.with_pod_segment(guest_json().as_bytes(), initrd).expect("the guest's configuration");
    let mut own = Archive::default();
    for program in ["nova-vsock-check", "nova-supervisor"] {
        own.file(&format!("nova/{program}"), 0o755, stripped(&parts.programs.join(program), initrd));
    }
    let mut file = fs::OpenOptions::new().append(true).open(initrd).expect("the image");
    own.write(&mut file).expect("written");
}

fn guest_json() -> String {
    let modules: Vec<String> = MODULES.iter().map(|name| format!("/nova/modules/{name}.ko")).collect();
    let config = serde_json::json!({
        "workload": "x", "workload_ip": "10.64.3.11", "boot_token": TOKEN,
        "link": {"vsock": {"host_cid": 1}}, "host_ports": [15001], "guest_port": 15080, "framed": false,
        "proxy_port": 3128, "ingress": [{"tcp": 8080}, {"tcp": 8081}, {"tcp": 8082}],
        "dependencies": [{"host": "db.t.nova", "port": 5432, "guest_ip": "127.0.1.1"}],
        "hosts_file": "/etc/hosts", "modules": modules, "is_guest_init": true,
        "relay_uid": 64001, "app_uid": 64002,
        "command": ["/nova/nova-vsock-check"], "env": {"NOVA_CHECK_TOKEN": TOKEN},
    });
    config.to_string()
}

/// Without debug information, which is most of the file; as it is where `strip` is missing.
fn stripped(program: &Path, beside: &Path) -> Vec<u8> {
    let small = beside.with_extension("stripped");
    let done = Command::new("strip").arg("-o").arg(&small).arg(program).status();
    let file = if done.is_ok_and(|status| status.success()) { &small } else { program };
    fs::read(file).expect("the program that was built")
}

/// A running QEMU. Dropping it kills it, and so does our own end.
struct Qemu(Child);

impl Qemu {
    fn start(kernel: &Path, initrd: &Path, serial: &Path) -> Self {
        // Under the emulator this machine type has nothing to calibrate the TSC against.
        let line = "console=ttyS0 panic=-1 quiet tsc_early_khz=2600000 nova.vsock_check -- --config /nova/guest.json";
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "qemu-system-x86_64", "-no-user-config", "-nodefaults", "-display", "none"])
            .args(["-no-reboot", "-nic", "none", "-accel", "tcg", "-cpu", "max", "-machine", "microvm"])
            .args(["-smp", "1", "-m", "512", "-append", line, "-serial"])
            .arg(format!("file:{}", serial.display()))
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(initrd)
            .stdin(Stdio::null())
            .spawn();
        Self(child.expect("setpriv and QEMU were found"))
    }

    fn wait(&mut self, deadline: Instant) -> String {
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return format!("QEMU ended with {status}"),
                Ok(None) if Instant::now() >= deadline => return format!("was stopped after {DEADLINE:?}"),
                Ok(None) => std::thread::sleep(POLL),
                Err(error) => return format!("cannot be waited for: {error}"),
            }
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
