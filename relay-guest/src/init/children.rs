//! The processes of the guest: nova-init starts two and reaps all, also those whose parents ended first.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::time::timeout;

use super::config::GuestConfig;
use super::surroundings::environment;
use super::trust::Trust;
use crate::handover::Handed;

/// For the relay to bind its ports.
const READY_DEADLINE: Duration = Duration::from_secs(10);
/// Exit code of a process that a signal ended, as shells count.
const SIGNAL_BASE: i32 = 128;

/// Why a process does not run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The process could not be made.
    #[error("cannot start {what}: {source}")]
    Spawn {
        /// Which.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The relay ended or said nothing.
    #[error("the relay was not ready within {} s: its own message, if any, stands above", READY_DEADLINE.as_secs())]
    NotReady,
}

/// Reaps; knows how each watched process ended.
#[derive(Debug)]
pub struct Children {
    signals: Signals,
    /// None while it runs.
    watched: HashMap<Pid, Option<i32>>,
}

impl Children {
    /// Must be made before the first child.
    ///
    /// # Errors
    /// When the signal cannot be caught.
    pub fn new() -> io::Result<Self> {
        Ok(Self { signals: signal(SignalKind::child())?, watched: HashMap::new() })
    }

    /// Starts the relay, hands it what root made and its configuration, and waits until all its ports are bound.
    ///
    /// # Errors
    /// When it does not start or is not ready in time.
    pub async fn start_relay(&mut self, config: &GuestConfig, handed: Handed) -> Result<Pid, StartError> {
        let spawn_error = |source| StartError::Spawn { what: "the relay", source };
        let text = serde_json::to_vec(&config.for_relay()).map_err(|error| spawn_error(error.into()))?;
        let mut command = unprivileged(config.relay_uid, &[config.relay.as_os_str()]).map_err(spawn_error)?;
        let (ours, its) = UnixStream::pair().map_err(spawn_error)?;
        command.env_clear().stdin(OwnedFd::from(its)).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(spawn_error)?;
        let pid = self.watch(child.id());
        // It holds the relay's end, which must have no other holder: a relay that ends is an error here, not a wait.
        drop(command);
        handed.send(ours, &text).map_err(spawn_error)?;
        let stdout = child.stdout.take().ok_or(StartError::NotReady)?;
        let mut ready = pipe::Receiver::from_owned_fd(OwnedFd::from(stdout)).map_err(spawn_error)?;
        match timeout(READY_DEADLINE, ready.read_u8()).await {
            Ok(Ok(_)) => Ok(pid),
            _ => Err(StartError::NotReady),
        }
    }

    /// Starts the app.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_app(&mut self, config: &GuestConfig, trust: Option<&Trust>) -> Result<Pid, StartError> {
        let spawn_error = |source| StartError::Spawn { what: "the app", source };
        let mut command = unprivileged(config.app_uid, &config.command).map_err(spawn_error)?;
        let variables: BTreeMap<String, String> = environment(config, trust);
        let child = command.env_clear().envs(variables).stdin(Stdio::null()).spawn().map_err(spawn_error)?;
        Ok(self.watch(child.id()))
    }

    /// Waits until one of the watched processes ends; returns its exit code.
    pub async fn any_end(&mut self) -> (Pid, i32) {
        loop {
            self.reap();
            let ended = self.watched.iter().find_map(|(pid, code)| code.map(|code| (*pid, code)));
            if let Some(ended) = ended {
                self.watched.remove(&ended.0);
                return ended;
            }
            self.signals.recv().await;
        }
    }

    /// Asks a process and its group to end, then makes them.
    pub async fn stop(&mut self, pid: Pid, grace: Duration) -> Option<i32> {
        self.watched.get(&pid)?;
        let _ = killpg(pid, Signal::SIGTERM);
        let code = match timeout(grace, self.end_of(pid)).await {
            Ok(code) => code,
            Err(_) => {
                let _ = killpg(pid, Signal::SIGKILL);
                self.end_of(pid).await
            }
        };
        // Whatever else is in the group has no supervisor any more.
        let _ = killpg(pid, Signal::SIGKILL);
        Some(code)
    }

    /// Ends everything that descends from this process. Only for a process guest: a microVM powers off instead.
    pub async fn end_orphans(&mut self) {
        loop {
            self.reap();
            let children = own_children();
            if children.is_empty() {
                return;
            }
            for pid in children {
                let _ = kill(pid, Signal::SIGKILL);
            }
            self.signals.recv().await;
        }
    }

    async fn end_of(&mut self, pid: Pid) -> i32 {
        loop {
            self.reap();
            if let Some(Some(code)) = self.watched.get(&pid) {
                let code = *code;
                self.watched.remove(&pid);
                return code;
            }
            self.signals.recv().await;
        }
    }

    fn watch(&mut self, pid: u32) -> Pid {
        let pid = Pid::from_raw(pid.cast_signed());
        self.watched.insert(pid, None);
        pid
    }

    fn reap(&mut self) {
        loop {
            let (pid, code) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, code),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, SIGNAL_BASE + signal as i32),
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
                Ok(_) | Err(_) => continue,
            };
            if let Some(watched) = self.watched.get_mut(&pid) {
                *watched = Some(code);
            }
        }
    }
}

/// This program again, as `exec`, in a process group of its own.
fn unprivileged<S: AsRef<std::ffi::OsStr>>(uid: Option<u32>, command: &[S]) -> io::Result<Command> {
    use std::os::unix::process::CommandExt;
    let mut exec = Command::new(std::env::current_exe()?);
    exec.arg("exec").process_group(0);
    if let Some(uid) = uid {
        exec.arg("--uid").arg(uid.to_string());
    }
    exec.arg("--").args(command);
    Ok(exec)
}

fn own_children() -> Vec<Pid> {
    let id = std::process::id();
    let text = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect()
}
