//! An endpoint: what novalet says of one workload's pod, and what lives of it in this process.

mod spec;

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
pub use nova_policy::workloads::PortTls;
use tokio::sync::{Semaphore, watch};

pub use self::spec::{Backend, DependencySpec, EndpointSpec, HealthCheck, PortMode, PortSpec, Protocol, Target};
use super::arrival::Arrivals;
pub use super::arrival::OnTheWay;
use super::bucket::Bucket;
use super::budget::{Budget, Place, Share};
use super::destinations::Destinations;
use super::echoes::Echoes;
pub use super::echoes::{ECHOES_MAX, EchoPlace};
use super::handshakes::{HandshakeSlot, Handshakes, NoPlace};
pub use super::limits::EndpointLimits;
use super::names::Names;
use super::way::Way;
use crate::identity::PodCaCell;
use crate::reason::Reason;
use crate::tls::SvidCell;

/// Bodies of one endpoint that are held at a time: with a mebibyte each, little beside what its connections may buffer.
const WHOLE_BODIES: usize = 16;

/// How far an endpoint may serve. Only the control service moves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Known, no SVID yet: nothing is served.
    Waiting,
    /// The app may call out; nobody may call in.
    EgressOnly,
    /// Both directions.
    Serving,
    /// No new connections; open ones finish.
    Draining,
    /// Everything that is still open is cut.
    Closed,
}

/// An endpoint in this process: its spec and its live parts. One value per generation.
pub struct Endpoint {
    weak: Weak<Endpoint>,
    spec: ArcSwap<EndpointSpec>,
    stage: watch::Sender<Stage>,
    open: AtomicUsize,
    pub(super) share: Share,
    accepting: AtomicUsize,
    handshakes: Arc<Handshakes>,
    interceptions: Arc<Handshakes>,
    echoes: Arc<Echoes>,
    arrivals: Arrivals,
    to_guest: Bucket,
    from_guest: Bucket,
    /// The names that it has resolved.
    pub names: Names,
    /// What it knows of the destinations that it dials.
    pub destinations: Destinations,
    /// Places for bodies of requests that are read whole before they go, because a credential goes into them.
    pub whole_bodies: Arc<Semaphore>,
    /// The SVID that handshakes of this endpoint use; empty until one is issued.
    pub svid: Arc<SvidCell>,
    /// The CA that signs what the app sees where a rule intercepts its TLS; empty until the guest asks for it.
    pub pod_ca: PodCaCell,
    /// Last reason and message acknowledged, for the admin surface.
    pub status: ArcSwapOption<EndpointStatus>,
}

/// What was last told to novalet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointStatus {
    /// Name of the phase in `control.proto`.
    pub phase: &'static str,
    /// Closed set.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

impl Endpoint {
    /// A new endpoint that serves nothing yet, and shares its process with no other.
    #[must_use]
    pub fn new(spec: EndpointSpec) -> Arc<Self> {
        Self::within(&Budget::unlimited(), spec)
    }

    /// A new endpoint that serves nothing yet, with a share of `budget`.
    #[must_use]
    pub fn within(budget: &Arc<Budget>, spec: EndpointSpec) -> Arc<Self> {
        Arc::new_cyclic(|weak| Self {
            weak: Weak::clone(weak),
            spec: ArcSwap::from_pointee(spec),
            stage: watch::Sender::new(Stage::Waiting),
            open: AtomicUsize::new(0),
            accepting: AtomicUsize::new(0),
            share: Share::join(budget),
            handshakes: Arc::default(),
            interceptions: Arc::default(),
            echoes: Arc::default(),
            arrivals: Arrivals::default(),
            to_guest: Bucket::default(),
            from_guest: Bucket::default(),
            names: Names::default(),
            destinations: Destinations::default(),
            whole_bodies: Arc::new(Semaphore::new(WHOLE_BODIES)),
            svid: SvidCell::empty(),
            pod_ca: PodCaCell::default(),
            status: ArcSwapOption::empty(),
        })
    }

    /// The spec as of now.
    #[must_use]
    pub fn spec(&self) -> Arc<EndpointSpec> {
        self.spec.load_full()
    }

    /// Replaces the spec in place (same generation).
    pub fn update(&self, spec: EndpointSpec) {
        self.spec.store(Arc::new(spec));
    }

    /// The stage as of now.
    #[must_use]
    pub fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    /// Moves to `stage`; a stage never goes back, except to suspend a lost guest (`Waiting`).
    pub fn advance(&self, stage: Stage) {
        self.stage.send_if_modified(|now| {
            let moves = stage > *now || (stage == Stage::Waiting && *now < Stage::Draining);
            if moves {
                *now = stage;
            }
            moves
        });
    }

    /// A view of the stage that can be awaited.
    #[must_use]
    pub fn watch_stage(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    /// A reference that does not keep the endpoint.
    #[must_use]
    pub fn weak(&self) -> Weak<Self> {
        Weak::clone(&self.weak)
    }

    /// Connections open now, both directions.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Says that somebody accepts connections that are not counted yet.
    #[must_use]
    pub fn accepting(self: &Arc<Self>) -> Accepting {
        self.accepting.fetch_add(1, Ordering::Relaxed);
        Accepting(Arc::clone(self))
    }

    /// Whether nothing is open, and nobody holds connections that are not counted yet.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        // In this order: what was accepted is counted before its acceptor is gone.
        self.accepting.load(Ordering::Acquire) == 0 && self.open_connections() == 0
    }

    /// Takes one of the endpoint's connections.
    ///
    /// # Errors
    /// At the endpoint's cap, and when its share of the process is used up.
    pub fn take_connection(self: &Arc<Self>) -> Result<Slot, NoRoom> {
        let cap = self.part_of(self.spec.load().limits.max_connections);
        let one_more = |open: usize| (open < cap).then_some(open + 1);
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).map_err(|_| NoRoom::Endpoint)?;
        match self.share.take() {
            Some(place) => Ok(Slot { endpoint: Arc::clone(self), place }),
            None => {
                self.open.fetch_sub(1, Ordering::Relaxed);
                Err(NoRoom::Process)
            }
        }
    }

    /// Counts a new connection against the rate, and says how long it must wait for its turn.
    #[must_use]
    pub fn arrive(&self) -> Duration {
        self.arrive_within(Duration::MAX).unwrap_or_default()
    }

    /// As [`Endpoint::arrive`], for a connection that cannot wait longer than `longest`: `None`.
    #[must_use]
    pub fn arrive_within(&self, longest: Duration) -> Option<Duration> {
        self.arrivals.take(self.arrivals_per_second(), longest)
    }

    /// A connection that was counted against the rate is of a kind that is not.
    pub fn uncount_arrival(&self) {
        self.arrivals.give_back(self.arrivals_per_second());
    }

    /// Waits until another connection may be handed to the task that serves it.
    pub async fn on_the_way(&self) -> OnTheWay {
        self.arrivals.on_the_way().await
    }

    /// Takes one of the questions about names that the endpoint may ask of DNS servers.
    #[must_use]
    pub fn may_ask_for_a_name(&self) -> bool {
        self.names.may_ask(self.share.part_of(self.spec.load().limits.lookups_per_second.into()))
    }

    fn arrivals_per_second(&self) -> u64 {
        self.share.part_of(self.spec.load().limits.connections_per_second.into())
    }

    pub(super) fn bytes_per_second(&self) -> u64 {
        self.share.part_of(self.spec.load().limits.bytes_per_second)
    }

    pub(super) fn charge(&self, way: Way, bytes: u64) -> Duration {
        let bucket = match way {
            Way::ToGuest => &self.to_guest,
            Way::FromGuest => &self.from_guest,
        };
        match self.bytes_per_second() {
            0 => Duration::ZERO,
            rate => bucket.take(bytes, rate),
        }
    }

    /// Takes one of the endpoint's handshakes for a client at `source`.
    ///
    /// # Errors
    /// At the cap, and when the source has its share.
    pub fn take_handshake(&self, source: IpAddr) -> Result<HandshakeSlot, NoPlace> {
        self.handshakes.take(Some(source), self.most_handshakes())
    }

    /// Takes one of the handshakes in which the app's own TLS is answered. They have a count of their own: an app that opens
    /// many keeps none of its callers out.
    ///
    /// # Errors
    /// At the cap.
    pub fn take_interception(&self) -> Result<HandshakeSlot, NoPlace> {
        self.interceptions.take(None, self.most_handshakes())
    }

    fn most_handshakes(&self) -> usize {
        self.part_of(self.spec.load().limits.max_handshakes)
    }

    fn part_of(&self, cap: usize) -> usize {
        usize::try_from(self.share.part_of(cap as u64)).unwrap_or(usize::MAX)
    }

    /// A place for a ping that `rule` allows `rate` times a second; none when there are too many or they come too fast.
    #[must_use]
    pub fn take_echo(&self, rule: &str, rate: u32) -> Option<EchoPlace> {
        self.echoes.take(rule, self.share.part_of(rate.into()))
    }
}

/// Somebody who may hold connections that are not counted yet.
pub struct Accepting(Arc<Endpoint>);

impl Drop for Accepting {
    fn drop(&mut self) {
        self.0.accepting.fetch_sub(1, Ordering::Release);
    }
}

/// Why there is no room for another connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoom {
    /// The endpoint is at its cap.
    Endpoint,
    /// The endpoint's share of the process is used up, and so is what all endpoints share.
    Process,
}

impl From<NoRoom> for Reason {
    fn from(none: NoRoom) -> Self {
        match none {
            NoRoom::Endpoint => Self::LimitConnections,
            NoRoom::Process => Self::LimitProcess,
        }
    }
}

/// A connection's place under the cap and in the budget; given back when dropped.
pub struct Slot {
    endpoint: Arc<Endpoint>,
    place: Place,
}

impl Slot {
    /// Whose it is.
    #[must_use]
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.endpoint.share.give_back(self.place);
        self.endpoint.open.fetch_sub(1, Ordering::Relaxed);
    }
}
