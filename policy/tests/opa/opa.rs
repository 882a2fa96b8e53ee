//! Finds and runs the real OPA.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nova_policy::engine::OpaClient;

const VERSION: &str = "1.22.3";
const START: Duration = Duration::from_secs(20);

/// The program, from `NOVA_OPA` or from where `cargo xtask setup` puts it. `None` means that the caller skips.
pub(crate) fn program() -> Option<PathBuf> {
    let cached = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .map(|target| target.join("nova-cache/tools").join(format!("opa-{VERSION}")).join("opa"));
    let named = std::env::var_os("NOVA_OPA").map(PathBuf::from);
    let found = named.or(cached).filter(|path| path.is_file());
    if found.is_none() {
        let in_ci = ["CI", "NOVA_CI"].iter().any(|name| std::env::var_os(name).is_some());
        assert!(!in_ci, "no OPA {VERSION}: run cargo xtask setup");
        println!("SKIPPED: no OPA {VERSION}; cargo xtask setup builds it");
    }
    found
}

/// Runs it to its end: standard output when it succeeded, standard error when not.
pub(crate) fn run(opa: &Path, dir: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(opa).args(arguments).current_dir(dir).output().expect("opa starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr) + &text(&output.stdout)) }
}

/// A server on a Unix socket; it ends with this value.
pub(crate) struct Server {
    child: Child,
    pub(crate) socket: PathBuf,
}

impl Server {
    /// Starts a server that loads what `arguments` say, and writes what it says into `opa.log`. `None` when it ends at
    /// once, as it does on a bundle it refuses.
    pub(crate) fn start(opa: &Path, dir: &Path, arguments: &[&str]) -> Option<Self> {
        let socket = dir.join("opa.sock");
        let _ = std::fs::remove_file(&socket);
        let log = std::fs::File::create(dir.join("opa.log")).expect("a file");
        let mut child = Command::new(opa)
            .args(["run", "--server", "--skip-version-check", "--log-level", "error", "--addr"])
            .arg(format!("unix://{}", socket.display()))
            .args(arguments)
            .current_dir(dir)
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("opa starts");
        let end = Instant::now() + START;
        loop {
            if OpaClient::connect(&socket).is_ok() {
                return Some(Self { child, socket });
            }
            if child.try_wait().expect("a child").is_some() {
                return None;
            }
            assert!(Instant::now() < end, "OPA does not listen after {START:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn client(&self) -> OpaClient {
        OpaClient::connect(&self.socket).expect("OPA listens")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing left to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
