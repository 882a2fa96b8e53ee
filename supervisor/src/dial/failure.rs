//! Why a dial failed.

use std::net::{IpAddr, SocketAddr};

use crate::net::guard::Forbidden;
use crate::net::outbound::ConnectError;
use crate::reason::Reason;
pub use crate::state::destinations::DialFailure;

/// The workload's address is not usable here: its route is gone, or it belongs to another node by now.
const NO_SOURCE: &str = "no_source_address";

impl DialFailure {
    pub(super) const fn new(reason: Reason) -> Self {
        Self { reason, detail: "", addr: None }
    }

    pub(super) const fn at(reason: Reason, addr: SocketAddr) -> Self {
        Self { reason, detail: "", addr: Some(addr) }
    }

    pub(super) const fn detailed(self, detail: &'static str) -> Self {
        Self { detail, ..self }
    }

    pub(super) const fn because(reason: Reason, detail: &'static str) -> Self {
        Self { reason, detail, addr: None }
    }

    /// An address that may not be dialled.
    pub(super) fn forbidden(why: Forbidden, address: IpAddr, port: u16) -> Self {
        let addr = Some(SocketAddr::new(address, port));
        Self { reason: Reason::AddressForbidden, detail: why.as_str(), addr }
    }

    pub(super) fn connecting(error: &ConnectError, addr: SocketAddr) -> Self {
        tracing::debug!(%addr, %error, "dial failed");
        match error {
            ConnectError::TimedOut => Self::at(Reason::UpstreamTimeout, addr),
            ConnectError::NoPort => Self::at(Reason::LimitPorts, addr),
            ConnectError::Source(_) => Self { detail: NO_SOURCE, ..Self::at(Reason::UpstreamRefused, addr) },
            ConnectError::Failed(_) => Self::at(Reason::UpstreamRefused, addr),
        }
    }

    /// Whether it says that the destination does not answer, whoever asks.
    pub(super) fn is_of_destination(self) -> bool {
        matches!(self.reason, Reason::ResolveFailed | Reason::UpstreamRefused | Reason::UpstreamTimeout)
    }

    /// Whether another address of the same name may do better. A wrong certificate is reported instead: who answers there
    /// is not who should.
    pub(super) fn is_of_one_address(self) -> bool {
        matches!(
            self.reason,
            Reason::UpstreamRefused | Reason::UpstreamTimeout | Reason::UpstreamClosed | Reason::LimitPorts
        )
    }
}
