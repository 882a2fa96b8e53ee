//! Opens connections for permits, and for nothing else. What is dialled comes out of the permit itself: its input and the
//! rule that granted it; a caller of this module has no other way to say where to.

mod failure;
mod form;
mod health;
mod http;
mod key;
mod lease;
mod parent;
mod ping;
mod pool;
mod race;
mod resolve;
mod shared;
mod spare;
mod speaks;
mod tls;

use std::cell::Cell;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nova_policy::data::{EgressTarget, UpstreamTls};
use nova_policy::input::Direction;
use tokio::net::TcpStream;

use crate::audit::Record;
use crate::decide::Permit;
use crate::guestlink::{self, GuestStream, LinkPorts};
use crate::net::guard::AddressGuard;
use crate::net::outbound;
use crate::net::resolve::Resolver;
use crate::net::stream::Stream;
use crate::reason::Reason;
use crate::state::destinations::Trial;
use crate::state::endpoint::{Endpoint, EndpointSpec, Stage};
use crate::state::table::EndpointTable;
use crate::tls::{TrustCell, Versions};

use self::race::race;
use self::resolve::Sources;

pub use self::failure::DialFailure;
pub use self::health::health;
pub use self::http::{HttpUpstream, SendFailure, send, switched};
pub use self::lease::PoolLease;
pub use self::parent::{Parent, ParentError, Parents};
pub use self::pool::{Pool, Pools};
pub use self::speaks::Speaks;

/// Which limit of connections is reached: that of one destination.
const DESTINATION: &str = "destination";
/// Everything about a dial together: lookup, attempts, handshakes.
const DIAL_DEADLINE: Duration = Duration::from_secs(30);

/// How calls leave for hosts outside.
#[derive(Clone)]
pub struct Outside {
    /// The proxies on the way.
    pub parents: Arc<Parents>,
    /// What may be spoken.
    pub versions: Versions,
}

/// The dialler of one data-plane thread.
pub struct Dialer {
    endpoints: Arc<EndpointTable>,
    links: LinkPorts,
    guard: AddressGuard,
    resolver: Resolver,
    tls: tls::Originator,
    parents: Arc<Parents>,
    pools: Rc<Pools>,
    /// Of this thread's next ping. The kernel chooses each ping's identifier, so threads need not agree.
    next_sequence: Cell<u16>,
}

impl Dialer {
    /// A dialler for this thread.
    #[must_use]
    pub fn new(
        endpoints: Arc<EndpointTable>,
        links: LinkPorts,
        guard: AddressGuard,
        resolver: Resolver,
        trust: Arc<TrustCell>,
        outside: Outside,
    ) -> Self {
        Self {
            endpoints,
            links,
            guard,
            resolver,
            tls: tls::Originator::new(trust, outside.versions),
            parents: outside.parents,
            pools: Rc::default(),
            next_sequence: Cell::new(1),
        }
    }

    /// The idle HTTP connections of this thread.
    #[must_use]
    pub fn pools(&self) -> &Rc<Pools> {
        &self.pools
    }

    /// Closes idle connections that are too old, and those of endpoints that drain or are gone.
    pub fn tick(&self) {
        let endpoints = self.endpoints.load();
        let serving: HashSet<_> = endpoints
            .iter()
            .filter(|endpoint| endpoint.stage() < Stage::Draining)
            .map(|endpoint| endpoint.spec())
            .map(|spec| (spec.pod_uid.to_string(), spec.generation.to_string()))
            .collect();
        self.pools.tick(|pod, generation| serving.contains(&(pod.to_owned(), generation.to_owned())));
    }

    /// Opens a connection to the app that an ingress permit names.
    ///
    /// # Errors
    /// [`DialFailure`] with the reason for the record.
    pub async fn guest(&self, permit: &Permit, spec: &EndpointSpec) -> Result<GuestStream, DialFailure> {
        let input = permit.input();
        let is_for_this = input.direction() == Direction::Ingress && input.workload() == spec.workload.as_str();
        let port = spec.ports.iter().find(|port| input.port() == Some(port.name.as_str()));
        let port = port.filter(|_| is_for_this).ok_or(DialFailure::new(Reason::EndpointNotReady))?;
        guestlink::open(&self.links, spec, &port.target).await.map_err(|error| {
            tracing::debug!(workload = %spec.workload, %error, "guest dial failed");
            DialFailure::new(error.reason())
        })
    }

    /// Opens a connection to the destination that an egress permit names, from the caller's own address. `record` is told where
    /// that is: the address that was dialled or refused, and the name that aliases lead to.
    ///
    /// # Errors
    /// The reason for the record, which has the detail.
    pub async fn upstream(&self, permit: &Permit, caller: &Endpoint, record: &mut Record) -> Result<Stream, Reason> {
        let mut canonical = None;
        let dialling = self.upstream_in_time(permit, caller, &mut canonical);
        let dialled = tokio::time::timeout(DIAL_DEADLINE, dialling).await;
        if let Some(canonical) = &canonical {
            record.canonical(canonical);
        }
        match dialled.unwrap_or(Err(DialFailure::new(Reason::UpstreamTimeout))) {
            Ok((stream, addr)) => {
                record.dialled(addr);
                Ok(stream)
            }
            Err(failure) => {
                record.not_dialled(failure.addr, failure.detail);
                Err(failure.reason)
            }
        }
    }

    async fn upstream_in_time(
        &self,
        permit: &Permit,
        caller: &Endpoint,
        canonical: &mut Option<Arc<str>>,
    ) -> Result<(Stream, SocketAddr), DialFailure> {
        let (host, port) = destination(permit)?;
        let key = format!("{} {host}:{port}", permit.rule());
        let mut trial = caller.destinations.trial(&key).await?;
        let dialled = self.dial(permit, caller, (host, port), &mut trial, canonical).await;
        dialled.inspect_err(|failure| {
            if failure.is_of_destination() {
                trial.failed(*failure);
            }
        })
    }

    /// Resolves once, and tries what that gave until one address is who it should be.
    async fn dial(
        &self,
        permit: &Permit,
        caller: &Endpoint,
        (host, port): (&str, u16),
        trial: &mut Trial,
        canonical: &mut Option<Arc<str>>,
    ) -> Result<(Stream, SocketAddr), DialFailure> {
        let target = permit.target().ok_or(DialFailure::new(Reason::NoGrant))?;
        let sources = Sources::of(&caller.spec());
        let parent = self.parents.towards(target, host).parent()?;
        let mut addresses = match parent {
            None => self.addresses(host, port, target, caller, sources, canonical).await?,
            Some(parent) => self.addresses_of(parent, (host, port), target, caller, sources).await?,
        };
        loop {
            let place = trial.place(caller.spec().limits.destination_connections);
            let place = place.ok_or(DialFailure::because(Reason::LimitConnections, DESTINATION))?;
            let connected = race(&mut addresses, async |addr| connect(sources, addr).await).await;
            let (tcp, addr) = if parent.is_some() { connected.map_err(parent::unreachable)? } else { connected? };
            trial.answered();
            let stream = match parent {
                None => Stream::Dialled(tcp, place),
                Some(parent) => parent::through(parent, Stream::Dialled(tcp, place), addr, host, port).await?,
            };
            match self.secured(stream, permit, caller, addr).await {
                Ok(stream) => return Ok((stream, addr)),
                Err(failure) if failure.is_of_one_address() && !addresses.is_empty() => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Adds the TLS that the permit's rule asks for.
    async fn secured(
        &self,
        stream: Stream,
        permit: &Permit,
        caller: &Endpoint,
        addr: SocketAddr,
    ) -> Result<Stream, DialFailure> {
        let (host, _) = destination(permit)?;
        let alpn = speaks::offered(permit);
        match permit.target() {
            Some(EgressTarget::Workload { spiffe_id, .. }) => {
                self.tls.to_workload(stream, caller, spiffe_id, alpn, addr).await
            }
            Some(EgressTarget::External { tls: UpstreamTls::Originate, ca, .. }) => {
                self.tls.to_external(stream, host, ca.as_deref(), alpn, permit, addr).await
            }
            Some(EgressTarget::External { .. } | EgressTarget::Cidr { .. }) => Ok(stream),
            None => Err(DialFailure::new(Reason::NoGrant)),
        }
    }
}

async fn connect(sources: Sources, addr: SocketAddr) -> Result<TcpStream, DialFailure> {
    let from = sources.towards(addr.ip()).ok_or(DialFailure::new(Reason::ResolveFailed))?;
    outbound::connect(from, addr).await.map_err(|error| DialFailure::connecting(&error, addr))
}

fn destination(permit: &Permit) -> Result<(&str, u16), DialFailure> {
    let input = permit.input();
    input.dest_host().zip(input.dest_port()).ok_or(DialFailure::new(Reason::BadDestination))
}
