//! The endpoint table: what supervisors have been told, and what they answered.
//!
//! Sans-io: sessions are bounded channels. A session gets a snapshot when it joins and deltas after it, with a revision
//! that only grows; a session that does not read is ended, and gets a fresh snapshot when it comes back.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nova_proto::control::endpoint_update::Op;
use nova_proto::control::{Endpoint, EndpointKey, EndpointStatus, EndpointUpdate, Hello, Phase, Snapshot};
use tokio::sync::{mpsc, watch};

/// Updates that may wait for a slow supervisor before its session is ended.
const SESSION_QUEUE: usize = 1024;

/// One supervisor instance: the slots of the shared one, or of one dedicated workload.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotKey {
    /// Workload of a dedicated instance; empty for the shared one.
    pub dedicated: String,
    /// 0 is slot A, 1 is slot B.
    pub slot: u32,
}

/// Handle of a joined session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId(u64);

/// What is known about a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotInfo {
    /// Name that the instance gave itself.
    pub instance: String,
    /// Its version.
    pub version: String,
    /// Bundle revision at the time of its hello.
    pub bundle_revision: String,
    /// Highest revision that it applied in its present session.
    pub applied: u64,
    /// Whether it is connected now.
    pub live: bool,
}

/// Answer of one slot about one endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotStatus {
    /// Who answered.
    pub slot: SlotKey,
    /// Whether that slot is connected now.
    pub live: bool,
    /// Its last answer for the generation asked for, if any.
    pub status: Option<EndpointStatus>,
}

/// The table. Cheap to share behind an `Arc`; no call waits.
#[derive(Debug)]
pub struct Table {
    inner: Mutex<Inner>,
    changed: watch::Sender<u64>,
}

#[derive(Debug)]
struct Inner {
    epoch: u64,
    revision: u64,
    endpoints: BTreeMap<String, Endpoint>,
    sessions: BTreeMap<SessionId, Session>,
    slots: BTreeMap<SlotKey, SlotInfo>,
    acks: BTreeMap<(String, SlotKey), EndpointStatus>,
    next_session: u64,
}

#[derive(Debug)]
struct Session {
    key: SlotKey,
    updates: mpsc::Sender<EndpointUpdate>,
}

impl Table {
    /// An empty table of `epoch`. A restarted agent must take a higher epoch than the one before.
    #[must_use]
    pub fn new(epoch: u64) -> Self {
        let inner = Inner {
            epoch,
            revision: 1,
            endpoints: BTreeMap::new(),
            sessions: BTreeMap::new(),
            slots: BTreeMap::new(),
            acks: BTreeMap::new(),
            next_session: 0,
        };
        Self { inner: Mutex::new(inner), changed: watch::Sender::new(0) }
    }

    /// Adds or replaces an endpoint and tells every session that may see it.
    pub fn upsert(&self, endpoint: Endpoint) {
        let mut inner = self.lock();
        let before = inner.endpoints.insert(endpoint.pod_uid.clone(), endpoint.clone());
        inner.revision += 1;
        inner.publish(|key| {
            if sees(key, &endpoint) {
                return Some(Op::Upsert(endpoint.clone()));
            }
            before.as_ref().filter(|old| sees(key, old)).map(|old| Op::Remove(key_of(old)))
        });
        drop(inner);
        self.note_change();
    }

    /// Removes an endpoint if its generation is still the one in the table; says whether it was.
    pub fn remove(&self, pod_uid: &str, generation: u64) -> bool {
        let mut inner = self.lock();
        if inner.endpoints.get(pod_uid).is_none_or(|endpoint| endpoint.generation != generation) {
            return false;
        }
        let Some(old) = inner.endpoints.remove(pod_uid) else { return false };
        inner.revision += 1;
        inner.publish(|key| sees(key, &old).then(|| Op::Remove(key_of(&old))));
        inner.acks.retain(|(uid, _), _| uid != pod_uid);
        drop(inner);
        self.note_change();
        true
    }

    /// Starts a session: the first update is the snapshot. An older session of the same slot ends.
    pub fn join(&self, hello: Hello) -> (SessionId, mpsc::Receiver<EndpointUpdate>) {
        let key = SlotKey { dedicated: hello.dedicated_workload, slot: hello.slot };
        let (updates, receiver) = mpsc::channel(SESSION_QUEUE);
        let mut inner = self.lock();
        let before = inner.live_slots(&key);
        inner.sessions.retain(|_, session| session.key != key);
        let info = SlotInfo {
            instance: hello.instance,
            version: hello.version,
            bundle_revision: hello.bundle_revision,
            applied: 0,
            live: true,
        };
        inner.slots.insert(key.clone(), info);
        inner.acks.retain(|(_, slot), _| *slot != key);
        inner.next_session += 1;
        let id = SessionId(inner.next_session);
        inner.sessions.insert(id, Session { key: key.clone(), updates: updates.clone() });
        if inner.live_slots(&key) == before {
            let _ = updates.try_send(inner.snapshot(&key));
        } else {
            inner.tell_slots(&key);
        }
        drop(inner);
        self.note_change();
        (id, receiver)
    }

    /// Ends a session. What the slot last said is kept.
    pub fn leave(&self, id: SessionId) {
        let mut inner = self.lock();
        inner.end(&[id]);
        drop(inner);
        self.note_change();
    }

    /// Notes what a session says about an endpoint. Answers about an unknown endpoint or another generation are dropped.
    pub fn acknowledge(&self, id: SessionId, status: EndpointStatus) {
        let mut inner = self.lock();
        let Some(key) = inner.sessions.get(&id).map(|session| session.key.clone()) else { return };
        let current = inner.endpoints.get(&status.pod_uid).is_some_and(|known| known.generation == status.generation);
        if current {
            inner.acks.insert((status.pod_uid.clone(), key), status);
        }
        drop(inner);
        self.note_change();
    }

    /// Notes the revision that a session applied.
    pub fn applied(&self, id: SessionId, revision: u64) {
        let mut inner = self.lock();
        let highest = inner.revision;
        if let Some(key) = inner.sessions.get(&id).map(|session| session.key.clone())
            && let Some(info) = inner.slots.get_mut(&key)
        {
            info.applied = info.applied.max(revision.min(highest));
        }
        drop(inner);
        self.note_change();
    }

    /// What each slot that may see the endpoint says about this generation of it.
    #[must_use]
    pub fn statuses(&self, pod_uid: &str, generation: u64) -> Vec<SlotStatus> {
        let inner = self.lock();
        let Some(endpoint) = inner.endpoints.get(pod_uid) else { return Vec::new() };
        let slots = inner.slots.iter().filter(|(key, _)| sees(key, endpoint));
        slots
            .map(|(key, info)| SlotStatus {
                slot: key.clone(),
                live: info.live,
                status: inner
                    .acks
                    .get(&(pod_uid.to_owned(), key.clone()))
                    .filter(|status| status.generation == generation)
                    .cloned(),
            })
            .collect()
    }

    /// Whether at least one live slot reached one of `phases`.
    #[must_use]
    pub fn any_reached(&self, pod_uid: &str, generation: u64, phases: &[Phase]) -> bool {
        self.statuses(pod_uid, generation).iter().any(|slot| slot.live && slot.is_in(phases))
    }

    /// Whether nobody holds connections of this generation any more: every slot that ever joined said DRAINED, or refused
    /// the endpoint. A slot that is away may still serve, so it counts as not drained.
    #[must_use]
    pub fn is_drained(&self, pod_uid: &str, generation: u64) -> bool {
        self.statuses(pod_uid, generation).iter().all(|slot| slot.is_in(&[Phase::Drained, Phase::Rejected]))
    }

    /// The slots seen so far.
    #[must_use]
    pub fn slots(&self) -> BTreeMap<SlotKey, SlotInfo> {
        self.lock().slots.clone()
    }

    /// Epoch and revision.
    #[must_use]
    pub fn version(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.epoch, inner.revision)
    }

    /// Wakes up after every change.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn note_change(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change under the lock is complete before anything can panic, so a poisoned table is still consistent.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn snapshot(&self, key: &SlotKey) -> EndpointUpdate {
        let endpoints = self.endpoints.values().filter(|endpoint| sees(key, endpoint)).cloned().collect();
        self.update(Op::Snapshot(Snapshot { endpoints }), key)
    }

    fn update(&self, op: Op, to: &SlotKey) -> EndpointUpdate {
        let live_slots = self.live_slots(to);
        EndpointUpdate { op: Some(op), revision: self.revision, epoch: self.epoch, live_slots }
    }

    /// How many sessions serve the same endpoints as `key`.
    fn live_slots(&self, key: &SlotKey) -> u32 {
        let all = self.sessions.values().filter(|session| session.key.dedicated == key.dedicated).count();
        u32::try_from(all).unwrap_or(u32::MAX)
    }

    /// Tells everybody who serves the same endpoints as `key` how many they are now, with a snapshot: it changes nothing else.
    fn tell_slots(&mut self, key: &SlotKey) {
        self.revision += 1;
        let same = self.sessions.iter().filter(|(_, session)| session.key.dedicated == key.dedicated);
        let ended: Vec<SessionId> = same
            .filter(|(_, session)| session.updates.try_send(self.snapshot(&session.key)).is_err())
            .map(|(id, _)| *id)
            .collect();
        self.end(&ended);
    }

    /// Ends sessions, and tells those who are left.
    fn end(&mut self, sessions: &[SessionId]) {
        for id in sessions {
            let Some(session) = self.sessions.remove(id) else { continue };
            if let Some(info) = self.slots.get_mut(&session.key) {
                info.live = false;
            }
            self.tell_slots(&session.key);
        }
    }

    /// Sends each session its own view of one change and ends the sessions whose queue is full.
    fn publish(&mut self, op_for: impl Fn(&SlotKey) -> Option<Op>) {
        let ended: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, session)| {
                op_for(&session.key).is_some_and(|op| session.updates.try_send(self.update(op, &session.key)).is_err())
            })
            .map(|(id, _)| *id)
            .collect();
        self.end(&ended);
    }
}

impl SlotStatus {
    fn is_in(&self, phases: &[Phase]) -> bool {
        self.status.as_ref().is_some_and(|status| phases.contains(&status.phase()))
    }
}

/// A dedicated instance sees its own workload and nothing else; the shared one never sees dedicated workloads (K4).
fn sees(key: &SlotKey, endpoint: &Endpoint) -> bool {
    if endpoint.isolation == "dedicated" { key.dedicated == endpoint.workload_id } else { key.dedicated.is_empty() }
}

fn key_of(endpoint: &Endpoint) -> EndpointKey {
    EndpointKey { pod_uid: endpoint.pod_uid.clone(), generation: endpoint.generation }
}

#[cfg(test)]
mod tests;
