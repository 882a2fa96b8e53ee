//! The active policy: one swap, one signal.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use nova_policy::engine::Policy;
use tokio::sync::watch;

/// The bundle that decides now. Empty means: deny everything.
pub struct PolicyCell {
    live: ArcSwapOption<Policy>,
    changed: watch::Sender<u64>,
}

impl Default for PolicyCell {
    fn default() -> Self {
        Self { live: ArcSwapOption::empty(), changed: watch::Sender::new(0) }
    }
}

impl PolicyCell {
    /// The policy as of now. One load serves the verdict, the audit line and the dial of one decision.
    #[must_use]
    pub fn load(&self) -> Option<Arc<Policy>> {
        self.live.load_full()
    }

    /// As [`PolicyCell::load`], without counting in the count that all threads share: for a look on a request's path.
    #[must_use]
    pub fn peek(&self) -> Guard<Option<Arc<Policy>>> {
        self.live.load()
    }

    /// Makes `policy` the one that decides, and wakes every live connection to be decided again.
    pub fn activate(&self, policy: Option<Arc<Policy>>) {
        self.live.store(policy);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Changes whenever a policy is activated.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}
