//! nova-init as a process guest, in a user and network namespace of its own.
// covers: A4

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use common::{eventually, free_port};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

struct Guest {
    dir: TempDir,
}

impl Guest {
    fn new(script: &str) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let guest = Self { dir };
        let config = serde_json::json!({
            "workload": "x", "workload_ip": "10.64.3.11", "boot_token": "a5".repeat(16),
            "link": {"unix": {"dir": guest.dir.path()}}, "host_ports": [15001], "guest_port": 15080, "framed": true,
            "proxy_port": free_port(), "ingress": [{"tcp": 80}],
            "dependencies": [{"host": "db.t.nova", "port": 443, "guest_ip": "127.0.1.1"}],
            "hosts_file": guest.path("hosts"), "relay": env!("CARGO_BIN_EXE_nova-relay"),
            "command": ["/bin/sh", "-c", script], "env": {"DIR": guest.dir.path()},
        });
        fs::write(guest.path("guest.json"), config.to_string()).expect("write");
        fs::set_permissions(guest.path("guest.json"), fs::Permissions::from_mode(0o600)).expect("chmod");
        guest
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(&self) -> Child {
        Command::new("unshare")
            .args(["-Urn", env!("CARGO_BIN_EXE_nova-init"), "--config"])
            .arg(self.path("guest.json"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("unshare must start")
    }

    fn run(&self) -> Output {
        self.start().wait_with_output().expect("output")
    }
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'))
}

#[test]
fn a_configuration_that_others_can_read_is_refused() {
    let guest = Guest::new("exit 0");
    fs::set_permissions(guest.path("guest.json"), fs::Permissions::from_mode(0o644)).expect("chmod");
    let output = guest.run();
    assert_eq!(output.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&output.stderr).contains("chmod 0600"), "{output:?}");
}

#[test]
fn a_guest_with_another_interface_does_not_start() {
    let guest = Guest::new("touch $DIR/started");
    let output = Command::new("unshare")
        .args(["-Urn", "sh", "-c", "ip link add v0 type veth peer name v1 && exec \"$0\" --config \"$1\""])
        .args([Path::new(env!("CARGO_BIN_EXE_nova-init")), &guest.path("guest.json")])
        .output()
        .expect("unshare must start");
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("network interface v"), "{output:?}");
    assert!(!guest.path("started").exists());
}

#[test]
fn an_app_that_does_not_exist_is_named() {
    let guest = Guest::new("");
    let config = fs::read_to_string(guest.path("guest.json")).expect("read").replace("/bin/sh", "/no/such/app");
    fs::write(guest.path("guest.json"), config).expect("write");
    let output = guest.run();
    assert_eq!(output.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such/app"), "{output:?}");
}

#[test]
fn the_app_finds_its_address_its_names_its_proxy_and_no_privileges() {
    let guest = Guest::new("cat /proc/net/fib_trie; cat /proc/self/status; env; cat $DIR/hosts; exit 42");
    let output = guest.run();
    let seen = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(42), "{output:?}");
    for expected in [
        "10.64.3.11",
        "CapBnd:\t0000000000000000",
        "CapPrm:\t0000000000000000",
        "CapInh:\t0000000000000000",
        "CapAmb:\t0000000000000000",
        "NoNewPrivs:\t1",
        "HTTP_PROXY=http://127.0.0.1:",
        "ALL_PROXY=http://127.0.0.1:",
        "NO_PROXY=localhost,127.0.0.1,127.0.0.0/8,10.64.3.11",
        "NOVA_WORKLOAD_IP=10.64.3.11",
        "127.0.1.1 db.t.nova",
    ] {
        assert!(seen.contains(expected), "{expected} is missing in {seen}");
    }
    assert!(!seen.contains("a5a5a5"), "the token must not reach the app: {seen}");
    let mode = fs::metadata(guest.path("hosts")).expect("hosts").permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
}

#[test]
fn the_app_cannot_look_into_the_relay() {
    // The app has the relay's user here, the worst case; in a microVM it has another one.
    let guest = Guest::new(
        "for pid in $(cat /proc/$PPID/task/$PPID/children); do
           [ $pid = $$ ] && continue
           cat /proc/$pid/environ && echo READ environ; head -c 1 /proc/$pid/mem && echo READ mem
           readlink /proc/$pid/fd/0 && echo READ fd; tr '\\0' ' ' < /proc/$pid/cmdline; echo
         done; exit 0",
    );
    let output = guest.run();
    let seen = String::from_utf8_lossy(&output.stdout);
    assert!(seen.contains("nova-relay"), "the relay must be there to be looked at: {output:?}");
    assert!(!seen.contains("READ") && !seen.contains("a5a5a5"), "{output:?}");
}

#[test]
fn the_relay_is_ready_before_the_app_starts() {
    let guest = Guest::new("test -S $DIR/guest_15080");
    assert_eq!(guest.run().status.code(), Some(0));
}

#[test]
fn without_a_relay_no_app_starts() {
    let guest = Guest::new("touch $DIR/started");
    let config = fs::read_to_string(guest.path("guest.json")).expect("read");
    let config = config.replace(env!("CARGO_BIN_EXE_nova-relay"), "/bin/false");
    fs::write(guest.path("guest.json"), config).expect("write");
    assert_eq!(guest.run().status.code(), Some(78));
    assert!(!guest.path("started").exists());
}

#[test]
fn the_guest_ends_when_its_relay_does() {
    let guest = Guest::new(
        "for pid in $(cat /proc/$PPID/task/$PPID/children); do [ $pid = $$ ] || kill -9 $pid; done; exec sleep 1000",
    );
    let output = guest.run();
    assert_eq!(output.status.code(), Some(70));
    assert!(String::from_utf8_lossy(&output.stderr).contains("relay ended with code 137"), "{output:?}");
}

#[test]
fn on_sigterm_the_app_ends_first_and_its_code_is_carried() {
    let guest =
        Guest::new("trap 'test -S $DIR/guest_15080 && exit 7' TERM; echo $$ > $DIR/pid; while :; do sleep 0.05; done");
    let child = guest.start();
    eventually("the app runs", || text(&guest.path("pid")));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).expect("kill");
    let output = child.wait_with_output().expect("output");
    assert_eq!(output.status.code(), Some(7), "{output:?}");
}

#[test]
fn nothing_of_the_guest_outlives_it() {
    let guest = Guest::new(
        "setsid sh -c 'echo $$ > $DIR/orphan; exec sleep 1000' & \
                            until [ -s $DIR/orphan ]; do sleep 0.02; done; exit 3",
    );
    assert_eq!(guest.run().status.code(), Some(3));
    let orphan = text(&guest.path("orphan")).expect("pid");
    eventually("the orphan ends", || (!Path::new(&format!("/proc/{}", orphan.trim())).exists()).then_some(()));
}
