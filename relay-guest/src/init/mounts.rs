//! What only the first process of a microVM does: file systems, kernel modules, host name, power off.

use std::convert::Infallible;
use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::unistd::sethostname;

use super::config::GuestConfig;
use crate::config::Ingress;

/// What could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A file system.
    #[error("cannot mount {at}: {source}")]
    Mount {
        /// Where.
        at: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A kernel module.
    #[error(
        "cannot load the kernel module {path}: {source}; modules must fit the running kernel and come in dependency \
         order", path = .path.display()
    )]
    Module {
        /// The module's file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The folder of the app's sockets.
    #[error("cannot make the socket folder {path}: {source}", path = .path.display())]
    SocketDir {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The host name.
    #[error("cannot set the host name: {0}")]
    HostName(#[source] io::Error),
}

/// Mounts, loads and names.
///
/// # Errors
/// Names the first thing that failed.
pub fn prepare(config: &GuestConfig) -> Result<(), MachineError> {
    for mount in MOUNTS {
        mount.make().map_err(|source| MachineError::Mount { at: mount.at, source })?;
    }
    for path in &config.modules {
        load(path).map_err(|source| MachineError::Module { path: path.clone(), source })?;
    }
    let has_sockets = config.ingress.iter().any(|ingress| matches!(ingress, Ingress::Socket(_)));
    if has_sockets {
        let path = &config.socket_dir;
        make_socket_dir(path, config.app_uid)
            .map_err(|source| MachineError::SocketDir { path: path.clone(), source })?;
    }
    sethostname(&config.workload).map_err(|error| MachineError::HostName(error.into()))
}

/// Ends the machine.
///
/// # Errors
/// When this process may not, that is, when it is not a machine's first process.
pub fn power_off() -> io::Result<Infallible> {
    nix::unistd::sync();
    Ok(reboot(RebootMode::RB_POWER_OFF)?)
}

struct Mount {
    kind: &'static str,
    at: &'static str,
    flags: MsFlags,
    options: &'static str,
}

const fn flags(list: &[MsFlags]) -> MsFlags {
    let (mut bits, mut index) = (0, 0);
    while index < list.len() {
        bits |= list[index].bits();
        index += 1;
    }
    MsFlags::from_bits_retain(bits)
}

const CLOSED: MsFlags = flags(&[MsFlags::MS_NOSUID, MsFlags::MS_NODEV, MsFlags::MS_NOEXEC]);
const NO_DEVICES: MsFlags = flags(&[MsFlags::MS_NOSUID, MsFlags::MS_NODEV]);

/// `hidepid` keeps the relay out of the app's sight.
const MOUNTS: &[Mount] = &[
    Mount { kind: "proc", at: "/proc", flags: CLOSED, options: "hidepid=2" },
    Mount { kind: "sysfs", at: "/sys", flags: CLOSED, options: "" },
    Mount { kind: "devtmpfs", at: "/dev", flags: MsFlags::MS_NOSUID, options: "mode=0755" },
    Mount { kind: "devpts", at: "/dev/pts", flags: CLOSED, options: "mode=0620,ptmxmode=0666" },
    Mount { kind: "tmpfs", at: "/dev/shm", flags: CLOSED, options: "mode=1777" },
    Mount { kind: "tmpfs", at: "/tmp", flags: NO_DEVICES, options: "mode=1777" },
    Mount { kind: "tmpfs", at: "/run", flags: NO_DEVICES, options: "mode=0755" },
];

impl Mount {
    fn make(&self) -> io::Result<()> {
        fs::create_dir_all(self.at)?;
        match mount(Some(self.kind), self.at, Some(self.kind), self.flags, Some(self.options)) {
            // The kernel or an earlier stage mounted it already.
            Ok(()) | Err(Errno::EBUSY) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn load(path: &Path) -> io::Result<()> {
    const NO_PARAMETERS: &CStr = c"";
    match finit_module(File::open(path)?, NO_PARAMETERS, ModuleInitFlags::empty()) {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The app makes its sockets here; it must open them to the relay's user (mode 0666).
fn make_socket_dir(path: &Path, app_uid: Option<u32>) -> io::Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    chown(path, app_uid, app_uid)
}
