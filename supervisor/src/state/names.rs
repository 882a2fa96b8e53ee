//! The names that an endpoint has resolved, and how many more it may ask for. Each endpoint has its own, so that none pushes
//! out another's or uses up its turns; all threads share it under one lock, taken once per dial.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::bucket::Bucket;

/// Names that are remembered. One more pushes out the one that ends first.
const MOST: usize = 256;
/// However long a server says: a name that moved is followed after this long.
const LONGEST: Duration = Duration::from_mins(5);

/// The names of one endpoint.
#[derive(Default)]
pub struct Names {
    known: Mutex<HashMap<Arc<str>, Known>>,
    questions: Bucket,
}

/// What a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its addresses.
    pub addresses: Arc<[IpAddr]>,
    /// The name that these belong to, when aliases (CNAME) lead to another one.
    pub canonical: Option<Arc<str>>,
}

struct Known {
    found: Found,
    until: Instant,
}

impl Names {
    /// What a name leads to, while that is good.
    #[must_use]
    pub fn known(&self, name: &str) -> Option<Found> {
        self.known_at(name, Instant::now())
    }

    /// Remembers an answer for as long as its server says.
    pub fn keep(&self, name: &str, found: &Found, ttl: Duration) {
        self.keep_at(name, found, ttl, Instant::now());
    }

    /// Whether a question may be asked now, at so many a second.
    pub(super) fn may_ask(&self, rate: u64) -> bool {
        self.questions.take_within(1, rate, Duration::ZERO).is_some()
    }

    fn known_at(&self, name: &str, now: Instant) -> Option<Found> {
        let known = self.lock();
        known.get(name).filter(|known| now < known.until).map(|known| known.found.clone())
    }

    fn keep_at(&self, name: &str, found: &Found, ttl: Duration, now: Instant) {
        if ttl.is_zero() {
            return;
        }
        let mut known = self.lock();
        if known.len() >= MOST && !known.contains_key(name) {
            known.retain(|_, known| now < known.until);
            let first = known.iter().min_by_key(|(_, known)| known.until).map(|(name, _)| Arc::clone(name));
            if let Some(first) = first.filter(|_| known.len() >= MOST) {
                known.remove(&first);
            }
        }
        known.insert(name.into(), Known { found: found.clone(), until: now + ttl.min(LONGEST) });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Known>> {
        // Nothing in a critical section can panic half-way.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn one() -> Found {
        Found { addresses: Arc::new(["1.1.1.1".parse().expect("an address")]), canonical: None }
    }

    // covers: D7.17
    #[test]
    fn an_answer_is_good_for_as_long_as_its_server_says_and_five_minutes_at_most() {
        let (names, now) = (Names::default(), Instant::now());
        names.keep_at("none.test", &one(), Duration::ZERO, now);
        names.keep_at("short.test", &one(), SECOND, now);
        names.keep_at("long.test", &one(), SECOND * 86_400, now);
        let known = |name, after| names.known_at(name, now + after).is_some();
        assert!(!known("none.test", Duration::ZERO), "a TTL of zero is for one dial");
        assert!(known("short.test", SECOND / 2) && !known("short.test", SECOND));
        assert!(known("long.test", SECOND * 299) && !known("long.test", SECOND * 300));
    }

    // covers: D7e
    #[test]
    fn names_are_bounded_and_the_one_that_ends_first_goes() {
        let (names, now) = (Names::default(), Instant::now());
        for n in 0..MOST {
            names.keep_at(
                &format!("{n}.test"),
                &one(),
                SECOND * 10 + SECOND * u32::try_from(n % 200).expect("small"),
                now,
            );
        }
        names.keep_at("one-more.test", &one(), SECOND, now);
        assert_eq!(names.lock().len(), MOST);
        assert!(names.known_at("one-more.test", now).is_some());
        assert_eq!((0..MOST).filter(|n| names.known_at(&format!("{n}.test"), now).is_none()).count(), 1);
    }

    // covers: D7d
    #[test]
    fn questions_have_a_budget_that_fills_up_again() {
        let names = Names::default();
        assert_eq!((0..100).filter(|_| names.may_ask(10)).count(), 10);
    }
}
