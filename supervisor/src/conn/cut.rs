//! When a connection must end before its peers say so: its endpoint closes, or the policy changed.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::event::Event;
use super::peer::PeerWatch;
use crate::state::endpoint::{Endpoint, Stage};
use crate::state::policy::PolicyCell;
use crate::state::port::{OpenPort, PortStage};

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

/// Resolves when a connection to the port should have ended by itself and must be dropped.
pub async fn until_port_overdue(port: &OpenPort) {
    port.until(PortStage::Closed).await;
    tokio::time::sleep(OVERDUE).await;
}

async fn port_changes(port: &mut Option<watch::Receiver<PortStage>>) {
    // A port that nobody can end any more ends with its endpoint.
    let ended = match port {
        Some(port) => port.changed().await.is_err(),
        None => true,
    };
    if ended {
        std::future::pending().await
    }
}

async fn peer_event(peer: &mut Option<PeerWatch>) -> Event {
    match peer {
        Some(peer) => peer.next().await,
        None => std::future::pending().await,
    }
}

/// Watches the stages of an endpoint and its port, the policy and the caller's certificate for one connection.
pub struct Cut {
    stage: watch::Receiver<Stage>,
    port: Option<watch::Receiver<PortStage>>,
    policy: watch::Receiver<u64>,
    last: Option<Event>,
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
        Self { stage: endpoint.watch_stage(), port: None, policy, last: None, peer: None, age: Age::of(endpoint) }
    }

    /// The same for a connection whose caller is known by a certificate.
    #[must_use]
    pub fn of_peer(self, peer: Option<PeerWatch>) -> Self {
        Self { peer, ..self }
    }

    /// The same for a connection that came to a port.
    #[must_use]
    pub fn of_port(self, port: &OpenPort) -> Self {
        Self { port: Some(port.watch()), ..self }
    }

    /// Says the stage once more at the next look: somebody else goes on with the connection.
    pub fn again(&mut self) {
        self.last = None;
    }

    /// What the stages of endpoint and port say.
    fn staged(&mut self) -> Option<Event> {
        let stage = *self.stage.borrow_and_update();
        let port = self.port.as_mut().map_or(PortStage::Open, |port| *port.borrow_and_update());
        match (stage, port) {
            // A suspended endpoint's guest is gone: nothing that is open leads anywhere.
            (Stage::Closed | Stage::Waiting, _) | (_, PortStage::Closed) => Some(Event::Closed),
            (Stage::Draining, _) | (_, PortStage::Draining) => Some(Event::Draining),
            (Stage::EgressOnly | Stage::Serving, PortStage::Open) => None,
        }
    }

    /// The next event. Cancel-safe.
    pub async fn next(&mut self) -> Event {
        loop {
            let now = self.staged();
            if now != self.last {
                self.last = now;
                if let Some(event) = now {
                    return event;
                }
            }
            tokio::select! {
                biased;
                changed = self.stage.changed() => if changed.is_err() { return Event::Closed },
                () = port_changes(&mut self.port) => {}
                changed = self.policy.changed() => {
                    return if changed.is_err() { Event::Closed } else { Event::PolicyChanged };
                }
                event = peer_event(&mut self.peer) => return event,
                () = self.age.until_next() => return self.age.passed(),
            }
        }
    }
}
