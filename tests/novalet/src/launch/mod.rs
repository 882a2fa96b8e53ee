//! The launcher: a short step between us and a child, run by our own program, which gives the child its namespaces and
//! makes sure that it cannot outlive us.
//!
//! ```text
//! novalet-ref --spawn--> launch: die with parent, own network --exec--> muxer, QEMU, vhost-device-vsock
//! novalet-ref --spawn--> launch: die with parent, own network, mounts and process ids
//!                           \--spawn--> first process: die with parent, mounts --exec--> nova-init
//! ```
//!
//! When the first process of a process namespace ends, the kernel kills all others in it: so nothing of a process guest
//! is left either, also after `kill -9` of novalet-ref.

mod mounts;

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{getpid, getppid};
use serde::{Deserialize, Serialize};

/// Name of the hidden sub-command.
pub const SUBCOMMAND: &str = "launch";

/// What a child is given.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Launch {
    /// Process that the child belongs to.
    parent: i32,
    /// Set in the first process of a guest.
    #[serde(default)]
    inner: bool,
    /// Program and arguments.
    command: Vec<String>,
    /// Own mount and process namespaces, prepared like this.
    #[serde(default)]
    mounts: Option<Mounts>,
}

/// The view of the file system that a process guest has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mounts {
    /// Empty folder of ours to prepare the guest's `/run` in.
    pub stage: PathBuf,
    /// `guest.json`, copied to `/run/nova/guest.json`.
    pub config: PathBuf,
    /// Seen read-only as `/run/nova/bin`.
    pub programs: PathBuf,
    /// Seen as `/run/nova/link`.
    pub link: PathBuf,
    /// Covered by empty folders.
    pub hide: Vec<PathBuf>,
}

impl Launch {
    /// A child of this process in a network namespace with nothing but `lo`.
    #[must_use]
    pub fn in_own_network(command: Vec<String>) -> Self {
        Self { parent: getpid().as_raw(), inner: false, command, mounts: None }
    }

    /// The same with process and mount namespaces of its own.
    #[must_use]
    pub fn with_mounts(self, mounts: Mounts) -> Self {
        Self { mounts: Some(mounts), ..self }
    }

    /// The arguments with which our own program does it. There is no secret in them.
    #[must_use]
    pub fn to_args(&self) -> [String; 2] {
        [SUBCOMMAND.to_owned(), serde_json::to_string(self).unwrap_or_default()]
    }

    /// Runs the launcher: ends only when the child does, or never when it becomes the child.
    ///
    /// # Errors
    /// When the system refuses a namespace or a mount, or when the program cannot be run.
    pub fn run(text: &str) -> anyhow::Result<ExitCode> {
        let launch: Self = serde_json::from_str(text).context("not a launch description")?;
        if launch.inner {
            return launch.become_first_process();
        }
        die_with_parent(launch.parent)?;
        let remedy =
            "cannot make namespaces: run novalet-ref as root, or inside `unshare --user --map-root-user --net --mount`";
        match &launch.mounts {
            None => {
                unshare(CloneFlags::CLONE_NEWNET).context(remedy)?;
                launch.exec()
            }
            Some(_) => {
                let own = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
                unshare(own).context(remedy)?;
                launch.stand_over_first_process()
            }
        }
    }

    fn stand_over_first_process(mut self) -> anyhow::Result<ExitCode> {
        self.inner = true;
        self.parent = getpid().as_raw();
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGTERM);
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGCHLD);
        signals.thread_block().context("cannot block signals")?;
        let (mut ours, theirs) = UnixStream::pair().context("no socket pair")?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(self.to_args())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .context("cannot start the first process of the guest")?;
        answer_first_process(&mut ours);
        wait_for(&mut child, &signals)
    }

    fn become_first_process(self) -> anyhow::Result<ExitCode> {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).context("cannot tie the guest to its parent")?;
        ask_parent().context("the parent is gone")?;
        SigSet::all().thread_unblock().context("cannot unblock signals")?;
        if let Some(mounts) = &self.mounts {
            mounts.apply()?;
        }
        self.exec()
    }

    fn exec(self) -> anyhow::Result<ExitCode> {
        let Some((program, args)) = self.command.split_first() else { bail!("nothing to run") };
        let error = Command::new(program).args(args).stdin(Stdio::null()).exec();
        Err(error).with_context(|| format!("cannot run {program}"))
    }
}

fn die_with_parent(parent: i32) -> anyhow::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).context("cannot tie the child to its parent")?;
    // The parent may have died before the line above.
    if getppid().as_raw() != parent {
        bail!("the parent is gone");
    }
    Ok(())
}

/// The first process of a namespace cannot see its parent's id, so it asks: an answer after `set_pdeathsig` proves that the
/// parent lived when the tie was made.
fn ask_parent() -> io::Result<()> {
    let mut parent = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    parent.write_all(b"?")?;
    parent.read_exact(&mut [0])
}

fn answer_first_process(stream: &mut UnixStream) {
    // If the child dies first, waiting for it tells why.
    let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
    let mut question = [0];
    if stream.read_exact(&mut question).is_ok() {
        let _ = stream.write_all(b"!");
    }
}

/// Waits for the guest's end; a request to stop kills its first process, and the kernel all others.
fn wait_for(child: &mut Child, signals: &SigSet) -> anyhow::Result<ExitCode> {
    loop {
        if let Some(status) = child.try_wait()? {
            let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
            return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
        }
        if signals.wait()? != Signal::SIGCHLD {
            child.kill()?;
        }
    }
}
