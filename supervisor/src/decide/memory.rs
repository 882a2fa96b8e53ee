//! What the engine said of the last inputs, per thread and endpoint. A decision is a function of bundle and input, so an
//! answer stays right until there is another bundle.
//!
//! Callers choose paths, so everything here has an end, and reaching it costs only who reached it: an endpoint's inputs
//! never push out another endpoint's answers, and its denials never push out its grants.

use std::collections::HashMap;
use std::sync::Arc;

use nova_policy::decision::{Decision, DecisionReason};
use nova_policy::engine::Policy;
use nova_policy::input::Input;

/// Grants, and as many denials, that are kept of an endpoint.
const ANSWERS: usize = 512;
/// Longest path and method together, in bytes, of an input that is kept: with [`ANSWERS`], half a megabyte per endpoint.
const TEXT_MAX: usize = 256;
/// Endpoints of which anything is kept; more of them are busy on no node. One more makes the one asked longest ago forgotten.
const ENDPOINTS: usize = 256;

/// Answers of one bundle, by endpoint and whole input.
#[derive(Default)]
pub(super) struct Memory {
    /// The bundle as all threads have it. Held, so that no other can come to lie at its address.
    shared: Option<Arc<Policy>>,
    /// The same bundle behind a count of this thread's own: cores that count in one place wait for each other.
    own: Option<Arc<Policy>>,
    endpoints: HashMap<Box<str>, Answers>,
    /// Grows with every question.
    clock: u64,
}

/// What is kept of one endpoint.
#[derive(Default)]
struct Answers {
    granted: HashMap<Arc<Input>, Decision>,
    denied: HashMap<Arc<Input>, Decision>,
    /// When it was last asked for.
    asked: u64,
}

impl Memory {
    /// Goes over to `live`, the bundle of now. Another one than before empties the memory.
    pub(super) fn follow(&mut self, live: Option<&Arc<Policy>>) -> Option<Arc<Policy>> {
        if self.shared.as_ref().map(Arc::as_ptr) != live.map(Arc::as_ptr) {
            self.endpoints.clear();
            self.shared = live.cloned();
            self.own = live.map(|policy| Arc::new(Policy::clone(policy)));
        }
        self.own.clone()
    }

    /// The answer to an equal input of this endpoint on the bundle of the last [`Memory::follow`].
    pub(super) fn recall(&mut self, endpoint: &str, input: &Input) -> Option<(Arc<Input>, Decision)> {
        self.clock += 1;
        let answers = self.endpoints.get_mut(endpoint)?;
        answers.asked = self.clock;
        let (input, decision) = answers.granted.get_key_value(input).or_else(|| answers.denied.get_key_value(input))?;
        Some((Arc::clone(input), decision.clone()))
    }

    /// Keeps an answer on the bundle of the last [`Memory::follow`]. A failure of the engine is no answer, and what a token
    /// opened must not stay open when the token is over.
    pub(super) fn keep(&mut self, endpoint: &str, input: &Arc<Input>, decision: &Decision) {
        let text = input.path().map_or(0, str::len) + input.method().map_or(0, str::len);
        if decision.reason == DecisionReason::EngineError || input.token().is_some() || text > TEXT_MAX {
            return;
        }
        if !self.endpoints.contains_key(endpoint) {
            self.make_room();
            self.endpoints.insert(endpoint.into(), Answers { asked: self.clock, ..Answers::default() });
        }
        let Some(answers) = self.endpoints.get_mut(endpoint) else { return };
        let kept = if decision.allow { &mut answers.granted } else { &mut answers.denied };
        if kept.len() >= ANSWERS {
            kept.clear();
        }
        kept.insert(Arc::clone(input), decision.clone());
    }

    /// Forgets the endpoint that was asked for longest ago, when there is no room for another one.
    fn make_room(&mut self) {
        if self.endpoints.len() < ENDPOINTS {
            return;
        }
        let oldest = self.endpoints.iter().min_by_key(|(_, answers)| answers.asked).map(|(name, _)| name.clone());
        if let Some(oldest) = oldest {
            self.endpoints.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests;
