//! Where the binaries are: what `cargo xtask stage` prints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

/// What a guest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum GuestKind {
    /// QEMU, without a network device.
    Microvm,
    /// Processes in namespaces, without root.
    Process,
}

impl GuestKind {
    /// The name on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Microvm => "microvm",
            Self::Process => "process",
        }
    }
}

/// The binaries and tools of one run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Stage {
    /// Folder of the binaries that run on the host.
    pub host_bins: PathBuf,
    /// Folder of the binaries that run in guests.
    pub guest_bins: PathBuf,
    /// QEMU.
    pub qemu: Option<PathBuf>,
    /// Guest kernel.
    pub kernel: Option<PathBuf>,
    /// Its modules.
    pub modules: Option<PathBuf>,
    /// The host side of vsock.
    pub vhost_device_vsock: Option<PathBuf>,
    /// Binaries that stand in for those of `host_bins`, by name.
    #[serde(default)]
    pub instead: BTreeMap<String, PathBuf>,
}

impl Stage {
    /// Builds what is missing and says where everything is.
    ///
    /// # Errors
    /// When something cannot be built or installed.
    pub fn prepare(guest: GuestKind) -> anyhow::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace")?;
        let output = Command::new(std::env::var("CARGO").as_deref().unwrap_or("cargo"))
            .args(["xtask", "stage", "--guest", guest.name()])
            .current_dir(root)
            .output()
            .context("cargo xtask stage")?;
        if !output.status.success() {
            bail!("cargo xtask stage failed:\n{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// As [`Self::prepare`], once per process.
    ///
    /// # Errors
    /// When something could not be built or installed.
    pub fn shared(guest: GuestKind) -> anyhow::Result<&'static Self> {
        static STAGES: [OnceLock<Result<Stage, String>>; 2] = [const { OnceLock::new() }; 2];
        let stage = STAGES[usize::from(guest == GuestKind::Microvm)]
            .get_or_init(|| Self::prepare(guest).map_err(|error| format!("{error:#}")));
        stage.as_ref().map_err(|error| anyhow::anyhow!("{error}"))
    }

    /// A binary that runs on the host.
    #[must_use]
    pub fn host(&self, name: &str) -> PathBuf {
        self.instead.get(name).cloned().unwrap_or_else(|| self.host_bins.join(name))
    }
}
