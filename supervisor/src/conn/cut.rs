//! When a connection must end before its peers say so: its endpoint closes, or the policy changed.

use tokio::sync::watch;

use crate::state::endpoint::{Endpoint, Stage};
use crate::state::policy::PolicyCell;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Another policy is active: decide again.
    PolicyChanged,
    /// Finish what is open, take nothing new.
    Draining,
    /// End now.
    Closed,
}

/// Watches an endpoint's stage and the policy for one connection.
pub struct Cut {
    stage: watch::Receiver<Stage>,
    policy: watch::Receiver<u64>,
    last: Stage,
}

impl Cut {
    /// Changes from now on count.
    #[must_use]
    pub fn watch(endpoint: &Endpoint, policy: &PolicyCell) -> Self {
        let stage = endpoint.watch_stage();
        let last = *stage.borrow();
        Self { stage, policy: policy.watch(), last }
    }

    /// The next event. Cancel-safe.
    pub async fn next(&mut self) -> Event {
        loop {
            let now = *self.stage.borrow_and_update();
            if now != self.last {
                self.last = now;
                match now {
                    Stage::Draining => return Event::Draining,
                    // A suspended endpoint's guest is gone: nothing that is open leads anywhere.
                    Stage::Closed | Stage::Waiting => return Event::Closed,
                    Stage::EgressOnly | Stage::Serving => {}
                }
            }
            tokio::select! {
                biased;
                changed = self.stage.changed() => if changed.is_err() { return Event::Closed },
                changed = self.policy.changed() => {
                    return if changed.is_err() { Event::Closed } else { Event::PolicyChanged };
                }
            }
        }
    }
}
