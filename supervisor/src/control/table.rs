//! The rules of the control protocol: updates and events in, actions out. No input, no output, no clock.
//!
//! ```text
//!             upsert                 DRAINING, or missing in a snapshot          task ended
//!   (nothing) ------> Live --------------------------------------> Draining ---------------> Drained
//!      ^               |  \--- newer generation --> Closing            |  removed: ends           | remove
//!      |               | remove                       | task ended     v  in (nothing)            v
//!      '---------------'- (as Draining) <-------------'- Live (newer generation)              (nothing)
//! ```
//! A refused update changes nothing. What is refused because another endpoint owns its IP or CID is tried again when that
//! endpoint is gone (K11). Sockets cannot clash: each lies in the folder of its pod.

mod conflict;
mod history;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use nova_proto::ids::PodUid;

use self::conflict::conflict;
use self::history::History;
use self::rules::{check_in_place, drained, older_generation, reject};
use super::order::{Key, Order, Rejection, Row, Update, Wanted};
use super::why::{Phase, Why};

/// What the service shall do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Begin the life of an endpoint.
    Start(Order),
    /// Change an endpoint in place.
    Update(Order),
    /// Let its connections finish, then end its life.
    Drain(Key, Why),
    /// Cut its connections, then end its life.
    Close(Key, Why),
    /// Serve nothing until a newer generation comes.
    Suspend(Key),
    /// Tell its last status once more.
    Repeat(Key),
    /// It is gone; nothing of it is left to look up.
    Forget(PodUid),
    /// Tell the source.
    Report(Verdict),
}

/// A status that no endpoint's life tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The pod uid as sent.
    pub pod: String,
    /// The generation as sent.
    pub generation: u64,
    /// `Rejected`, `Waiting` or `Drained`.
    pub phase: Phase,
    /// Why.
    pub why: Why,
    /// For people.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Live,
    /// `removed`: the source removed it, so it goes when its life ends.
    Draining {
        removed: bool,
    },
    Drained,
    Closing,
}

#[derive(Debug, Clone)]
struct Entry {
    order: Order,
    fate: Fate,
    /// The newer generation that takes its place when its life has ended.
    next: Option<Order>,
    /// The guest was lost; this generation never serves again.
    suspended: bool,
    /// A newer generation that was removed before it began: told as drained when this one has ended, because only then
    /// nothing is held.
    also: Option<Key>,
}

impl Entry {
    fn newest(&self) -> &Order {
        self.next.as_ref().unwrap_or(&self.order)
    }

    fn orders(&self) -> impl Iterator<Item = &Order> {
        std::iter::once(&self.order).chain(&self.next)
    }
}

/// All endpoints a source told of.
#[derive(Default)]
pub struct Table {
    epoch: u64,
    entries: HashMap<PodUid, Entry>,
    /// Refused because something of them is in use; in the order they came.
    waiting: Vec<Order>,
    history: History,
}

impl Table {
    /// Applies an update.
    pub fn apply(&mut self, update: Update) -> Vec<Action> {
        let mut actions = Vec::new();
        match update {
            Update::Snapshot { epoch, rows } => self.snapshot(epoch, rows, &mut actions),
            Update::Upsert(row) => self.row(*row, false, &mut actions),
            Update::Remove(key) => self.remove(&key, &mut actions),
        }
        actions
    }

    /// The life of an endpoint has ended: nothing of it is held any more.
    pub fn ended(&mut self, key: &Key) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(entry) = self.entries.get_mut(&key.pod).filter(|entry| entry.order.key() == *key) else {
            return actions;
        };
        actions.extend(entry.also.take().as_ref().map(drained));
        match (entry.next.take(), entry.fate) {
            (Some(next), _) => self.start(next, &mut actions),
            (None, Fate::Draining { removed: false } | Fate::Live) => {
                entry.fate = Fate::Drained;
                // A drained endpoint keeps its address until it is removed.
                return actions;
            }
            (None, Fate::Draining { removed: true } | Fate::Drained | Fate::Closing) => {
                self.forget(key, &mut actions);
            }
        }
        self.retry_waiting(&mut actions);
        actions
    }

    /// The guest of an endpoint is lost.
    pub fn presence_lost(&mut self, key: &Key) -> Vec<Action> {
        match self.entries.get_mut(&key.pod) {
            Some(entry) if entry.order.key() == *key && entry.fate == Fate::Live && !entry.suspended => {
                entry.suspended = true;
                vec![Action::Suspend(key.clone())]
            }
            _ => Vec::new(),
        }
    }

    /// Ends every life: the supervisor shuts down.
    pub fn drain_all(&mut self) -> Vec<Action> {
        self.waiting.clear();
        let mut actions = Vec::new();
        for entry in self.entries.values_mut() {
            entry.next = None;
            if entry.fate == Fate::Live {
                entry.fate = Fate::Draining { removed: true };
                actions.push(Action::Drain(entry.order.key(), Why::Shutdown));
            }
        }
        actions
    }

    fn snapshot(&mut self, epoch: u64, rows: Vec<Row>, actions: &mut Vec<Action>) {
        let resets = epoch > self.epoch;
        if resets {
            self.epoch = epoch;
            self.history.clear();
        }
        self.waiting.clear();
        // A row that is refused is still there: it must not drain what it failed to change.
        let present: HashSet<&str> = rows.iter().map(pod_of).collect();
        let mut missing: Vec<Key> = self
            .entries
            .iter()
            .filter(|(pod, _)| !present.contains(pod.as_str()))
            .map(|(_, entry)| entry.newest().key())
            .collect();
        missing.sort_by(|a, b| a.pod.cmp(&b.pod));
        for key in missing {
            self.remove(&key, actions);
        }
        for row in rows {
            self.row(row, resets, actions);
        }
    }

    /// `resets`: generations of the rows count, those known do not.
    fn row(&mut self, row: Row, resets: bool, actions: &mut Vec<Action>) {
        match row {
            Ok(order) => self.upsert(order, resets, actions),
            Err(rejection) => actions.push(Action::Report(rejection.into())),
        }
    }

    fn upsert(&mut self, order: Order, resets: bool, actions: &mut Vec<Action>) {
        if let Err(rejection) = self.try_upsert(&order, resets, actions) {
            let is_conflict = matches!(rejection.why, Why::IpInUse | Why::CidInUse);
            if is_conflict {
                self.waiting.retain(|waiting| waiting.spec.pod_uid != order.spec.pod_uid);
                self.waiting.push(order);
            }
            actions.push(Action::Report(rejection.into()));
        } else {
            self.waiting.retain(|waiting| waiting.spec.pod_uid != order.spec.pod_uid);
        }
    }

    fn try_upsert(&mut self, order: &Order, resets: bool, actions: &mut Vec<Action>) -> Result<(), Rejection> {
        let generation = order.spec.generation;
        let known = match self.entries.get(&order.spec.pod_uid) {
            Some(entry) => Some(entry.newest().spec.generation),
            None => self.history.check(order)?,
        };
        match known {
            Some(known) if generation < known && !resets => Err(older_generation(order, known)),
            Some(known) if generation == known && self.entries.contains_key(&order.spec.pod_uid) => {
                self.same_generation(order, actions)
            }
            _ => self.new_generation(order, actions),
        }
    }

    fn new_generation(&mut self, order: &Order, actions: &mut Vec<Action>) -> Result<(), Rejection> {
        self.check_conflict(order)?;
        match self.entries.get_mut(&order.spec.pod_uid) {
            None => self.start(order.clone(), actions),
            Some(Entry { fate: Fate::Drained, .. }) => self.start(order.clone(), actions),
            Some(entry) => {
                entry.next = Some(order.clone());
                if entry.fate != Fate::Closing {
                    entry.fate = Fate::Closing;
                    actions.push(Action::Close(entry.order.key(), Why::Superseded));
                }
            }
        }
        Ok(())
    }

    fn same_generation(&mut self, order: &Order, actions: &mut Vec<Action>) -> Result<(), Rejection> {
        let Some(entry) = self.entries.get(&order.spec.pod_uid) else { return Ok(()) };
        if entry.next.is_some() {
            // Not begun yet, so anything may change.
            self.check_conflict(order)?;
        } else {
            check_in_place(entry, order)?;
            self.check_conflict(order)?;
        }
        let Some(entry) = self.entries.get_mut(&order.spec.pod_uid) else { return Ok(()) };
        if let Some(next) = &mut entry.next {
            *next = order.clone();
            return Ok(());
        }
        if entry.fate != Fate::Live {
            actions.push(Action::Repeat(order.key()));
            return Ok(());
        }
        if entry.order == *order {
            return Ok(());
        }
        entry.order = order.clone();
        actions.push(Action::Update(order.clone()));
        if order.wanted == Wanted::Draining {
            entry.fate = Fate::Draining { removed: false };
            actions.push(Action::Drain(order.key(), Why::Ordered));
        }
        Ok(())
    }

    fn check_conflict(&self, order: &Order) -> Result<(), Rejection> {
        let others = self.entries.iter().filter(|(pod, _)| **pod != order.spec.pod_uid);
        match others.flat_map(|(_, entry)| entry.orders()).find_map(|other| conflict(order, other)) {
            Some((why, message)) => Err(reject(order, why, message)),
            None => Ok(()),
        }
    }

    fn start(&mut self, order: Order, actions: &mut Vec<Action>) {
        let key = order.key();
        if order.wanted == Wanted::Draining {
            // It was never served here, so there is nothing to drain and nothing to hold.
            self.entries.remove(&key.pod);
            actions.push(Action::Forget(key.pod.clone()));
            actions.push(drained(&key));
            return;
        }
        let entry = Entry { order: order.clone(), fate: Fate::Live, next: None, suspended: false, also: None };
        self.entries.insert(key.pod, entry);
        actions.push(Action::Start(order));
    }

    fn remove(&mut self, key: &Key, actions: &mut Vec<Action>) {
        self.waiting.retain(|order| order.spec.pod_uid != key.pod || order.spec.generation > key.generation);
        let Some(entry) = self.entries.get_mut(&key.pod) else {
            // Asked twice, or refused before: novalet must hear that nothing is held.
            actions.push(drained(key));
            return;
        };
        if key.generation < entry.newest().spec.generation {
            // Of an old generation, which ended already or is about to.
            return;
        }
        if entry.order.spec.generation < key.generation {
            entry.also = Some(key.clone());
        }
        entry.next = None;
        match entry.fate {
            Fate::Live => {
                entry.fate = Fate::Draining { removed: true };
                actions.push(Action::Drain(entry.order.key(), Why::Ordered));
            }
            Fate::Draining { .. } => entry.fate = Fate::Draining { removed: true },
            Fate::Closing => {}
            Fate::Drained => {
                let key = entry.order.key();
                actions.push(Action::Repeat(key.clone()));
                self.forget(&key, actions);
                self.retry_waiting(actions);
            }
        }
    }

    fn forget(&mut self, key: &Key, actions: &mut Vec<Action>) {
        if let Some(entry) = self.entries.remove(&key.pod) {
            actions.extend(entry.also.as_ref().map(drained));
            self.history.remember(key.clone(), entry.suspended);
            actions.push(Action::Forget(key.pod.clone()));
        }
    }

    fn retry_waiting(&mut self, actions: &mut Vec<Action>) {
        for order in std::mem::take(&mut self.waiting) {
            // Still in the way: it was told already.
            if self.try_upsert(&order, false, actions).is_err() {
                self.waiting.push(order);
            }
        }
    }
}

/// The pod of a row, as it was sent.
pub(super) fn pod_of(row: &Row) -> &str {
    match row {
        Ok(order) => order.spec.pod_uid.as_str(),
        Err(rejection) => &rejection.pod,
    }
}

impl From<Rejection> for Verdict {
    fn from(rejection: Rejection) -> Self {
        let Rejection { pod, generation, why, message } = rejection;
        Self { pod, generation, phase: why.phase(), why, message }
    }
}
