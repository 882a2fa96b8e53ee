//! What a source wants, as validated values.

use std::fmt;
use std::time::Duration;

use nova_proto::ids::PodUid;

use super::why::Why;
use crate::state::endpoint::EndpointSpec;

/// One endpoint as its source wants it.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    /// The endpoint.
    pub spec: EndpointSpec,
    /// How far it shall serve.
    pub wanted: Wanted,
    /// How its app is checked.
    pub health: HealthPlan,
}

impl Order {
    /// The key of the endpoint.
    #[must_use]
    pub fn key(&self) -> Key {
        Key { pod: self.spec.pod_uid.clone(), generation: self.spec.generation }
    }
}

/// How far an endpoint shall serve: `State` of `control.proto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wanted {
    /// Prepare everything; nobody may call in.
    Pending,
    /// Serve as soon as the app is healthy.
    Ready,
    /// Let open connections finish, then stop.
    Draining,
}

/// How the app's health is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthPlan {
    /// Between checks of an app that has answered.
    pub interval: Duration,
    /// Until a check counts as failed.
    pub timeout: Duration,
    /// Failed checks in a row until an app counts as unhealthy.
    pub unhealthy_after: u32,
}

impl Default for HealthPlan {
    fn default() -> Self {
        Self { interval: Duration::from_secs(2), timeout: Duration::from_secs(1), unhealthy_after: 3 }
    }
}

/// One generation of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    /// The pod.
    pub pod: PodUid,
    /// Its generation.
    pub generation: u64,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} generation {}", self.pod, self.generation)
    }
}

/// One endpoint of an update: what it shall be, or why it cannot.
pub type Row = Result<Order, Rejection>;

/// A change that a source asks for.
#[derive(Debug, Clone)]
pub enum Update {
    /// All endpoints there are; what is missing goes.
    Snapshot {
        /// A newer epoch resets generations.
        epoch: u64,
        /// The endpoints.
        rows: Vec<Row>,
    },
    /// One endpoint is new or changed.
    Upsert(Box<Row>),
    /// One endpoint goes.
    Remove(Key),
}

/// Why an endpoint of an update is refused. It changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("endpoint {pod:?} generation {generation}: {}: {message}", why.as_str())]
pub struct Rejection {
    /// The pod uid as sent; it may itself be what is wrong.
    pub pod: String,
    /// The generation as sent.
    pub generation: u64,
    /// The first mistake.
    pub why: Why,
    /// All mistakes, for people.
    pub message: String,
}
