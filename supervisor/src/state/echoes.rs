//! How many pings of an endpoint are on their way, and how many each rule still allows in this second.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::bucket::Bucket;

/// Pings of one endpoint that wait for their answer at once, each with a descriptor of its own.
pub const ECHOES_MAX: usize = 64;
/// Rules that are remembered. Old bundles leave theirs behind; when there are too many, all start with a full second again.
const RULES_MAX: usize = 1024;

/// Of one endpoint, shared by all threads. The lock is taken once per ping and never held while anything is awaited.
#[derive(Debug, Default)]
pub(super) struct Echoes {
    open: AtomicUsize,
    rules: Mutex<HashMap<Box<str>, Bucket>>,
}

impl Echoes {
    /// A place for a ping that `rule` allows `rate` times a second. None: there are too many, or they come too fast.
    pub(super) fn take(self: &Arc<Self>, rule: &str, rate: u64) -> Option<EchoPlace> {
        let one_more = |open: usize| (open < ECHOES_MAX).then_some(open + 1);
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        // Given back when dropped, so also when the rule says no.
        let place = EchoPlace { echoes: Arc::clone(self) };
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if rules.len() >= RULES_MAX && !rules.contains_key(rule) {
            rules.clear();
        }
        let bucket = rules.entry(rule.into()).or_default();
        bucket.take_within(1, rate, Duration::ZERO).map(|_| place)
    }
}

/// A ping's place; given back when dropped.
pub struct EchoPlace {
    echoes: Arc<Echoes>,
}

impl Drop for EchoPlace {
    fn drop(&mut self) {
        self.echoes.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: D10f
    #[test]
    fn a_rules_second_is_its_own_and_a_refused_ping_keeps_no_place() {
        let echoes = Arc::<Echoes>::default();
        for _ in 0..5 {
            assert!(echoes.take("slow", 5).is_some());
        }
        assert!(echoes.take("slow", 5).is_none() && echoes.take("other", 5).is_some());
        assert_eq!(echoes.open.load(Ordering::Relaxed), 0);
    }

    // covers: D10f
    #[test]
    fn pings_on_their_way_are_bounded_whatever_rules_allow() {
        let echoes = Arc::<Echoes>::default();
        let places: Vec<_> = std::iter::from_fn(|| echoes.take("fast", 1000)).collect();
        assert_eq!(places.len(), ECHOES_MAX);
        drop(places);
        assert!(echoes.take("fast", 1000).is_some());
    }

    // covers: D10f
    #[test]
    fn rules_that_come_and_go_take_no_memory_for_ever() {
        let echoes = Arc::<Echoes>::default();
        for rule in 0..3 * RULES_MAX {
            assert!(echoes.take(&rule.to_string(), 1).is_some());
        }
        assert!(echoes.rules.lock().expect("no panic").len() <= RULES_MAX);
    }
}
