//! nova-init: prepares the guest, starts the relay, then the app, and lives as long as both.
//!
//! ```text
//! read config -> (microVM: mounts, modules) -> lo, workload IP, no IPv6 -> hosts, egress sockets, tun0 -> relay ready
//!             -> CAs to trust -> app; the CAs are kept up to date
//! app ends             -> relay is stopped   -> its exit code, or power off
//! relay ends           -> app is stopped     -> 70: an app without its relay reaches nothing; novalet starts a new guest
//! SIGTERM, SIGINT      -> app, then relay    -> the app's exit code, or power off
//! ```

pub mod children;
pub mod config;
pub mod mounts;
pub mod net;
pub mod ping;
pub mod privileges;
pub mod sockets;
pub mod surroundings;
pub mod trust;

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::prctl;
use nix::unistd::{Pid, getegid};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::children::{Children, StartError};
use self::config::{GuestConfig, GuestConfigError};
use self::mounts::MachineError;
use self::net::NetError;
use self::sockets::SocketError;
use crate::handover::Handed;

/// Exit code when the relay ended first (EX_SOFTWARE of sysexits.h).
const RELAY_ENDED: i32 = 70;
/// For the app to end after SIGTERM.
const APP_GRACE: Duration = Duration::from_secs(10);
/// For the relay; it has nothing to finish once the app is gone.
const RELAY_GRACE: Duration = Duration::from_secs(2);

/// Why the guest does not run.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// No valid configuration.
    #[error(transparent)]
    Config(#[from] GuestConfigError),
    /// The machine.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The network.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The hosts file.
    #[error("cannot write the hosts file {path}: {source}", path = .path.display())]
    Hosts {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The egress sockets.
    #[error(transparent)]
    Sockets(#[from] SocketError),
    /// The certificates that the app shall trust.
    #[error("cannot write the certificates to trust to trust_dir: {0}; give a folder that nova-init may write to")]
    Trust(#[source] io::Error),
    /// Relay or app.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The runtime or its signals.
    #[error("cannot run: {0}")]
    Runtime(#[from] io::Error),
}

/// Runs the guest to its end; returns the exit code. In a microVM it powers the machine off instead of returning.
///
/// # Errors
/// When the guest cannot be prepared; what was started is stopped first.
pub fn run(config_path: &Path) -> Result<i32, InitError> {
    let (ended, is_machine) = match GuestConfig::load(config_path) {
        Ok(config) => (run_guest(&config), config.is_guest_init),
        // A machine's first process must not just end: the kernel would panic over the message.
        Err(error) => (Err(error.into()), std::process::id() == 1),
    };
    if is_machine {
        match &ended {
            Ok(code) => eprintln!("nova-init: the guest ended with code {code}"),
            Err(error) => eprintln!("nova-init: {error}"),
        }
        mounts::power_off()?;
    }
    ended
}

fn run_guest(config: &GuestConfig) -> Result<i32, InitError> {
    if config.is_guest_init {
        mounts::prepare(config)?;
    } else {
        // As the first process of a machine does by itself: orphans come to us.
        prctl::set_child_subreaper(true).map_err(io::Error::from)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        net::prepare(config.workload_ip, config.for_relay().lowest_privileged_port()).await?;
        if let Some(path) = &config.hosts_file {
            surroundings::write_hosts(path, config)
                .map_err(|source| InitError::Hosts { path: path.clone(), source })?;
        }
        let handed = Handed { sockets: sockets::make(config)?, tun: ping_device(config).await? };
        let mut children = Children::new()?;
        let mut stop = StopSignals::new()?;
        let ended = supervise(config, handed, &mut children, &mut stop).await;
        if !config.is_guest_init {
            children.end_orphans().await;
        }
        ended
    })
}

async fn ping_device(config: &GuestConfig) -> Result<Option<OwnedFd>, NetError> {
    if !config.icmp {
        return Ok(None);
    }
    // The app's group is that of its user; where it keeps ours, so does the group.
    let group = config.app_uid.unwrap_or_else(|| getegid().as_raw());
    ping::prepare(config.workload_ip, config.relay_uid, group).await.map(Some)
}

async fn supervise(
    config: &GuestConfig,
    handed: Handed,
    children: &mut Children,
    stop: &mut StopSignals,
) -> Result<i32, InitError> {
    let relay = children.start_relay(config, handed).await?;
    let (trust, keeper) = trust::prepare(config).await.map_err(InitError::Trust)?;
    let app = children.start_app(config, trust.as_ref())?;
    let code = tokio::select! {
        never = kept(keeper) => match never {},
        (pid, code) = children.any_end() => {
            if pid == app { code } else { relay_ended(children, app, code).await }
        }
        () = stop.recv() => children.stop(app, APP_GRACE).await.unwrap_or(RELAY_ENDED),
    };
    children.stop(relay, RELAY_GRACE).await;
    Ok(code)
}

/// Keeps what the app trusts up to date; never ends.
async fn kept(keeper: Option<trust::Keeper>) -> Infallible {
    match keeper {
        Some(keeper) => keeper.keep().await,
        None => std::future::pending().await,
    }
}

async fn relay_ended(children: &mut Children, app: Pid, code: i32) -> i32 {
    eprintln!("nova-init: the relay ended with code {code}: the guest ends too, start a new one");
    children.stop(app, APP_GRACE).await;
    RELAY_ENDED
}

struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
