//! Connections of an endpoint between accept and the task that serves them.
//!
//! What is accepted faster than it is served would queue where no limit counts it, and in front of everybody else's tasks. So
//! only a few of an endpoint's connections are on their way at a time, and the others wait in the kernel's queue of the
//! socket that they came to.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::bucket::Bucket;

/// Connections of an endpoint that may be on their way at a time, on all threads together: enough that no thread waits for
/// the acceptor, and few enough that another endpoint's task has its turn after a moment.
const ON_THE_WAY: usize = 4;

/// How the connections of one endpoint arrive.
pub(super) struct Arrivals {
    rate: Bucket,
    on_the_way: Arc<Semaphore>,
}

impl Default for Arrivals {
    fn default() -> Self {
        Self { rate: Bucket::default(), on_the_way: Arc::new(Semaphore::new(ON_THE_WAY)) }
    }
}

impl Arrivals {
    /// One more at `rate` a second, 0: as they come; gives the wait for its turn, and `None` when that is longer than
    /// `longest`.
    pub(super) fn take(&self, rate: u64, longest: Duration) -> Option<Duration> {
        if rate == 0 { Some(Duration::ZERO) } else { self.rate.take_within(1, rate, longest) }
    }

    /// One that was taken turned out not to count.
    pub(super) fn give_back(&self, rate: u64) {
        if rate != 0 {
            self.rate.give_back(1, rate);
        }
    }

    /// Waits until one more may be on its way.
    pub(super) async fn on_the_way(&self) -> OnTheWay {
        // Nobody closes it: there is always a permit, sooner or later.
        OnTheWay(Arc::clone(&self.on_the_way).acquire_owned().await.ok())
    }
}

/// A connection that was accepted and has no task yet that has begun.
#[must_use]
pub struct OnTheWay(#[allow(dead_code, reason = "held for its Drop")] Option<OwnedSemaphorePermit>);

impl OnTheWay {
    /// Runs the task of the connection, which has arrived as soon as that waits for something.
    pub async fn arrive(self, task: impl Future<Output = ()>) {
        let mut task = std::pin::pin!(task);
        let begun = futures_util::poll!(task.as_mut());
        drop(self);
        if begun.is_pending() {
            task.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    // covers: A12b, D17a
    #[tokio::test]
    async fn only_a_few_connections_are_on_their_way_and_one_that_begins_makes_room() {
        let arrivals = Arrivals::default();
        let mut all = Vec::new();
        while let Some(one) = arrivals.on_the_way().now_or_never() {
            all.push(one);
        }
        assert_eq!(all.len(), ON_THE_WAY);
        let serving = all.remove(0).arrive(std::future::pending());
        assert!(arrivals.on_the_way().now_or_never().is_none(), "nothing of it ran yet");
        let mut serving = std::pin::pin!(serving);
        assert!(serving.as_mut().now_or_never().is_none());
        assert!(arrivals.on_the_way().now_or_never().is_some(), "it waits for something");
    }
}
