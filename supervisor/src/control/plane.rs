//! What the control service needs from the rest of the program. `app` implements it with the real parts, tests with fakes.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::watch;

use crate::identity::IdentitySource;
use crate::net::routes::{RouteError, Routes};
use crate::reason::Reason;
use crate::state::endpoint::{Endpoint, EndpointSpec, PortSpec};
use crate::state::policy::PolicyCell;
use crate::state::table::EndpointTable;

/// Everything an endpoint's life needs.
#[derive(Clone)]
pub struct Means {
    /// Sockets and data-plane threads.
    pub plane: Arc<dyn DataPlane>,
    /// Where SVIDs come from.
    pub identity: Arc<dyn IdentitySource>,
    /// Who makes addresses local.
    pub routes: Arc<dyn RouteOwner>,
    /// The active bundle.
    pub policy: Arc<dyn PolicyView>,
    /// What the data plane looks endpoints up in.
    pub table: Arc<EndpointTable>,
    /// Time spans.
    pub timing: Timing,
}

/// Sockets and data-plane threads.
pub trait DataPlane: Send + Sync + 'static {
    /// Binds the sockets of a port (one per thread, with `IP_FREEBIND`), without listening.
    ///
    /// # Errors
    /// When the port cannot be bound.
    fn bind(&self, endpoint: &Arc<Endpoint>, port: &PortSpec) -> io::Result<Vec<OwnedFd>>;

    /// Listens on what [`DataPlane::bind`] returned and hands the sockets to the threads, which close them at stage
    /// `Draining`.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn listen(&self, endpoint: &Arc<Endpoint>, port: &PortSpec, sockets: Vec<OwnedFd>) -> io::Result<()>;

    /// Stops listening on a port that an update took away. Its open connections drain as those of an endpoint do: what is asked
    /// for finishes, and after the endpoint's drain timeout they are cut.
    fn close_port(&self, endpoint: &Arc<Endpoint>, port: &PortSpec);

    /// Cuts what is still open of ports that were taken away and whose place `port` takes with another mode or protocol.
    fn supersede(&self, endpoint: &Arc<Endpoint>, port: &PortSpec);

    /// Opens the acceptor of what the guest dials. It lives until the returned value is dropped; after that the socket
    /// path is free. It must accept while the stage is `EgressOnly`, `Serving` or `Draining` (open proxy connections may
    /// make further requests), and call [`super::Control::presence_lost`] when the presence connection ends.
    ///
    /// # Errors
    /// When the socket cannot be opened.
    fn accept_guest(&self, endpoint: &Arc<Endpoint>) -> io::Result<Box<dyn Send>>;

    /// One health check of one port through the relay. The caller bounds it in time.
    fn health(&self, endpoint: &Arc<Endpoint>, port: &PortSpec) -> BoxFuture<'static, Result<(), Reason>>;

    /// Whether nobody is behind the guest's link: its VMM does not run. What cannot be told is no. The caller bounds it in time.
    fn is_gone(&self, endpoint: &Arc<Endpoint>) -> BoxFuture<'static, bool>;
}

/// Who makes workload addresses local.
pub trait RouteOwner: Send + Sync + 'static {
    /// Makes the address local, or checks that it is. May block for a moment.
    ///
    /// # Errors
    /// When it is not local afterwards.
    fn ensure(&self, ip: IpAddr) -> Result<(), RouteError>;

    /// Undoes [`RouteOwner::ensure`]. May block for a moment.
    ///
    /// # Errors
    /// When the route stays.
    fn release(&self, ip: IpAddr) -> Result<(), RouteError>;
}

impl RouteOwner for Routes {
    fn ensure(&self, ip: IpAddr) -> Result<(), RouteError> {
        Self::ensure(self, ip)
    }

    fn release(&self, ip: IpAddr) -> Result<(), RouteError> {
        Self::release(self, ip)
    }
}

/// What the control service must know of the active bundle.
pub trait PolicyView: Send + Sync + 'static {
    /// Whether the bundle has data for the endpoint's workload. No bundle knows nobody.
    fn knows(&self, spec: &EndpointSpec) -> bool;

    /// Revision of the active bundle; empty without one.
    fn revision(&self) -> String;

    /// Changes whenever a bundle is activated.
    fn watch(&self) -> watch::Receiver<u64>;
}

impl PolicyView for PolicyCell {
    fn knows(&self, spec: &EndpointSpec) -> bool {
        self.load().is_some_and(|policy| policy.knows_workload(spec.workload.as_str()))
    }

    fn revision(&self) -> String {
        self.load().map(|policy| policy.revision().to_owned()).unwrap_or_default()
    }

    fn watch(&self) -> watch::Receiver<u64> {
        Self::watch(self)
    }
}

/// Time spans of the control service; the defaults are what operators get.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// First retry of what failed, and first interval of health checks.
    pub first_retry: Duration,
    /// Longest retry.
    pub last_retry: Duration,
    /// Until a missing SVID is reported as `svid_timeout`.
    pub svid_deadline: Duration,
    /// Between statuses of one phase for one endpoint.
    pub status_gap: Duration,
    /// How long connections may take to end after they were cut.
    pub cut_deadline: Duration,
    /// First delay before novalet is called again.
    pub first_reconnect: Duration,
    /// Longest delay before novalet is called again.
    pub last_reconnect: Duration,
    /// Between looks at `endpoints.yaml`.
    pub file_poll: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            first_retry: Duration::from_millis(250),
            last_retry: Duration::from_secs(5),
            svid_deadline: Duration::from_secs(30),
            status_gap: Duration::from_millis(200),
            cut_deadline: Duration::from_secs(2),
            first_reconnect: Duration::from_millis(100),
            last_reconnect: Duration::from_secs(5),
            file_poll: Duration::from_millis(200),
        }
    }
}
