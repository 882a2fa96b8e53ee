//! What an endpoint knows of the destinations that it dials: which of them do not answer, and who is finding out.
//!
//! ```text
//! unknown -- one dial at a time --> alive: everybody dials     for 30 s after the last dial that went well
//!                              \--> dead: everybody is refused for 1 s, with the reason of the dial that failed
//! ```
//! So a storm of dials to a host that is gone sends one connection attempt at a time, and one that is slow holds up nobody
//! who goes elsewhere. All threads share it; its locks are the endpoint's own and held for a look.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::reason::Reason;

/// How long a failed dial speaks for others: long enough to break a storm, short enough for a server that restarts.
const DEAD: Duration = Duration::from_secs(1);
/// How long a dial that went well does.
const ALIVE: Duration = Duration::from_secs(30);
/// Destinations that are remembered although nothing of them is in use. Those in use are as many as the endpoint has
/// connections, which are counted elsewhere.
const IDLE_MOST: usize = 256;

/// A failed dial: the reason, which check failed, and the address that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DialFailure {
    /// For the record and the caller.
    pub reason: Reason,
    /// For the record alone; may be empty.
    pub detail: &'static str,
    /// The address that was refused, or tried last.
    pub addr: Option<SocketAddr>,
}

/// The destinations of one endpoint.
#[derive(Default)]
pub struct Destinations {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    by_key: HashMap<String, Arc<Destination>>,
    /// How many there may be before somebody looks for those that are not needed.
    room: usize,
}

struct Destination {
    turn: Arc<Semaphore>,
    state: Mutex<State>,
    open: AtomicUsize,
}

#[derive(Clone, Copy)]
enum State {
    Unknown,
    Alive(Instant),
    Dead(Instant, DialFailure),
}

/// A dial that may start. Dropped without a word it says nothing about the destination.
pub struct Trial {
    destination: Arc<Destination>,
    turn: Option<OwnedSemaphorePermit>,
}

impl Destinations {
    /// Waits for the turn to dial what `key` names; at once where the destination is known to answer.
    ///
    /// # Errors
    /// The failure of a dial of a moment ago.
    pub async fn trial(&self, key: &str) -> Result<Trial, DialFailure> {
        let destination = self.of(key);
        let since = Instant::now();
        if let Some(known) = destination.verdict(since) {
            return known.map(|()| Trial { destination, turn: None });
        }
        // Never closed, so a turn always comes.
        let turn = Arc::clone(&destination.turn).acquire_owned().await.ok();
        match destination.verdict(since) {
            Some(Err(failure)) => Err(failure),
            Some(Ok(())) => Ok(Trial { destination, turn: None }),
            None => Ok(Trial { destination, turn }),
        }
    }

    fn of(&self, key: &str) -> Arc<Destination> {
        let mut known = lock(&self.known);
        if let Some(destination) = known.by_key.get(key) {
            return Arc::clone(destination);
        }
        if known.by_key.len() >= known.room.max(IDLE_MOST) {
            known.make_room();
        }
        // Always shared: what it counts and knows must hold for whoever comes next.
        let destination = Arc::new(Destination::default());
        known.by_key.insert(key.to_owned(), Arc::clone(&destination));
        destination
    }
}

impl Known {
    /// Forgets destinations of which nothing is in use: those of which nothing is known, and of the others the half that was
    /// heard of longest ago. The next look is due when there are twice as many again.
    fn make_room(&mut self) {
        let is_in_use = |destination: &Arc<Destination>| Arc::strong_count(destination) > 1;
        self.by_key.retain(|_, destination| is_in_use(destination) || destination.is_worth_keeping());
        let idle = self.by_key.values().filter(|destination| !is_in_use(destination));
        let mut heard: Vec<_> = idle.map(|destination| destination.heard_of()).collect();
        if heard.len() > IDLE_MOST / 2 {
            heard.sort_unstable();
            let half = heard[heard.len() / 2];
            self.by_key.retain(|_, destination| is_in_use(destination) || destination.heard_of() > half);
        }
        self.room = self.by_key.len() * 2;
    }
}

impl Default for Destination {
    fn default() -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), state: Mutex::new(State::Unknown), open: AtomicUsize::new(0) }
    }
}

impl Destination {
    /// What is known to somebody who wants to dial and has waited `since` then.
    fn verdict(&self, since: Instant) -> Option<Result<(), DialFailure>> {
        match *lock(&self.state) {
            State::Alive(at) if at.elapsed() < ALIVE => Some(Ok(())),
            // A dial of meanwhile was this one's as well, however long ago it ended.
            State::Dead(at, failure) if at.elapsed() < DEAD || at > since => Some(Err(failure)),
            State::Unknown | State::Alive(_) | State::Dead(..) => None,
        }
    }

    /// When something was heard of it, if ever.
    fn heard_of(&self) -> Option<Instant> {
        match *lock(&self.state) {
            State::Unknown => None,
            State::Alive(at) | State::Dead(at, _) => Some(at),
        }
    }

    fn is_worth_keeping(&self) -> bool {
        match *lock(&self.state) {
            State::Unknown => false,
            State::Alive(at) => at.elapsed() < ALIVE,
            State::Dead(at, _) => at.elapsed() < DEAD,
        }
    }
}

/// A connection's place among those to its destination; given back when dropped.
pub struct Place(Arc<Destination>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Trial {
    /// A place for one more connection, unless there are as many as `cap`.
    #[must_use]
    pub fn place(&self, cap: usize) -> Option<Place> {
        let one_more = |open: usize| (open < cap).then_some(open + 1);
        let taken = self.destination.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.is_ok().then(|| Place(Arc::clone(&self.destination)))
    }

    /// The destination answers: whoever waits may dial as well.
    pub fn answered(&mut self) {
        *lock(&self.destination.state) = State::Alive(Instant::now());
        self.turn = None;
    }

    /// It does not: whoever waits need not try.
    pub fn failed(&mut self, failure: DialFailure) {
        *lock(&self.destination.state) = State::Dead(Instant::now(), failure);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in a critical section can panic half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const GONE: DialFailure = DialFailure { reason: Reason::UpstreamRefused, detail: "", addr: None };

    /// What is ready now.
    fn now<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    fn at_once(destinations: &Destinations, key: &str) -> Option<Result<Trial, DialFailure>> {
        now(std::pin::pin!(destinations.trial(key)))
    }

    // covers: D12a
    #[test]
    fn one_dial_finds_out_for_all_that_a_destination_is_dead() {
        let destinations = Destinations::default();
        let mut first = at_once(&destinations, "a:1").expect("nobody else dials").expect("nothing is known");
        let mut others: Vec<_> = (0..50).map(|_| Box::pin(destinations.trial("a:1"))).collect();
        assert!(others.iter_mut().all(|other| now(other.as_mut()).is_none()), "they wait");
        assert!(at_once(&destinations, "b:1").is_some_and(|trial| trial.is_ok()), "another destination does not");
        first.failed(GONE);
        drop(first);
        for other in &mut others {
            assert_eq!(now(other.as_mut()).expect("its turn").err(), Some(GONE));
        }
        assert_eq!(at_once(&destinations, "a:1").expect("known").err(), Some(GONE));
    }

    // covers: D12a
    #[test]
    fn everybody_dials_a_destination_that_answers() {
        let destinations = Destinations::default();
        let mut first = at_once(&destinations, "a:1").expect("nobody else dials").expect("nothing is known");
        let mut other = Box::pin(destinations.trial("a:1"));
        assert!(now(other.as_mut()).is_none());
        first.answered();
        let held: Vec<_> = (0..50).map(|_| at_once(&destinations, "a:1").expect("at once").expect("alive")).collect();
        assert!(now(other.as_mut()).is_some_and(|trial| trial.is_ok()));
        assert_eq!(held.len(), 50);
    }

    // covers: D12a
    #[test]
    fn a_dial_that_is_given_up_says_nothing_and_the_next_one_has_its_turn() {
        let destinations = Destinations::default();
        let first = at_once(&destinations, "a:1").expect("nobody else dials").expect("nothing is known");
        let mut other = Box::pin(destinations.trial("a:1"));
        assert!(now(other.as_mut()).is_none());
        drop(first);
        assert!(now(other.as_mut()).is_some_and(|trial| trial.is_ok_and(|trial| trial.turn.is_some())));
    }

    // covers: D12c
    #[test]
    fn a_destination_has_as_many_places_as_the_cap_and_gets_them_back() {
        let destinations = Destinations::default();
        let trial = |key| at_once(&destinations, key).expect("nobody else dials").expect("nothing is known");
        let held: Vec<_> = (0..3).map(|_| trial("a:1").place(3).expect("within the cap")).collect();
        assert!(trial("a:1").place(3).is_none());
        assert!(trial("b:1").place(3).is_some(), "another destination");
        drop(held);
        assert!(trial("a:1").place(3).is_some());
    }

    /// Touches this many destinations that answer, one after the other.
    fn touch(destinations: &Destinations, names: std::ops::Range<usize>) {
        for n in names {
            let mut trial = at_once(destinations, &format!("h:{n}")).expect("nobody else dials").expect("not dead");
            trial.answered();
        }
    }

    // covers: D12a
    #[test]
    fn what_is_remembered_has_a_bound_and_a_full_memory_refuses_nobody() {
        let destinations = Destinations::default();
        let held: Vec<_> = (0..4 * IDLE_MOST).map(|n| at_once(&destinations, &format!("held:{n}"))).collect();
        assert!(held.iter().all(|trial| matches!(trial, Some(Ok(_)))));
        assert_eq!(lock(&destinations.known).by_key.len(), 4 * IDLE_MOST, "all in use");
        drop(held);
        touch(&destinations, 0..20 * IDLE_MOST);
        let known = lock(&destinations.known).by_key.len();
        assert!(known <= IDLE_MOST, "{known}");
    }

    // covers: D12a, D12c
    #[test]
    fn however_many_destinations_are_touched_what_is_in_use_keeps_its_count_and_a_new_one_has_its_own() {
        let destinations = Destinations::default();
        let trial = |key| at_once(&destinations, key).expect("nobody else dials").expect("not dead");
        let held: Vec<_> = (0..3).map(|_| trial("a:1").place(3).expect("within the cap")).collect();
        touch(&destinations, 0..10 * IDLE_MOST);
        assert!(trial("a:1").place(3).is_none(), "as many as before");
        let first = trial("new:1");
        assert!(at_once(&destinations, "new:1").is_none(), "one dial at a time finds out");
        drop((first, held));
        // One that has just failed is remembered, the ones of long before are not.
        trial("dead:1").failed(GONE);
        touch(&destinations, 0..IDLE_MOST / 4);
        assert_eq!(at_once(&destinations, "dead:1").expect("known").err(), Some(GONE));
    }
}
