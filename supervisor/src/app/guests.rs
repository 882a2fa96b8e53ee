//! Takes in what guests dial: a place under the caps and a turn under the rate first, then a thread.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::accept::{GuestArrival, Workers};
use crate::audit::{AuditSink, Kind, Record};
use crate::guestlink::{Accepted, GuestSocket, Listener, VsockListener};
use crate::net::pressure::Trouble;
use crate::reason::Reason;
use crate::state::endpoint::{Endpoint, Slot};

/// How long a connection of a guest may wait for its turn when they come faster than the endpoint's rate.
const LONGEST_TURN: Duration = Duration::from_secs(1);

/// The way from one guest to the data-plane threads.
pub(super) struct Door {
    workers: Workers,
    endpoint: Arc<Endpoint>,
    audit: Arc<AuditSink>,
}

impl Door {
    pub(super) fn new(workers: &Workers, endpoint: &Arc<Endpoint>, audit: &Arc<AuditSink>) -> Self {
        Self { workers: workers.clone(), endpoint: Arc::clone(endpoint), audit: Arc::clone(audit) }
    }

    /// Counts a connection; refused, and written down, is what the caps and the rate have no room for.
    fn admit(&self) -> Option<(Slot, Duration)> {
        let slot = self.endpoint.take_connection().map_err(Reason::from);
        let admitted = slot.and_then(|slot| {
            let turn = self.endpoint.arrive_within(LONGEST_TURN).ok_or(Reason::LimitRate)?;
            Ok((slot, turn))
        });
        admitted.map_err(|reason| self.refuse(reason)).ok()
    }

    /// Hands a counted connection to a thread, as soon as few others of its endpoint are on their way there.
    async fn hand_over(&self, stream: GuestSocket, (slot, turn): (Slot, Duration)) {
        let way = self.endpoint.on_the_way().await;
        if !self.workers.guest(GuestArrival { slot, turn, way, stream }) {
            self.refuse(Reason::LimitConnections);
        }
    }

    fn refuse(&self, reason: Reason) {
        Record::open(&self.audit, Kind::Connection, "egress", &self.endpoint.spec()).deny(reason);
    }

    /// One connection of the socket after the other. While it waits, the others wait in the kernel's queue of this guest: for
    /// moments, or, when more were refused than denials may be written in a second, until the next one.
    async fn accept(self, listener: Listener) {
        let mut trouble = self.workers.pressure().accept_loop();
        loop {
            match trouble.next("a guest", || listener.accept()).await {
                Accepted::Guest(stream) => match self.admit() {
                    Some(place) => {
                        self.hand_over(stream, place).await;
                        // The next guest's acceptor has its turn.
                        tokio::task::yield_now().await;
                        continue;
                    }
                    None => drop(stream),
                },
                Accepted::WrongPeer => self.refuse(Reason::WrongPeer),
            }
            self.audit.throttle(&self.endpoint.spec().pod_uid).await;
        }
    }

    /// As [`Door::accept`], for connections that came over the socket of all guests.
    async fn forward(self: Arc<Self>, mut counted: mpsc::UnboundedReceiver<Counted>) {
        while let Some((stream, place)) = counted.recv().await {
            self.hand_over(stream, place).await;
        }
    }
}

/// The socket of one VM; removed when dropped.
pub(super) struct HybridGuest {
    socket: PathBuf,
    accepting: AbortHandle,
}

impl HybridGuest {
    /// Accepts on `listener`, within the current runtime.
    pub(super) fn listen(listener: Listener, door: Door) -> Self {
        let socket = listener.path().to_owned();
        Self { socket, accepting: tokio::spawn(door.accept(listener)).abort_handle() }
    }
}

impl Drop for HybridGuest {
    fn drop(&mut self) {
        // Here and not when the task has ended, which is later: by then the path may be the next generation's.
        let _ = std::fs::remove_file(&self.socket);
        self.accepting.abort();
    }
}

type Counted = (GuestSocket, (Slot, Duration));

/// The guests that dial by AF_VSOCK. One socket serves them all, so nobody may wait in front of it.
#[derive(Default)]
pub(super) struct ByCid(Mutex<HashMap<u32, VsockDoor>>);

impl ByCid {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, VsockDoor>> {
        // Every critical section is one call on the map: a panic elsewhere leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone)]
struct VsockDoor {
    door: Arc<Door>,
    /// Without a bound of its own: what is in it has its place under the endpoint's cap.
    counted: mpsc::UnboundedSender<Counted>,
}

/// Accepts from all vsock guests on one socket.
pub(super) async fn accept_vsock(listener: VsockListener, by_cid: Arc<ByCid>, mut trouble: Trouble) {
    loop {
        let (cid, stream) = trouble.next("vsock guests", || listener.accept()).await;
        // A CID that belongs to no endpoint is nobody: the connection is dropped.
        let Some(guest) = by_cid.lock().get(&cid).cloned() else { continue };
        if let Some(place) = guest.door.admit() {
            // Fails when the guest has just gone, and its connection with it.
            let _ = guest.counted.send((stream, place));
        }
    }
}

/// A CID in the table. Dropping it takes it out, unless a newer endpoint has it by now.
pub(super) struct VsockGuest {
    cid: u32,
    by_cid: Arc<ByCid>,
    door: Arc<Door>,
}

impl VsockGuest {
    /// Takes in what `cid` dials, within the current runtime.
    pub(super) fn enter(by_cid: &Arc<ByCid>, cid: u32, door: Door) -> Self {
        let door = Arc::new(door);
        let (counted, queue) = mpsc::unbounded_channel();
        tokio::spawn(Arc::clone(&door).forward(queue));
        by_cid.lock().insert(cid, VsockDoor { door: Arc::clone(&door), counted });
        Self { cid, by_cid: Arc::clone(by_cid), door }
    }
}

impl Drop for VsockGuest {
    fn drop(&mut self) {
        let mut by_cid = self.by_cid.lock();
        if by_cid.get(&self.cid).is_some_and(|now| Arc::ptr_eq(&now.door, &self.door)) {
            by_cid.remove(&self.cid);
        }
    }
}
