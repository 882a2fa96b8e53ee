//! A connection of an endpoint, from accept to close.
//!
//! ```text
//! Accepted ----identify----> Identified ----decide----> Permit ----dial----> Stream
//! ```
//!
//! Each stage is a type, made only by the step before it. The audit record travels with the connection; dropping a stage
//! anywhere ends the connection and writes its record.

pub mod body;
mod bounds;
mod cut;
mod event;
mod flow;
mod peer;
mod registry;
pub mod reply;
mod target;

use std::net::SocketAddr;
use std::sync::Arc;

use crate::audit::{AuditSink, Kind, Record};
use crate::identity::PeerIdentity;
use crate::state::endpoint::{Endpoint, EndpointSpec, Slot};

pub use bounds::HttpBounds;
pub use cut::{Cut, until_closed, until_overdue, until_port_overdue};
pub use event::Event;
pub use peer::PeerWatch;
pub use registry::{Guard, Live, Registry};
pub use target::canonical_path;

/// A connection that belongs to an endpoint, counted against its cap, with an open record.
pub struct Accepted {
    /// The endpoint it belongs to.
    pub endpoint: Arc<Endpoint>,
    /// Its spec at accept: what the whole connection is judged by.
    pub spec: Arc<EndpointSpec>,
    /// The connection's record.
    pub record: Record,
    slot: Slot,
}

impl Accepted {
    /// Counts the connection, or refuses it at the endpoint's cap (and records that).
    #[must_use]
    pub fn new(
        endpoint: &Arc<Endpoint>,
        sink: &Arc<AuditSink>,
        direction: &'static str,
        from: SocketAddr,
    ) -> Option<Self> {
        match endpoint.take_connection() {
            Ok(slot) => {
                let mut accepted = Self::counted(slot, sink, direction);
                accepted.record.src(from);
                Some(accepted)
            }
            Err(none) => {
                let mut record = Record::open(sink, Kind::Connection, direction, &endpoint.spec());
                record.src(from);
                record.deny(none.into());
                None
            }
        }
    }

    /// A connection that has its place already.
    #[must_use]
    pub fn counted(slot: Slot, sink: &Arc<AuditSink>, direction: &'static str) -> Self {
        let endpoint = Arc::clone(slot.endpoint());
        // A copy: every request of the connection counts in its handles, which must not be a count that threads share.
        let spec = Arc::new(EndpointSpec::clone(&endpoint.spec()));
        let record = Record::open(sink, Kind::Connection, direction, &spec);
        Self { endpoint, spec, record, slot }
    }

    /// The next stage: now it is known who calls.
    #[must_use]
    pub fn identified(mut self, who: Caller) -> Identified {
        if let Some(peer) = &who.identity {
            self.record.peer(&peer.label(), peer.ca.as_deref());
        }
        if let Some(addr) = who.addr {
            self.record.src(addr);
        }
        Identified { endpoint: self.endpoint, spec: self.spec, record: self.record, who, slot: self.slot }
    }
}

/// Who calls, as proven by a certificate or given by the host.
#[derive(Debug, Clone)]
pub struct Caller {
    /// From the verified client certificate; none on `tcp` ports and for guests.
    pub identity: Option<PeerIdentity>,
    /// Address the connection came from; none for guests.
    pub addr: Option<SocketAddr>,
}

/// A connection whose caller is known.
pub struct Identified {
    /// The endpoint it belongs to.
    pub endpoint: Arc<Endpoint>,
    /// Its spec at accept.
    pub spec: Arc<EndpointSpec>,
    /// The connection's record.
    pub record: Record,
    /// Who calls.
    pub who: Caller,
    #[allow(dead_code, reason = "held for its Drop: the connection's place under the cap")]
    slot: Slot,
}
