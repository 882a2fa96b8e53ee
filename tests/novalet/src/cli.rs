//! The command line.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use nova_proto::link;

use crate::guest::Accel;
use crate::image::Machine;

/// A reference node agent: serves endpoints to nova-supervisor, and starts and stops the guests behind them.
#[derive(Debug, Parser)]
#[command(name = "novalet-ref", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Sub-commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent until SIGTERM or `novalet-ref stop`.
    Run(Box<RunOptions>),
    /// Show pods and supervisors.
    Status {
        /// One JSON object.
        #[arg(long)]
        json: bool,
        /// Which agent.
        #[command(flatten)]
        agent: AgentFolder,
    },
    /// Wait until all pods, or one, are in a phase; exit 1 when they are not there in time.
    Wait {
        /// The phase: `pending`, `running`, `stopped`, ...
        phase: String,
        /// One pod.
        #[arg(long)]
        pod: Option<String>,
        /// Seconds.
        #[arg(long, default_value_t = 120)]
        timeout: u64,
        /// Which agent.
        #[command(flatten)]
        agent: AgentFolder,
    },
    /// Drain a pod and stop its guest; returns when that is done.
    Drain {
        /// The pod.
        pod_uid: String,
        /// Which agent.
        #[command(flatten)]
        agent: AgentFolder,
    },
    /// Drain a pod and start its guest anew, one generation higher.
    Restart {
        /// The pod.
        pod_uid: String,
        /// Which agent.
        #[command(flatten)]
        agent: AgentFolder,
    },
    /// Drain everything and end the agent.
    Stop {
        /// Which agent.
        #[command(flatten)]
        agent: AgentFolder,
    },
    /// Check a placements file and print every mistake.
    Check {
        /// The file.
        placements: PathBuf,
    },
    /// Serve a hybrid socket for a process guest.
    Mux {
        /// The hybrid socket in the pod's folder.
        #[arg(long)]
        socket: PathBuf,
        /// Folder of the guest's ends.
        #[arg(long)]
        guest: PathBuf,
        /// Ports that the guest may dial.
        #[arg(long, default_values_t = [link::HOST_PORT_SLOT_A])]
        host_port: Vec<u32>,
    },
    /// Used by the agent itself for its children.
    #[command(hide = true)]
    Launch {
        /// Description of the child.
        launch: String,
    },
}

/// Which agent to talk to.
#[derive(Debug, Args)]
pub struct AgentFolder {
    /// Run dir of the agent.
    #[arg(long, default_value = "/run/novalet-ref")]
    pub run_dir: PathBuf,
}

/// Kinds of guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GuestKind {
    /// QEMU behind vhost-device-vsock.
    Microvm,
    /// Processes in namespaces, behind the emulated muxer.
    Process,
    /// Start nothing; `<run dir>/pods/<pod>/guest.json` tells somebody else what to play.
    None,
}

/// Who adds routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RouteMode {
    /// The supervisor's helper.
    Managed,
    /// This agent.
    External,
}

/// Options of `run`.
#[derive(Debug, Clone, Args)]
pub struct RunOptions {
    /// YAML file of placements; followed while the agent runs.
    #[arg(long)]
    pub placements: PathBuf,
    /// Socket for supervisors; its folder must not be writable by others.
    #[arg(long)]
    pub control_socket: PathBuf,
    /// Folder of the pods' hybrid sockets, shared with the supervisor.
    #[arg(long)]
    pub guest_root: PathBuf,
    /// Folder of our own: operator's socket, logs, images.
    #[arg(long, default_value = "/run/novalet-ref")]
    pub run_dir: PathBuf,
    /// What guests are.
    #[arg(long, value_enum, default_value = "microvm")]
    pub guests: GuestKind,
    /// Folder with nova-init, nova-relay and nova-lab (static ones for microVMs).
    #[arg(long)]
    pub guest_bin_dir: Option<PathBuf>,
    /// Uids of supervisors, beside our own. May be repeated.
    #[arg(long)]
    pub supervisor_uid: Vec<u32>,
    /// Group of the supervisor: gets the control socket and the pods' folders.
    #[arg(long)]
    pub supervisor_gid: Option<u32>,
    /// Name of this node: placements for other nodes are left alone.
    #[arg(long)]
    pub node: Option<String>,
    /// Port that guests dial, one per slot of the supervisor. May be repeated.
    #[arg(long, default_values_t = [link::HOST_PORT_SLOT_A])]
    pub host_port: Vec<u32>,
    /// Port that the relay listens on.
    #[arg(long, default_value_t = link::GUEST_PORT)]
    pub guest_port: u32,
    /// Who adds the local routes of the workloads' addresses: as `routes` in the supervisor's configuration.
    #[arg(long, value_enum, default_value = "managed")]
    pub routes: RouteMode,
    /// Network namespace of the supervisor for `--routes external`, like /run/netns/node; ours without it.
    #[arg(long)]
    pub supervisor_netns: Option<PathBuf>,
    /// Milliseconds that an address rests after a pod.
    #[arg(long, default_value_t = 5000)]
    pub ip_cooldown_ms: u64,
    /// Milliseconds beyond a pod's drain time that we wait for the supervisor's word.
    #[arg(long, default_value_t = 2000)]
    pub drain_margin_ms: u64,
    /// microVMs.
    #[command(flatten)]
    pub microvm: VmOptions,
}

/// Options for microVMs.
#[derive(Debug, Clone, Args)]
pub struct VmOptions {
    /// Guest kernel; the newest cloud kernel of this machine without it.
    #[arg(long)]
    kernel: Option<PathBuf>,
    /// `/lib/modules/<version>` of the guest kernel; taken from the kernel's name without it.
    #[arg(long)]
    modules: Option<PathBuf>,
    /// Further modules for the image, not loaded. May be repeated.
    #[arg(long)]
    pub extra_module: Vec<String>,
    /// QEMU.
    #[arg(long, default_value = "/usr/bin/qemu-system-x86_64")]
    pub qemu: PathBuf,
    /// vhost-device-vsock; looked for in PATH and ~/.cargo/bin without it.
    #[arg(long)]
    vhost_device_vsock: Option<PathBuf>,
    /// Static busybox for the image.
    #[arg(long, default_value = "/bin/busybox")]
    pub busybox: PathBuf,
    /// curl for the image, copied with its libraries when it is there.
    #[arg(long, default_value = "/usr/bin/curl")]
    pub curl: PathBuf,
    /// ping of iputils for the image, copied with its libraries when it is there: that of busybox wants raw sockets.
    #[arg(long, default_value = "/usr/bin/ping")]
    pub ping: PathBuf,
    /// Machine type.
    #[arg(long, value_enum, default_value = "microvm")]
    pub machine: Machine,
    /// Accelerator; `auto` tries KVM and takes the emulator where that does not boot.
    #[arg(long, value_enum, default_value = "auto")]
    pub accel: Accel,
}

impl RunOptions {
    /// Guests and their helpers live in other folders than we do.
    ///
    /// # Errors
    /// When the working folder is gone.
    pub fn make_absolute(&mut self) -> std::io::Result<()> {
        let paths = [&mut self.placements, &mut self.control_socket, &mut self.guest_root, &mut self.run_dir];
        for path in paths.into_iter().chain(&mut self.guest_bin_dir) {
            *path = std::path::absolute(&*path)?;
        }
        Ok(())
    }
}

impl VmOptions {
    /// The guest kernel.
    ///
    /// # Errors
    /// When none is named and none is found.
    pub fn kernel(&self) -> anyhow::Result<PathBuf> {
        if let Some(kernel) = &self.kernel {
            return Ok(kernel.clone());
        }
        let mut found: Vec<PathBuf> = std::fs::read_dir("/boot")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| is_cloud_kernel(path))
            .collect();
        found.sort();
        found.pop().context("no guest kernel in /boot: install linux-image-cloud-amd64, or name one with --kernel")
    }

    /// The modules of the guest kernel.
    ///
    /// # Errors
    /// When they are not named and the kernel's name does not lead to them.
    pub fn modules(&self) -> anyhow::Result<PathBuf> {
        if let Some(modules) = &self.modules {
            return Ok(modules.clone());
        }
        let kernel = self.kernel()?;
        let name = kernel.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        match name.strip_prefix("vmlinuz-") {
            Some(version) => Ok(Path::new("/lib/modules").join(version)),
            None => bail!("cannot tell the version of {}: name its modules with --modules", kernel.display()),
        }
    }

    /// The program that serves the vsock of a microVM.
    ///
    /// # Errors
    /// When it is not named and not found.
    pub fn vhost_device_vsock(&self) -> anyhow::Result<PathBuf> {
        if let Some(path) = &self.vhost_device_vsock {
            return Ok(path.clone());
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo/bin"));
        let mut folders = std::env::split_paths(&path).chain(home);
        let found = folders.find_map(|folder| Some(folder.join("vhost-device-vsock")).filter(|path| path.exists()));
        found.context("no vhost-device-vsock: `cargo install vhost-device-vsock --version 0.3.0 --locked`, or name it with --vhost-device-vsock")
    }
}

fn is_cloud_kernel(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.starts_with("vmlinuz-") && name.contains("-cloud-")
}
