//! What happened to the pods, in order: for people, for the demo, and for tests of the order itself.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Events kept.
const KEPT: usize = 1000;

/// A step in the life of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Its address is another pod's, or rests.
    WaitingForIp,
    /// Its folders are there.
    FoldersMade,
    /// Its guest runs.
    GuestStarted,
    /// The supervisor was told `PENDING`.
    Pending,
    /// Its local route was added, where novalet adds them.
    RouteAdded,
    /// A supervisor answered `HEALTHY`.
    Healthy,
    /// The supervisor was told `READY`.
    Ready,
    /// A supervisor answered `SERVING`: the pod counts as running.
    Running,
    /// The placement was changed in place.
    Updated,
    /// The supervisor was told `DRAINING`.
    Draining,
    /// Every slot answered `DRAINED`.
    Drained,
    /// The drain time and its margin passed.
    DrainTimedOut,
    /// The supervisor was told to forget the endpoint.
    Removed,
    /// Its local route is gone.
    RouteRemoved,
    /// The guest and what served it are gone.
    GuestStopped,
    /// The address rests.
    IpCooling,
    /// Something went wrong; see the detail.
    Failed,
}

/// One event.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Event {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// The pod.
    pub pod_uid: String,
    /// Its generation then.
    pub generation: u64,
    /// What happened.
    pub step: Step,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// The last events.
#[derive(Debug, Default)]
pub struct History {
    events: Mutex<VecDeque<Event>>,
}

impl History {
    /// Adds an event, and logs it.
    pub fn add(&self, pod_uid: &str, generation: u64, step: Step, detail: impl Into<String>) {
        let detail = detail.into();
        tracing::info!(pod = pod_uid, generation, step = ?step, detail, "pod");
        let event = Event { at_ms: now_ms(), pod_uid: pod_uid.to_owned(), generation, step, detail };
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() == KEPT {
            events.pop_front();
        }
        events.push_back(event);
    }

    /// All kept events, oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
