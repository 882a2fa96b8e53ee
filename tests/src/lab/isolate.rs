//! A place of its own for one run: user (rootless), process-id and mount namespaces.
//!
//! The outer process makes the namespaces and waits; the inner one, the first process of its process-id namespace, plays.
//! If the outer one is killed the inner one dies with it, and the kernel then ends everything else in the namespace.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context, bail};
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

use super::stage::GuestKind;

/// Set for the inner process: the folder of the run.
const INNER: &str = "NOVA_LAB_RUN";
/// Set for the inner process: the outer one, as /proc outside knows it.
const OUTER: &str = "NOVA_LAB_OUTER";
/// What the folder of a run is called.
const PREFIX: &str = "nova-lab-";

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
    // First of all: from here on, whoever interrupts us finds somebody who cleans up.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ends = runtime.block_on(async { ends() })?;
    sweep(&std::env::temp_dir());
    let run = tempfile::Builder::new().prefix(PREFIX).tempdir().context("a folder for the run")?;
    let _held = hold(run.path())?;
    leave_the_machine(guest)?;
    let code = runtime.block_on(play_inside(run.path(), ends))?;
    Ok(Side::Outer(ExitCode::from(u8::try_from(code).unwrap_or(1))))
}

/// Locks the folder of a run for as long as the outer process lives.
fn hold(run: &Path) -> anyhow::Result<Flock<File>> {
    let folder = File::open(run).context("the folder of the run")?;
    Flock::lock(folder, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error).context("the folder of the run")
}

/// Removes the folders of runs that were killed. They are empty (what was in them was in memory), and nobody holds them; a
/// young one may belong to a run that is about to lock it.
fn sweep(temporary: &Path) {
    let is_old = |path: &Path| {
        let changed = std::fs::symlink_metadata(path).and_then(|meta| meta.modified());
        changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age > Duration::from_secs(60)))
    };
    let entries = std::fs::read_dir(temporary).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())) {
        let path = entry.path();
        if is_old(&path)
            && let Ok(_held) = hold(&path)
        {
            // Fails when it is not empty: then it is none of ours.
            let _ = std::fs::remove_dir(&path);
        }
    }
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

/// Something that asks us to end.
struct End {
    signal: tokio::signal::unix::Signal,
    kind: SignalKind,
    what: &'static str,
}

/// Ctrl-C, `kill`, Ctrl-\, and a terminal that goes away.
fn ends() -> std::io::Result<Vec<End>> {
    let all = [
        (SignalKind::interrupt(), "interrupted"),
        (SignalKind::terminate(), "asked to end"),
        (SignalKind::quit(), "asked to quit"),
        (SignalKind::hangup(), "the terminal is gone"),
    ];
    all.into_iter().map(|(kind, what)| Ok(End { signal: signal(kind)?, kind, what })).collect()
}

/// Starts the inner process and waits for it, for its exit code; a signal that asks us to end ends it first.
async fn play_inside(run: &Path, mut ends: Vec<End>) -> anyhow::Result<i32> {
    let mut inner = tokio::process::Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(INNER, run)
        .env(OUTER, std::fs::read_link("/proc/self").context("/proc")?)
        .spawn()
        .context("the inner process")?;
    let asked = std::future::poll_fn(|cx| {
        let asked = ends.iter_mut().find_map(|end| end.signal.poll_recv(cx).is_ready().then_some((end.kind, end.what)));
        asked.map_or(Poll::Pending, Poll::Ready)
    });
    tokio::select! {
        status = inner.wait() => {
            let status = status?;
            // 128 + number is how a shell says that a signal ended something.
            Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
        }
        (kind, what) = asked => {
            say(what);
            inner.start_kill()?;
            inner.wait().await?;
            Ok(128 + kind.as_raw_value())
        }
    }
}

/// Nobody may be there to read it, which must not keep us from cleaning up.
fn say(what: &str) {
    let _ = writeln!(std::io::stderr(), "\n{what}, cleaning up");
}

/// First steps of the inner process: die with the outer one, and see only our own processes and our own folder.
fn settle(run: &Path) -> anyhow::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).context("tie to the outer process")?;
    // It may have been killed before that line. /proc is still the outer one, which sees our parent.
    let outer = format!("PPid:\t{}", std::env::var(OUTER).unwrap_or_default());
    if !std::fs::read_to_string("/proc/self/status").context("/proc")?.lines().any(|line| line == outer) {
        bail!("the outer process is gone");
    }
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
    let outer = std::env::var(OUTER).unwrap_or_default();
    let user = if guest == GuestKind::Process { " --user --preserve-credentials" } else { "" };
    format!("nsenter --target $(pgrep -P {outer}){user} --mount --pid --net --")
}

/// Whether this machine lets us make namespaces for process guests at all.
#[must_use]
pub fn can_isolate() -> bool {
    let probe = ["--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "true"];
    Command::new("unshare").args(probe).output().is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    // covers: A14
    #[test]
    fn the_next_run_removes_what_a_killed_one_left_and_nothing_else() {
        let temporary = tempfile::tempdir().expect("a folder");
        let make = |name: &str, is_old: bool| {
            let path = temporary.path().join(name);
            std::fs::create_dir(&path).expect("a folder");
            let age = Duration::from_secs(if is_old { 3600 } else { 1 });
            let times = std::fs::FileTimes::new().set_modified(SystemTime::now() - age);
            File::open(&path).expect("open").set_times(times).expect("times");
            path
        };
        let killed = make("nova-lab-killed", true);
        let kept = [make("nova-lab-young", false), make("nova-lab-running", true), make("else", true)];
        let running = hold(&kept[1]).expect("locked");
        sweep(temporary.path());
        assert!(!killed.exists());
        assert!(kept.iter().all(|path| path.exists()), "{kept:?}");
        drop(running);
        sweep(temporary.path());
        assert!(!kept[1].exists(), "its run is gone");
    }
}
