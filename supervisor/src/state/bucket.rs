//! A token bucket that all threads share without a lock: one atomic number, moved once per take.
//!
//! The number is when the bucket will be full again. Whoever takes moves it on by the cost and is told how long to wait
//! until the bucket would have held that much; so takers queue in the order of their takes, each behind what was taken
//! before it, and nobody is refused. A full bucket holds what its rate gives in one second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SECOND: u64 = 1_000_000_000;

/// A bucket. Its rate comes with each take, so that it may change at any time.
#[derive(Debug)]
pub(super) struct Bucket {
    origin: Instant,
    full_at: AtomicU64,
}

impl Default for Bucket {
    fn default() -> Self {
        Self { origin: Instant::now(), full_at: AtomicU64::new(0) }
    }
}

impl Bucket {
    /// Takes `amount` at `rate` a second and says how long to wait before it may be used.
    pub(super) fn take(&self, amount: u64, rate: u64) -> Duration {
        self.take_at(self.now(), amount, rate, u64::MAX).unwrap_or_default()
    }

    /// As [`Bucket::take`], unless the wait would be longer than `longest`: then nothing is taken.
    pub(super) fn take_within(&self, amount: u64, rate: u64, longest: Duration) -> Option<Duration> {
        self.take_at(self.now(), amount, rate, nanos(longest))
    }

    /// What was taken is not used.
    pub(super) fn give_back(&self, amount: u64, rate: u64) {
        let cost = cost(amount, rate);
        // Nothing else fails it, and what is less than nothing counts as nothing at the next take.
        let _ = self
            .full_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| Some(full_at.saturating_sub(cost)));
    }

    fn take_at(&self, now: u64, amount: u64, rate: u64, longest: u64) -> Option<Duration> {
        let cost = cost(amount, rate);
        let mut full_at = self.full_at.load(Ordering::Relaxed);
        loop {
            let next = full_at.max(now).saturating_add(cost);
            let wait = next.saturating_sub(SECOND).saturating_sub(now);
            if wait > longest {
                return None;
            }
            match self.full_at.compare_exchange_weak(full_at, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(Duration::from_nanos(wait)),
                Err(moved) => full_at = moved,
            }
        }
    }

    fn now(&self) -> u64 {
        nanos(self.origin.elapsed())
    }
}

fn cost(amount: u64, rate: u64) -> u64 {
    let cost = u128::from(amount) * u128::from(SECOND) / u128::from(rate.max(1));
    u64::try_from(cost).unwrap_or(u64::MAX)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Duration = Duration::ZERO;

    fn take(bucket: &Bucket, at_ms: u64, amount: u64, rate: u64) -> Duration {
        bucket.take_at(at_ms * 1_000_000, amount, rate, u64::MAX).expect("any wait is fine")
    }

    // covers: C9b
    #[test]
    fn a_seconds_worth_passes_at_once_and_one_more_waits_for_its_turn() {
        let bucket = Bucket::default();
        for _ in 0..10 {
            assert_eq!(take(&bucket, 0, 1, 10), NONE);
        }
        assert_eq!(take(&bucket, 0, 1, 10), Duration::from_millis(100));
        assert_eq!(take(&bucket, 0, 1, 10), Duration::from_millis(200), "behind the one before");
        assert_eq!(take(&bucket, 1_000, 1, 10), NONE, "after a second there is room again");
    }

    // covers: C9b
    #[test]
    fn what_is_not_taken_is_lost_after_a_second() {
        let bucket = Bucket::default();
        assert_eq!(take(&bucket, 60_000, 1000, 1000), NONE);
        assert_eq!(take(&bucket, 60_000, 500, 1000), Duration::from_millis(500));
    }

    // covers: C9b
    #[test]
    fn a_take_that_would_wait_too_long_takes_nothing() {
        let bucket = Bucket::default();
        assert_eq!(bucket.take_at(0, 10, 10, 0), Some(NONE));
        assert_eq!(bucket.take_at(0, 1, 10, 99_999_999), None);
        assert_eq!(bucket.take_at(0, 1, 10, 100_000_000), Some(Duration::from_millis(100)));
    }

    // covers: C9b
    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let bucket = Bucket::default();
        assert_eq!(bucket.take_at(0, 10, 10, 0), Some(NONE));
        bucket.give_back(1, 10);
        assert_eq!(bucket.take_at(0, 1, 10, 0), Some(NONE));
        assert_eq!(bucket.take_at(0, 1, 10, 0), None);
    }

    // covers: C9b
    #[test]
    fn threads_get_together_what_the_rate_gives() {
        let bucket = Bucket::default();
        let last = std::thread::scope(|scope| {
            let takers: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..500).map(|_| take(&bucket, 0, 1, 100)).max())).collect();
            takers.into_iter().filter_map(|taker| taker.join().expect("no panic")).max()
        });
        // 2,000 at 100 a second: the first 100 at once, the last one 19 s later.
        assert_eq!(last, Some(Duration::from_secs(19)));
    }

    #[test]
    fn huge_amounts_and_no_rate_do_not_overflow() {
        let bucket = Bucket::default();
        let wait = take(&bucket, 0, u64::MAX, 0);
        assert!(wait > Duration::from_secs(1_000_000));
        assert!(take(&bucket, 0, u64::MAX, 1) >= wait);
    }
}
