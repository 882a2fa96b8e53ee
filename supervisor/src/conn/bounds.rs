//! What an endpoint's limits mean for one HTTP connection.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::body::BodyRules;
use crate::gate;
use crate::state::endpoint::{Endpoint, EndpointLimits};
use crate::state::pace::Pace;
use crate::state::way::Way;

/// The bounds of one connection on which requests come.
pub struct HttpBounds {
    /// Size and time of a request's head.
    pub gate: gate::Limits,
    /// Size of an answer's head.
    pub answer_gate: gate::Limits,
    /// How long the connection may be without a request.
    pub idle: Duration,
    /// What holds for the bodies of requests.
    pub requests: BodyRules,
    /// What holds for those of answers.
    pub answers: BodyRules,
}

impl HttpBounds {
    /// For a connection whose requests go `way`.
    #[must_use]
    pub fn new(endpoint: &Arc<Endpoint>, limits: &EndpointLimits, way: Way) -> Self {
        // One handle a connection: requests must not count in one that threads share.
        let pace = |way| Rc::new(Pace::new(endpoint, way));
        Self {
            gate: gate::Limits {
                head_bytes: limits.header_bytes,
                head_time: limits.header_time,
                ws_targets: way == Way::FromGuest,
                ..gate::Limits::default()
            },
            answer_gate: gate::Limits { head_bytes: limits.header_bytes, ..gate::Limits::default() },
            idle: limits.idle_time,
            requests: BodyRules::request(pace(way), limits.body_time),
            answers: BodyRules::answer(pace(way.back()), limits.answer_time),
        }
    }
}
