//! Child processes that cannot outlive us: stopped and reaped in order, killed when we are.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::{oneshot, watch};

use crate::launch::Launch;

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);

/// A child with a name, watched by a task that reaps it.
#[derive(Debug)]
pub struct Owned {
    name: &'static str,
    pid: u32,
    log: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    end: watch::Receiver<Option<String>>,
}

impl Owned {
    /// Starts `launch` through our own program `self_exe`, which gives it its namespaces and ties its life to ours.
    /// What it says goes to `log`.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(name: &'static str, self_exe: &Path, launch: &Launch, log: &Path) -> io::Result<Self> {
        let out = std::fs::OpenOptions::new().create(true).append(true).open(log)?;
        let child = Command::new(self_exe)
            .args(launch.to_args())
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().unwrap_or_default();
        let (stop, stopped) = oneshot::channel();
        let (ended, end) = watch::channel(None);
        tokio::spawn(async move {
            let how = reap(child, stopped).await;
            let _ = ended.send(Some(how));
        });
        Ok(Self { name, pid, log: log.to_path_buf(), stop: Some(stop), end })
    }

    /// What the child is.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended, if it did.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        self.end.borrow().as_ref().map(|how| format!("{} ended ({how}), see {}", self.name, self.log.display()))
    }

    /// Waits until it has ended.
    pub async fn wait(&self) -> String {
        let mut end = self.end.clone();
        let _ = end.wait_for(Option::is_some).await;
        self.ended().unwrap_or_else(|| format!("{} is gone", self.name))
    }

    /// Asks it to end, then makes it, and reaps it.
    pub async fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let _ = self.end.wait_for(Option::is_some).await;
    }
}

async fn reap(mut child: Child, stop: oneshot::Receiver<()>) -> String {
    tokio::select! {
        status = child.wait() => return describe(status),
        _ = stop => {}
    }
    // Not reaped yet, so the pid is still this child's.
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    if let Ok(status) = tokio::time::timeout(GRACE, child.wait()).await {
        return describe(status);
    }
    let _ = child.start_kill();
    describe(child.wait().await)
}

fn describe(status: io::Result<std::process::ExitStatus>) -> String {
    status.map_or_else(|error| error.to_string(), |status| status.to_string())
}
