//! When a connection must end before its peers say so: its endpoint closes, or the policy changed.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::event::Event;
use super::peer::PeerWatch;
use crate::state::endpoint::{Endpoint, Stage};
use crate::state::policy::PolicyCell;

/// How long a connection may take to end by itself once its endpoint is closed or suspended.
const OVERDUE: Duration = Duration::from_millis(500);

/// Resolves when a connection of the endpoint should have ended by itself and must be dropped.
pub async fn until_overdue(endpoint: &Endpoint) {
    until_closed(endpoint).await;
    tokio::time::sleep(OVERDUE).await;
}

/// Resolves when the endpoint is closed or suspended.
pub async fn until_closed(endpoint: &Endpoint) {
    let mut stage = endpoint.watch_stage();
    // Waiting before anything was served is a connection too early; it is refused by whoever looks at the stage.
    let _ = stage.wait_for(|stage| *stage > Stage::Waiting).await;
    let _ = stage.wait_for(|stage| matches!(stage, Stage::Closed | Stage::Waiting)).await;
}

async fn peer_event(peer: &mut Option<PeerWatch>) -> Event {
    match peer {
        Some(peer) => peer.next().await,
        None => std::future::pending().await,
    }
}

/// Watches an endpoint's stage, the policy and the caller's certificate for one connection.
pub struct Cut {
    stage: watch::Receiver<Stage>,
    policy: watch::Receiver<u64>,
    last: Option<Stage>,
    peer: Option<PeerWatch>,
    age: Age,
}

/// When a connection has to be looked at for its age alone.
struct Age {
    lifetime: Option<Duration>,
    /// Then it ends, instead of being decided again.
    ends: bool,
    next: Instant,
}

impl Age {
    fn of(endpoint: &Endpoint) -> Self {
        let limits = endpoint.spec().limits;
        let lifetime = limits.max_lifetime;
        Self { lifetime, ends: limits.close_at_max_lifetime, next: Instant::now() + lifetime.unwrap_or_default() }
    }

    async fn until_next(&self) {
        match self.lifetime {
            Some(_) => tokio::time::sleep_until(self.next).await,
            None => std::future::pending().await,
        }
    }

    fn passed(&mut self) -> Event {
        self.next = Instant::now() + self.lifetime.unwrap_or_default();
        if std::mem::take(&mut self.ends) { Event::Aged } else { Event::PolicyChanged }
    }
}

impl Cut {
    /// What is not as it should be already counts as changed: a dial or a handshake may lie between the decision and this
    /// watch, so the first policy event comes at once and the caller compares.
    #[must_use]
    pub fn watch(endpoint: &Endpoint, policy: &PolicyCell) -> Self {
        let mut policy = policy.watch();
        policy.mark_changed();
        Self { stage: endpoint.watch_stage(), policy, last: None, peer: None, age: Age::of(endpoint) }
    }

    /// The same for a connection whose caller is known by a certificate.
    #[must_use]
    pub fn of_peer(self, peer: Option<PeerWatch>) -> Self {
        Self { peer, ..self }
    }

    /// Says the stage once more at the next look: somebody else goes on with the connection.
    pub fn again(&mut self) {
        self.last = None;
    }

    /// The next event. Cancel-safe.
    pub async fn next(&mut self) -> Event {
        loop {
            let now = *self.stage.borrow_and_update();
            if self.last != Some(now) {
                self.last = Some(now);
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
                event = peer_event(&mut self.peer) => return event,
                () = self.age.until_next() => return self.age.passed(),
            }
        }
    }
}
