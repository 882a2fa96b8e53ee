//! A place of its own for one run: user (rootless), process-id and mount namespaces.
//!
//! The outer process makes the namespaces and waits; the inner one, the first process of its process-id namespace, plays.
//! If the outer one is killed the inner one dies with it, and the kernel then ends everything else in the namespace.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::Context;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

use super::stage::GuestKind;

/// Set for the inner process: the folder of the run.
const INNER: &str = "NOVA_LAB_RUN";

/// Which side of the border we are on.
pub enum Side {
    /// Inside, with the folder of the run.
    Inner(PathBuf),
    /// Outside: the inner process ended like this.
    Outer(ExitCode),
}

/// Runs the same command line again inside; returns on both sides.
///
/// Must be called before any thread is started.
///
/// # Errors
/// When the kernel refuses the namespaces.
pub fn enter(guest: GuestKind) -> anyhow::Result<Side> {
    if let Some(run) = std::env::var_os(INNER) {
        let run = PathBuf::from(run);
        settle(&run)?;
        return Ok(Side::Inner(run));
    }
    let run = tempfile::Builder::new().prefix("nova-lab-").tempdir().context("a folder for the run")?;
    leave_the_machine(guest)?;
    let status = play_inside(run.path())?;
    // 128 + number is how a shell says that a signal ended something.
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(Side::Outer(ExitCode::from(u8::try_from(code).unwrap_or(1))))
}

fn leave_the_machine(guest: GuestKind) -> anyhow::Result<()> {
    let own = CloneFlags::CLONE_NEWPID;
    if guest == GuestKind::Microvm {
        return unshare(own).context("namespaces; microVM guests need root");
    }
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    unshare(own | CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET).context(
        "a user namespace; this machine forbids them to users: set the sysctls kernel.unprivileged_userns_clone=1 \
         and kernel.apparmor_restrict_unprivileged_userns=0, or run as root with --guest microvm",
    )?;
    std::fs::write("/proc/self/setgroups", "deny").context("setgroups")?;
    std::fs::write("/proc/self/uid_map", format!("0 {uid} 1")).context("uid_map")?;
    std::fs::write("/proc/self/gid_map", format!("0 {gid} 1")).context("gid_map")
}

/// Starts the inner process and waits for it; a signal that asks us to end ends it first.
fn play_inside(run: &Path) -> anyhow::Result<ExitStatus> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let mut inner = tokio::process::Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .env(INNER, run)
            .env("NOVA_LAB_OUTER", std::process::id().to_string())
            .spawn()
            .context("the inner process")?;
        tokio::select! {
            status = inner.wait() => return Ok(status?),
            _ = interrupt.recv() => say("interrupted"),
            _ = terminate.recv() => say("asked to end"),
        }
        inner.start_kill()?;
        Ok(inner.wait().await?)
    })
}

/// Nobody may be there to read it, which must not keep us from cleaning up.
fn say(what: &str) {
    let _ = writeln!(std::io::stderr(), "\n{what}, cleaning up");
}

/// First steps of the inner process: die with the outer one, and see only our own processes and our own folder.
fn settle(run: &Path) -> anyhow::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).context("tie to the outer process")?;
    unshare(CloneFlags::CLONE_NEWNS).context("a mount namespace")?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("private mounts")?;
    let safe = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("proc"), "/proc", Some("proc"), safe | MsFlags::MS_NOEXEC, none).context("/proc of our own")?;
    // What the run writes is in memory and goes with the namespace.
    mount(Some("tmpfs"), run, Some("tmpfs"), safe, Some("mode=0755")).context("the folder of the run")
}

/// The command that enters the namespaces of a running lab from outside.
#[must_use]
pub fn how_to_enter(guest: GuestKind) -> String {
    let outer = std::env::var("NOVA_LAB_OUTER").unwrap_or_default();
    let user = if guest == GuestKind::Process { " --user --preserve-credentials" } else { "" };
    format!("nsenter --target $(pgrep -P {outer}){user} --mount --pid --net --")
}

/// Whether this machine lets us make namespaces for process guests at all.
#[must_use]
pub fn can_isolate() -> bool {
    let probe = ["--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "true"];
    Command::new("unshare").args(probe).output().is_ok_and(|output| output.status.success())
}
