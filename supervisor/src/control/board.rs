//! What novalet has yet to be told. Bounded however long novalet is away and however often an endpoint changes its mind.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::why::{Phase, Why};

/// Statuses that may wait for one endpoint; the oldest goes first.
const MAX_PER_KEY: usize = 16;
/// Statuses that may wait in all: reached only by a source that invents pods.
const MAX_ALL: usize = 65_536;

/// One acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Pod uid as the source sent it.
    pub pod: String,
    /// Its generation.
    pub generation: u64,
    /// How far it is.
    pub phase: Phase,
    /// Why.
    pub why: Why,
    /// For people.
    pub message: String,
    /// Connections open now, or cut at the end of a drain.
    pub open_connections: u32,
}

impl Status {
    fn same_endpoint(&self, other: &Self) -> bool {
        self.generation == other.generation && self.pod == other.pod
    }
}

/// The statuses that wait. Statuses of one endpoint keep their order; a second status of the same phase replaces the one
/// that waits, and is held back for a moment after the one before.
pub struct Board {
    gap: Duration,
    inner: Mutex<Inner>,
    news: Notify,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<Status>,
    /// What was last taken per pod, for the gap between statuses of one phase.
    last: HashMap<String, (u64, Phase, Instant)>,
}

impl Board {
    /// A board that lets `gap` pass between two statuses of one phase.
    #[must_use]
    pub fn new(gap: Duration) -> Self {
        Self { gap, inner: Mutex::default(), news: Notify::new() }
    }

    /// Adds a status.
    pub fn push(&self, status: Status) {
        let mut inner = self.lock();
        let last = inner.waiting.iter().rposition(|waiting| waiting.same_endpoint(&status));
        match last.map(|at| (at, inner.waiting[at].phase == status.phase)) {
            Some((at, true)) => inner.waiting[at] = status,
            Some((at, false)) if inner.is_held(at, self.gap) => {
                // Its phase is known already, and the new one must not wait for it.
                inner.waiting.remove(at);
                inner.waiting.push_back(status);
            }
            _ => {
                make_room(&mut inner.waiting, &status);
                inner.waiting.push_back(status);
            }
        }
        drop(inner);
        self.news.notify_one();
    }

    /// Forgets what waits, because all is about to be told again; only ends are kept, since nobody can tell them again.
    pub fn restart(&self) {
        let mut inner = self.lock();
        inner.waiting.retain(|status| status.phase == Phase::Drained);
        inner.last.clear();
    }

    /// The next status that is due.
    pub async fn next(&self) -> Status {
        loop {
            let wait = match self.take() {
                Ok(status) => return status,
                Err(wait) => wait,
            };
            let news = self.news.notified();
            match wait {
                Some(until) => tokio::select! { () = news => {} () = tokio::time::sleep_until(until) => {} },
                None => news.await,
            }
        }
    }

    /// A status that is due, or when the first one will be.
    fn take(&self) -> Result<Status, Option<Instant>> {
        let mut inner = self.lock();
        let mut soonest: Option<(Instant, usize)> = None;
        let mut seen = HashSet::new();
        for (at, status) in inner.waiting.iter().enumerate() {
            // Statuses of one endpoint keep their order.
            if !seen.insert((&status.pod, status.generation)) {
                continue;
            }
            let due = inner.due(status, self.gap);
            if soonest.is_none_or(|(other, _)| due < other) {
                soonest = Some((due, at));
            }
            if due <= Instant::now() {
                break;
            }
        }
        let Some((due, at)) = soonest else { return Err(None) };
        if due > Instant::now() {
            return Err(Some(due));
        }
        let Some(status) = inner.waiting.remove(at) else { return Err(None) };
        if status.phase == Phase::Drained {
            inner.last.remove(&status.pod);
        } else {
            inner.last.insert(status.pod.clone(), (status.generation, status.phase, Instant::now()));
        }
        Ok(status)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// When a status may be told: at once, unless one of its phase was told a moment ago.
    fn due(&self, status: &Status, gap: Duration) -> Instant {
        match self.last.get(&status.pod) {
            Some((generation, phase, at)) if *generation == status.generation && *phase == status.phase => *at + gap,
            _ => Instant::now(),
        }
    }

    fn is_held(&self, at: usize, gap: Duration) -> bool {
        self.waiting.get(at).is_some_and(|status| self.due(status, gap) > Instant::now())
    }
}

fn make_room(waiting: &mut VecDeque<Status>, status: &Status) {
    let of_this = waiting.iter().filter(|other| other.same_endpoint(status)).count();
    if of_this >= MAX_PER_KEY
        && let Some(oldest) = waiting.iter().position(|other| other.same_endpoint(status))
    {
        waiting.remove(oldest);
    }
    if waiting.len() >= MAX_ALL {
        waiting.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(pod: &str, phase: Phase, message: &str) -> Status {
        Status { pod: pod.into(), generation: 1, phase, why: Why::Fine, message: message.into(), open_connections: 0 }
    }

    fn drain(board: &Board) -> Vec<(String, Phase, String)> {
        std::iter::from_fn(|| board.take().ok()).map(|s| (s.pod, s.phase, s.message)).collect()
    }

    #[test]
    fn repeats_of_one_phase_collapse_to_the_last() {
        let board = Board::new(Duration::from_secs(60));
        for message in ["1", "2", "3"] {
            board.push(status("a", Phase::Waiting, message));
        }
        assert_eq!(drain(&board), [("a".into(), Phase::Waiting, "3".into())]);
        board.push(status("a", Phase::Waiting, "4"));
        assert!(drain(&board).is_empty(), "held back for the gap");
        board.push(status("b", Phase::Waiting, "1"));
        assert_eq!(drain(&board), [("b".into(), Phase::Waiting, "1".into())], "another endpoint is not held");
    }

    #[test]
    fn a_change_of_phase_is_told_at_once_but_not_before_what_came_earlier() {
        let board = Board::new(Duration::from_millis(40));
        board.push(status("a", Phase::Waiting, "1"));
        assert_eq!(drain(&board).len(), 1);
        board.push(status("a", Phase::SvidReady, "2"));
        board.push(status("a", Phase::Healthy, "3"));
        let phases: Vec<_> = drain(&board).into_iter().map(|(_, phase, _)| phase).collect();
        assert_eq!(phases, [Phase::SvidReady, Phase::Healthy]);
    }

    #[test]
    fn a_change_of_phase_does_not_wait_for_a_repeat_that_is_held_back() {
        let board = Board::new(Duration::from_secs(60));
        board.push(status("a", Phase::Waiting, "1"));
        assert_eq!(drain(&board).len(), 1);
        board.push(status("a", Phase::Waiting, "2"));
        board.push(status("a", Phase::SvidReady, "3"));
        assert_eq!(drain(&board), [("a".into(), Phase::SvidReady, "3".into())]);
    }

    #[test]
    fn a_flapping_endpoint_cannot_fill_memory() {
        let board = Board::new(Duration::ZERO);
        for n in 0..10_000 {
            let phase = if n % 2 == 0 { Phase::Serving } else { Phase::Unhealthy };
            board.push(status("a", phase, &n.to_string()));
        }
        let told = drain(&board);
        assert_eq!(told.len(), MAX_PER_KEY);
        assert_eq!(told.last().map(|(_, _, message)| message.as_str()), Some("9999"));
    }

    #[test]
    fn a_restart_keeps_only_ends() {
        let board = Board::new(Duration::ZERO);
        board.push(status("a", Phase::Serving, ""));
        board.push(status("b", Phase::Drained, ""));
        board.restart();
        assert_eq!(drain(&board), [("b".into(), Phase::Drained, String::new())]);
    }
}
