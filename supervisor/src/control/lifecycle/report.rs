//! Tells how far an endpoint is: to novalet, to the admin surface and to the log, each change once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::control::board::{Board, Status};
use crate::control::order::Key;
use crate::control::why::{Phase, Why};
use crate::state::endpoint::{Endpoint, EndpointStatus};

/// The voice of one endpoint.
pub struct Reporter {
    endpoint: Arc<Endpoint>,
    key: Key,
    board: Arc<Board>,
    last: Mutex<Option<Status>>,
}

impl Reporter {
    /// For `endpoint`.
    #[must_use]
    pub fn new(endpoint: Arc<Endpoint>, board: Arc<Board>) -> Self {
        let spec = endpoint.spec();
        let key = Key { pod: spec.pod_uid.clone(), generation: spec.generation };
        Self { endpoint, key, board, last: Mutex::new(None) }
    }

    /// Which endpoint speaks.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Tells phase and reason, unless they were the last that was told.
    pub fn report(&self, phase: Phase, why: Why, message: &str) {
        let open = self.endpoint.open_connections();
        self.tell(phase, why, message, open);
    }

    /// Tells the end, and how many connections were cut for it.
    pub fn report_drained(&self, why: Why, cut: usize) {
        self.tell(Phase::Drained, why, "", cut);
    }

    /// Tells the last status once more.
    pub fn repeat(&self) {
        if let Some(status) = self.last().clone() {
            self.board.push(status);
        }
    }

    fn tell(&self, phase: Phase, why: Why, message: &str, open: usize) {
        let mut last = self.last();
        let is_known =
            last.as_ref().is_some_and(|last| last.phase == phase && last.why == why && last.message == message);
        if is_known {
            return;
        }
        let open_connections = u32::try_from(open).unwrap_or(u32::MAX);
        let status = Status {
            pod: self.key.pod.to_string(),
            generation: self.key.generation,
            phase,
            why,
            message: message.to_owned(),
            open_connections,
        };
        *last = Some(status.clone());
        drop(last);
        tracing::info!(
            endpoint = %self.key, phase = phase.as_str(), reason = why.as_str(), message, open_connections, "endpoint"
        );
        let shown = EndpointStatus { phase: phase.as_str(), reason: why.as_str(), message: message.to_owned() };
        self.endpoint.status.store(Some(Arc::new(shown)));
        self.board.push(status);
    }

    fn last(&self) -> MutexGuard<'_, Option<Status>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
