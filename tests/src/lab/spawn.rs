//! Processes of the lab: each in the network namespace it belongs to, with its own log, and never outliving us.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};

use super::wait_for;

/// Arguments of `nova-lab enter`: how a process of the lab is started.
#[derive(clap::Args)]
pub struct Args {
    /// Process whose network namespace is joined
    #[arg(long)]
    net: Option<u32>,
    /// A network namespace of its own
    #[arg(long, conflicts_with = "net")]
    new_net: bool,
    /// Process that must not be outlived
    #[arg(long)]
    parent: i32,
    /// Program and arguments
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// Becomes the command.
///
/// # Errors
/// When the namespace or the program cannot be had.
pub fn enter(args: &Args) -> anyhow::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    if getppid().as_raw() != args.parent {
        bail!("the lab is gone");
    }
    if let Some(pid) = args.net {
        let file = File::open(format!("/proc/{pid}/ns/net")).context("the network namespace")?;
        setns(file, CloneFlags::CLONE_NEWNET).context("joining the network namespace")?;
    }
    if args.new_net {
        unshare(CloneFlags::CLONE_NEWNET).context("a network namespace")?;
    }
    let (program, arguments) = args.command.split_first().context("a command")?;
    Err(Command::new(program).args(arguments).exec()).with_context(|| program.display().to_string())
}

/// A process that should still run has ended.
#[derive(Debug)]
pub struct Ended {
    name: String,
    status: ExitStatus,
    last_words: String,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ended with {}:\n{}", self.name, self.status, self.last_words)
    }
}

impl std::error::Error for Ended {}

/// A running process of the lab.
pub struct Proc {
    name: String,
    child: Child,
    log: PathBuf,
}

/// A network namespace: the process that holds it.
#[derive(Debug, Clone, Copy)]
pub struct Net(pub u32);

/// A command that runs in `net`.
pub fn command<I: IntoIterator<Item = A>, A: AsRef<OsStr>>(net: Net, argv: I) -> anyhow::Result<Command> {
    enter_command(&["--net", &net.0.to_string()], argv)
}

fn enter_command<I: IntoIterator<Item = A>, A: AsRef<OsStr>>(how: &[&str], argv: I) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("enter").args(["--parent", &std::process::id().to_string()]).args(how).arg("--").args(argv);
    command.stdin(Stdio::null());
    Ok(command)
}

impl Proc {
    /// Starts `argv` in `net`, with stdout and stderr going to `<logs>/<name>.log`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start<I: IntoIterator<Item = A>, A: AsRef<OsStr>>(
        name: &str,
        net: Net,
        logs: &Path,
        argv: I,
    ) -> anyhow::Result<Self> {
        Self::spawn(name, logs, command(net, argv)?)
    }

    /// As [`Proc::start`], in the network namespace that we are in ourselves.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_here<I: IntoIterator<Item = A>, A: AsRef<OsStr>>(
        name: &str,
        logs: &Path,
        argv: I,
    ) -> anyhow::Result<Self> {
        Self::spawn(name, logs, enter_command(&[], argv)?)
    }

    fn spawn(name: &str, logs: &Path, mut command: Command) -> anyhow::Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        let child = command.stdout(file.try_clone()?).stderr(file).spawn().with_context(|| name.to_owned())?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// Makes a network namespace and the process that keeps it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn hold_net(name: &str, logs: &Path) -> anyhow::Result<(Self, Net)> {
        let mut holder =
            Self::spawn(&format!("net-{name}"), logs, enter_command(&["--new-net"], ["sleep", "infinity"])?)?;
        let net = Net(holder.child.id());
        let ours = std::fs::read_link("/proc/self/ns/net")?;
        wait_for(&format!("network namespace {name}"), Duration::from_secs(10), || {
            holder.check()?;
            let exec = std::fs::read_to_string(format!("/proc/{}/comm", net.0))?;
            let made = std::fs::read_link(format!("/proc/{}/ns/net", net.0))? != ours && exec.trim() == "sleep";
            if made { Ok(()) } else { bail!("not there yet") }
        })?;
        Ok((holder, net))
    }

    /// Process id in the lab's namespace.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The end of what it printed.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }

    /// Fails when the process has ended.
    ///
    /// # Errors
    /// With its last words.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                let (name, last_words) = (self.name.clone(), self.log_tail());
                Err(Ended { name, status, last_words }.into())
            }
        }
    }

    /// Asks it to end, and kills it when it does not within `limit`.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn stop(mut self, limit: Duration) -> anyhow::Result<()> {
        let _ = kill(Pid::from_raw(i32::try_from(self.child.id())?), Signal::SIGTERM);
        let start = Instant::now();
        while start.elapsed() < limit {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(super::POLL);
        }
        Ok(())
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end.
///
/// # Errors
/// When it fails, with what it printed.
pub fn run(command: &mut Command) -> anyhow::Result<Output> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("{command:?}: {}\n{out}{err}", output.status);
    }
    Ok(output)
}
