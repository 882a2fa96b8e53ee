//! What a guest asks for: hello, then one of the ways out, all decided at the same point.
//!
//! ```text
//!                    /-- HTTP absolute form: per request  path -> decide(request) -> dial -> forward
//! hello -- proxy ---<--- CONNECT  --\
//!      \             \-- SOCKS5   ---> decide(opaque) -> dial -> first bytes checked -> copy
//!       \- dependency --------------/   only L7 rules: decide(connect), then HTTP inside, per request as above
//!       \- unix: as proxy
//!       \- icmp: per ping  decide(opaque) -> rate -> dial::ping
//!        \ presence: held open; its end means that the guest is gone
//!         \ trust: held open; the CAs of the pod, whose leaves answer TLS in tunnels of rules that intercept
//! ```
//! Who asks is the endpoint whose link the connection came over. Nothing that the guest sends changes that.

mod credential;
pub mod first;
mod http;
mod icmp;
mod intercept;
mod retry;
pub mod socks;
mod trust;
mod tunnel;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nova_proto::hello::Kind as HelloKind;
use nova_proto::ids::PodUid;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::audit::{AuditSink, Kind, Record, Verdict};
use crate::conn::{Accepted, Caller, Guard, Live, Registry, until_overdue};
use crate::decide::Decider;
use crate::dial::Dialer;
use crate::guestlink::{self, HelloFailure};
use crate::identity::PodCas;
use crate::net::stream::{Prefixed, Stream};
use crate::reason::Reason;
use crate::state::endpoint::{Endpoint, EndpointSpec, Slot, Stage};
use crate::state::policy::PolicyCell;
use crate::tls::Leaves;

/// A proxy connection on which the app says nothing for this long is closed.
const FIRST_BYTE: Duration = Duration::from_secs(60);

/// Says that a guest is gone: its pod and generation.
pub type PresenceLost = mpsc::UnboundedSender<(PodUid, u64)>;

/// The egress service of one data-plane thread.
pub struct Egress {
    decider: Rc<Decider>,
    dialer: Rc<Dialer>,
    audit: Arc<AuditSink>,
    policy: Arc<PolicyCell>,
    registry: Arc<Registry>,
    presence_lost: PresenceLost,
    pod_cas: Arc<PodCas>,
    leaves: Leaves,
}

/// One connection of a guest, shared by everything that goes on over it.
struct Guest {
    egress: Rc<Egress>,
    endpoint: Arc<Endpoint>,
    spec: Arc<EndpointSpec>,
    /// Held until the last tunnel of the connection ends: its record, its place under the cap.
    conn: crate::conn::Identified,
    /// How the last of what went on over it ended.
    close: Cell<Reason>,
    #[allow(dead_code, reason = "keeps the connection listed")]
    listed: Guard,
}

impl Egress {
    /// The service for this thread.
    #[must_use]
    pub fn new(
        decider: Rc<Decider>,
        dialer: Rc<Dialer>,
        audit: Arc<AuditSink>,
        policy: Arc<PolicyCell>,
        registry: Arc<Registry>,
        presence_lost: PresenceLost,
        pod_cas: Arc<PodCas>,
    ) -> Self {
        Self { decider, dialer, audit, policy, registry, presence_lost, pod_cas, leaves: Leaves::default() }
    }

    /// Serves one guest connection that has its place, from accept to close; `turn` is how long it waits under the endpoint's
    /// rate. What has no cut of its own (a hello, a dial) ends with the endpoint as well.
    pub async fn serve(self: Rc<Self>, slot: Slot, turn: Duration, stream: UnixStream) {
        let gone = Arc::clone(slot.endpoint());
        tokio::select! {
            biased;
            () = self.carry(slot, turn, stream) => {}
            () = until_overdue(&gone) => {}
        }
    }

    async fn carry(self: Rc<Self>, slot: Slot, turn: Duration, stream: UnixStream) {
        let mut accepted = Accepted::counted(slot, &self.audit, "egress");
        let endpoint = Arc::clone(&accepted.endpoint);
        if !(Stage::EgressOnly..Stage::Closed).contains(&endpoint.stage()) {
            return accepted.record.deny(Reason::EndpointNotReady);
        }
        let (hello, stream) = match guestlink::receive(stream, accepted.spec.boot_token).await {
            Ok(received) => received,
            Err(failure) => {
                return accepted.record.deny(match failure {
                    HelloFailure::Bad => Reason::BadHello,
                    HelloFailure::Token => Reason::WrongToken,
                });
            }
        };
        // Not before the hello: presence waits for no turn.
        if hello.kind == HelloKind::Presence {
            endpoint.uncount_arrival();
        } else if !turn.is_zero() {
            tokio::time::sleep(turn).await;
        }
        accepted.record.verdict(Verdict::Allow, Reason::Connect, &Arc::default(), &Arc::default());
        let stream = Stream::Guest(Box::new(stream));
        match hello.kind {
            HelloKind::Presence => {
                accepted.record.serves();
                self.presence(&endpoint, accepted, stream).await;
            }
            HelloKind::Trust => trust::serve(&self, accepted, stream).await,
            HelloKind::Proxy => proxy(self.guest(accepted, "proxy"), stream, http::Mode::Proxy).await,
            HelloKind::Dependency => dependency(self.guest(accepted, &hello.target), stream, &hello.target).await,
            HelloKind::Unix => proxy(self.guest(accepted, "egress socket"), stream, http::Mode::Socket).await,
            HelloKind::Icmp => icmp::serve(self.guest(accepted, "pings"), stream).await,
            _ => accepted.record.deny(Reason::Unsupported),
        }
    }

    fn guest(self: Rc<Self>, accepted: Accepted, what: &str) -> Rc<Guest> {
        let listed = self.registry.enter(Live {
            decision_id: accepted.record.decision_id().to_owned(),
            direction: "egress",
            workload: accepted.spec.workload.to_string(),
            peer: "guest".to_owned(),
            what: what.to_owned(),
            since: std::time::Instant::now(),
        });
        let conn = accepted.identified(Caller { identity: None, addr: None });
        Rc::new(Guest {
            egress: self,
            endpoint: Arc::clone(&conn.endpoint),
            spec: Arc::clone(&conn.spec),
            conn,
            close: Cell::new(Reason::Aborted),
            listed,
        })
    }

    /// Holds the connection while the guest lives. A presence that ends because the endpoint does is no loss.
    async fn presence(&self, endpoint: &Endpoint, mut accepted: Accepted, mut stream: Stream) {
        let mut stage = endpoint.watch_stage();
        let gone = async {
            // Nothing is said on it; a guest that does so all the same costs no more than any other.
            let mut unread = vec![0; 4096];
            while !matches!(stream.read(&mut unread).await, Ok(0) | Err(_)) {}
        };
        tokio::select! {
            _ = stage.wait_for(|stage| *stage >= Stage::Draining) => accepted.record.close(Reason::Draining),
            () = gone => {
                accepted.record.close(Reason::Done);
                let lost = (accepted.spec.pod_uid.clone(), accepted.spec.generation);
                // Fails only when the control service is gone, and with it the process.
                let _ = self.presence_lost.send(lost);
            }
        }
    }
}

impl Guest {
    /// Notes how something that went on over the connection has ended.
    fn ended(&self, how: Reason) {
        self.close.set(how);
    }

    /// Something that it asks for is allowed.
    fn serves(&self) {
        self.conn.record.serves();
    }

    /// To be awaited before a denial is told: see [`AuditSink::throttle`].
    async fn throttle(&self) {
        self.egress.audit.throttle(&self.spec.pod_uid).await;
    }

    /// A record for something that this connection asks for.
    fn record(&self) -> Record {
        // As the endpoint is now: what it may use can change while a connection lives.
        Record::open(&self.egress.audit, Kind::Request, "egress", &self.endpoint.spec())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.conn.record.close(self.close.get());
    }
}

/// What an app says first, or `None` when its endpoint begins to drain: nothing was said yet, and waiting for it would hold up
/// the drain. Who calls while it drains already may need that to finish.
async fn while_wanted<T>(endpoint: &Endpoint, first: impl Future<Output = T>) -> Option<T> {
    let mut stage = endpoint.watch_stage();
    let is_draining = *stage.borrow() >= Stage::Draining;
    tokio::select! {
        biased;
        said = first => Some(said),
        _ = stage.wait_for(|stage| *stage >= Stage::Draining), if !is_draining => None,
    }
}

/// HTTP and SOCKS5 share the proxy port; the first byte tells them apart: no HTTP method starts with 5.
async fn proxy(guest: Rc<Guest>, mut stream: Stream, mode: http::Mode) {
    let mut first = vec![0; 4096];
    let reading = tokio::time::timeout(FIRST_BYTE, stream.read(&mut first));
    let Some(read) = while_wanted(&guest.endpoint, reading).await else { return guest.ended(Reason::Draining) };
    let read = match read {
        Ok(Ok(read @ 1..)) => read,
        Ok(Ok(_)) => return guest.ended(Reason::Done),
        Ok(Err(_)) => return guest.ended(Reason::Reset),
        Err(_) => return guest.ended(Reason::IdleTimeout),
    };
    first.truncate(read);
    let stream = Prefixed::new(Bytes::from(first), stream);
    if stream.first().first() == Some(&socks::wire::VERSION) {
        socks::serve(guest, stream).await;
    } else {
        http::serve(guest, stream, mode).await;
    }
}

/// A fixed dependency: one of the endpoint's own list, decided like any other destination.
async fn dependency(guest: Rc<Guest>, stream: Stream, target: &str) {
    let mut record = guest.record();
    let declared = guest.spec.dependencies.iter().find(|dependency| {
        target.strip_prefix(dependency.host.as_str()).and_then(|rest| rest.strip_prefix(':'))
            == Some(dependency.port.to_string().as_str())
    });
    let Some(declared) = declared else {
        record.deny(Reason::BadDestination);
        guest.ended(Reason::BadDestination);
        guest.throttle().await;
        return stream.abort().await;
    };
    let stream = Prefixed::new(Bytes::new(), stream);
    match tunnel::open_named(&guest, &declared.host, declared.port, &mut record).await {
        Ok(opened) => http::carry(guest, opened, stream, record).await,
        Err(reason) => {
            guest.ended(reason);
            guest.throttle().await;
            stream.abort().await;
        }
    }
}
