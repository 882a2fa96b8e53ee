//! The relay: binds everything, says that it is ready, then carries connections until it is told to end.

pub mod budget;
pub mod config;
pub mod copy;
pub mod inbound;
pub mod link;
pub mod outbound;
pub mod ping;
pub mod slots;
pub mod stream;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nova_proto::hello::Kind;
use tokio::task::JoinSet;

use self::budget::Budget;
use self::config::RelayConfig;
use self::inbound::Targets;
use self::outbound::{Listener, Outbound, Purpose};
use self::slots::Slots;
use crate::config::EgressSocket;
use crate::handover::Handed;

/// Descriptors that are not connections: listeners, presence, the runtime's own.
const SPARE_DESCRIPTORS: usize = 64;

/// Why the relay cannot start.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The process could not be closed to the app.
    #[error("cannot hide the relay's memory from the app: {0}")]
    Hide(#[source] nix::Error),
    /// The link is not there.
    #[error("cannot listen for the host on guest port {port}: {source}; is the guest's vsock driver loaded?")]
    Link {
        /// The guest port.
        port: u32,
        /// Why.
        source: io::Error,
    },
    /// A port of the app's side is taken.
    #[error("cannot listen on {address} for {purpose}: {source}")]
    Bind {
        /// The address.
        address: SocketAddrV4,
        /// What for.
        purpose: String,
        /// Why.
        source: io::Error,
    },
    /// What nova-init handed over cannot be used.
    #[error("cannot use {what} that nova-init made: {source}")]
    Handed {
        /// What it is.
        what: String,
        /// Why.
        source: io::Error,
    },
}

/// Closes the process to the app before it knows the token: no ptrace, no `/proc/<pid>/mem`, no core dump.
///
/// # Errors
/// When the kernel refuses; the relay must not read its configuration then.
pub fn hide() -> Result<(), RelayError> {
    prctl::set_dumpable(false).map_err(RelayError::Hide)?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(RelayError::Hide)
}

/// A relay whose ports are all bound.
#[derive(Debug)]
pub struct Relay {
    tasks: JoinSet<()>,
}

impl Relay {
    /// Binds every port, takes over what nova-init made, and starts to serve. Must be called within a runtime.
    ///
    /// # Errors
    /// Names the first port that cannot be bound.
    pub fn start(config: RelayConfig, handed: Handed) -> Result<Self, RelayError> {
        let budget = Budget::new(affordable(config.max_connections));
        let framed = config.framed;
        let slots = Arc::new(Slots::new(config.link.clone(), config.boot_token, framed, &config.host_ports));
        let mut listeners = app_ports(&config)?;
        listeners.extend(egress_sockets(&config, handed.sockets)?);
        let tun = handed.tun.map(crate::sys::register).transpose();
        let tun = tun.map_err(|source| RelayError::Handed { what: ping::DEVICE.to_owned(), source })?;
        let port = config.guest_port;
        let listener = config.link.listen(port).map_err(|source| RelayError::Link { port, source })?;

        let mut tasks = JoinSet::new();
        tasks.spawn(inbound::serve(listener, Targets::new(&config), budget.clone()));
        for (listener, purpose) in listeners {
            tasks.spawn(Outbound::new(listener, purpose, Arc::clone(&slots), budget.clone()).serve());
        }
        if let Some((tun, from)) = tun.zip(config.ping_from) {
            tasks.spawn(ping::serve(tun, from, Arc::clone(&slots)));
        }
        for index in 0..slots.count() {
            tasks.spawn(Arc::clone(&slots).keep_presence(index));
        }
        Ok(Self { tasks })
    }

    /// Serves until a part ends, which none does by itself. Dropping the relay closes all connections.
    pub async fn serve(mut self) {
        let _ = self.tasks.join_next().await;
    }
}

fn app_ports(config: &RelayConfig) -> Result<Vec<(Listener, Purpose)>, RelayError> {
    let proxy = (SocketAddrV4::new(Ipv4Addr::LOCALHOST, config.proxy_port), Kind::Proxy, String::new());
    let dependencies = config.dependencies.iter().map(|it| (it.listen_on(), Kind::Dependency, it.target()));
    let bind = |(address, kind, target): (SocketAddrV4, Kind, String)| {
        let purpose = if target.is_empty() { "the app's proxy".into() } else { format!("dependency {target}") };
        let listener = Listener::tcp(address).map_err(|source| RelayError::Bind { address, purpose, source })?;
        Ok((listener, Purpose { kind, target }))
    };
    std::iter::once(proxy).chain(dependencies).map(bind).collect()
}

fn egress_sockets(config: &RelayConfig, sockets: Vec<UnixListener>) -> Result<Vec<(Listener, Purpose)>, RelayError> {
    let take = |(socket, said): (UnixListener, &EgressSocket)| {
        let listener =
            Listener::unix(socket).map_err(|source| RelayError::Handed { what: said.name.clone(), source })?;
        let purpose = match &said.dependency {
            None => Purpose { kind: Kind::Unix, target: said.name.clone() },
            Some(dependency) => Purpose { kind: Kind::Dependency, target: dependency.clone() },
        };
        Ok((listener, purpose))
    };
    sockets.into_iter().zip(&config.egress_sockets).map(take).collect()
}

/// Raises the limit of descriptors for two a connection; where that is not allowed, fewer connections are carried.
fn affordable(max_connections: usize) -> usize {
    let wanted = (max_connections * 2 + SPARE_DESCRIPTORS) as u64;
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return max_connections };
    let limit = wanted.min(hard).max(soft);
    let granted = if setrlimit(Resource::RLIMIT_NOFILE, limit, hard).is_ok() { limit } else { soft };
    let spare = SPARE_DESCRIPTORS as u64;
    let affordable = usize::try_from(granted.saturating_sub(spare) / 2).unwrap_or(max_connections).max(1);
    if affordable < max_connections {
        tracing::warn!(
            affordable,
            max_connections,
            "the limit of open files is too low: fewer connections are carried"
        );
    }
    affordable.min(max_connections)
}
