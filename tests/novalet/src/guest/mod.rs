//! Guests: starting and stopping what a placed pod runs in.

mod accel;
pub mod config;
mod microvm;
mod owned;
mod process;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use accel::Accel;
pub use microvm::{Microvm, MicrovmOptions};
pub use owned::Owned;
pub use process::ProcessGuests;

use crate::image::ImageError;
use crate::placement::Placement;
use config::{GuestConfig, LinkPorts};

/// How long the muxer may take to make the hybrid socket.
const MUXER_DEADLINE: Duration = Duration::from_secs(20);

/// Why a guest does not start.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The pod's part of the image.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A program died or did not do its part in time.
    #[error("{0}")]
    Program(String),
    /// The placement asks for what this kind of guest cannot do.
    #[error("{0}")]
    Placement(String),
    /// The system refused.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The folders of one pod.
#[derive(Debug, Clone)]
pub struct PodFolders {
    /// `<guest root>/<pod_uid>`: shared with the supervisor, holds the hybrid socket.
    pub shared: PathBuf,
    /// `<run dir>/pods/<pod_uid>`: ours alone, holds logs, the pod's image segment, `guest.json`.
    pub own: PathBuf,
    /// Group of the shared folder.
    pub gid: Option<u32>,
}

impl PodFolders {
    /// Makes both folders, empty of what a former boot left. The supervisor's own sockets in the shared one stay.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn make(&self, socket_file: &str) -> Result<(), GuestError> {
        let make = |path: &Path, mode| {
            fs::create_dir_all(path)?;
            if let Some(gid) = self.gid.filter(|_| path == self.shared) {
                std::os::unix::fs::chown(path, None, Some(gid))?;
            }
            fs::set_permissions(path, fs::Permissions::from_mode(mode))
        };
        make(&self.shared, 0o2770).map_err(failed("make", &self.shared))?;
        make(&self.own, 0o700).map_err(failed("make", &self.own))?;
        let _ = fs::remove_file(self.shared.join(socket_file));
        Ok(())
    }

    /// Removes both folders, apart from the logs when `keep_logs`. What holds the boot token goes in any case.
    pub fn remove(&self, keep_logs: bool) {
        let _ = fs::remove_dir_all(&self.shared);
        if !keep_logs {
            let _ = fs::remove_dir_all(&self.own);
            return;
        }
        for entry in fs::read_dir(&self.own).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                let _ = fs::remove_dir_all(&path);
            } else if path.extension().is_none_or(|end| end != "log") {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

/// The kinds of guests.
#[derive(Debug)]
pub enum Guests {
    /// Nobody is started: `guest.json` is written and somebody else plays the guest.
    None,
    /// A process tree in namespaces of its own behind the emulated muxer.
    Process(ProcessGuests),
    /// QEMU behind vhost-device-vsock.
    Microvm(Box<Microvm>),
}

/// One boot of one pod.
#[derive(Debug)]
pub struct Boot<'a> {
    /// The pod.
    pub placement: &'a Placement,
    /// Fresh for this boot.
    pub token: [u8; 16],
    /// Ports of the guest channel.
    pub ports: &'a LinkPorts,
    /// Its folders, made.
    pub folders: &'a PodFolders,
}

/// A started guest. Dropping it kills it.
#[derive(Debug, Default)]
pub struct Guest {
    /// The guest first, what serves it after it: the order in which they stop.
    children: Vec<Owned>,
}

impl Guests {
    /// Starts the guest of `boot` and waits until its hybrid socket is there.
    ///
    /// # Errors
    /// When a program, a file or a right is missing; nothing is left running then.
    pub async fn start(&self, boot: &Boot<'_>) -> Result<Guest, GuestError> {
        match self {
            Self::None => process::write_config(boot, &ProcessGuests::place("/nova/link")).map(|()| Guest::default()),
            Self::Process(process) => process.start(boot).await,
            Self::Microvm(microvm) => microvm.start(boot).await,
        }
    }

    /// Name for people and programs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Process(_) => "process",
            Self::Microvm(_) => "microvm",
        }
    }
}

impl Guest {
    /// Waits until one of its processes ends. Never, if it has none.
    pub async fn ended(&self) -> String {
        if self.children.is_empty() {
            return std::future::pending().await;
        }
        let waits = self.children.iter().map(|child| Box::pin(child.wait()));
        futures_util::future::select_all(waits).await.0
    }

    /// Stops and reaps all of it, the guest first.
    pub async fn stop(mut self) {
        for child in &mut self.children {
            child.stop().await;
        }
    }

    /// Names and process ids.
    #[must_use]
    pub fn pids(&self) -> Vec<(&'static str, u32)> {
        self.children.iter().map(|child| (child.name(), child.pid())).collect()
    }
}

/// Waits until `path` exists, or `child` has ended, or time is up.
async fn wait_for_socket(path: &Path, child: &Owned) -> Result<(), GuestError> {
    let deadline = tokio::time::Instant::now() + MUXER_DEADLINE;
    while !path.exists() {
        if let Some(how) = child.ended() {
            return Err(GuestError::Program(how));
        }
        if tokio::time::Instant::now() > deadline {
            return Err(GuestError::Program(format!("{} did not make {} in time", child.name(), path.display())));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// `guest.json` of a boot as bytes.
fn config_bytes(boot: &Boot<'_>, place: config::GuestPlace) -> Result<Vec<u8>, GuestError> {
    let config = GuestConfig::new(boot.placement, &boot.token, boot.ports, place);
    serde_json::to_vec_pretty(&config).map_err(|error| GuestError::Program(error.to_string()))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> GuestError {
    let path = path.to_path_buf();
    move |source| GuestError::Io { what, path, source }
}
