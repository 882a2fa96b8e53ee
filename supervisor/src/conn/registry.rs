//! Which connections are open, for the operator. Touched when a connection starts and ends, never per request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// What the operator sees of an open connection.
#[derive(Debug, Clone)]
pub struct Live {
    /// Id of the connection's audit record.
    pub decision_id: String,
    /// `ingress` or `egress`.
    pub direction: &'static str,
    /// The endpoint's workload.
    pub workload: String,
    /// The other side: SPIFFE ID, address, or what the guest asked for.
    pub peer: String,
    /// Port name or destination.
    pub what: String,
    /// When it started.
    pub since: Instant,
}

/// All open connections.
#[derive(Default)]
pub struct Registry {
    live: Mutex<HashMap<u64, Live>>,
    next: std::sync::atomic::AtomicU64,
}

impl Registry {
    /// Adds a connection; it is removed when the guard is dropped.
    #[must_use]
    pub fn enter(self: &Arc<Self>, live: Live) -> Guard {
        let id = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.lock().insert(id, live);
        Guard { registry: Arc::clone(self), id }
    }

    /// All open connections, oldest first.
    #[must_use]
    pub fn list(&self) -> Vec<Live> {
        let mut all: Vec<_> = self.lock().iter().map(|(id, live)| (*id, live.clone())).collect();
        all.sort_by_key(|(id, _)| *id);
        all.into_iter().map(|(_, live)| live).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Live>> {
        // A panic while holding the lock leaves the map whole: insert and remove are single calls.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a connection listed.
pub struct Guard {
    registry: Arc<Registry>,
    id: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.registry.lock().remove(&self.id);
    }
}
