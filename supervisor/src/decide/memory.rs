//! What the engine said of the last inputs, per thread. A decision is a function of bundle and input, so an answer stays
//! right until there is another bundle.

use std::collections::HashMap;
use std::sync::Arc;

use nova_policy::decision::{Decision, DecisionReason};
use nova_policy::engine::Policy;
use nova_policy::input::Input;

/// Answers that are kept. Callers choose paths, so there must be an end; at the end everything is forgotten.
const ANSWERS: usize = 4096;
/// Longest path and method together, in bytes, of an input that is kept: with [`ANSWERS`], a few megabytes per thread.
const TEXT_MAX: usize = 512;

/// Answers of one bundle, by the whole input.
#[derive(Default)]
pub(super) struct Memory {
    /// The bundle as all threads have it. Held, so that no other can come to lie at its address.
    shared: Option<Arc<Policy>>,
    /// The same bundle behind a count of this thread's own: cores that count in one place wait for each other.
    own: Option<Arc<Policy>>,
    answers: HashMap<Arc<Input>, Decision>,
}

impl Memory {
    /// Goes over to `live`, the bundle of now. Another one than before empties the memory.
    pub(super) fn follow(&mut self, live: Option<&Arc<Policy>>) -> Option<Arc<Policy>> {
        if self.shared.as_ref().map(Arc::as_ptr) != live.map(Arc::as_ptr) {
            self.answers.clear();
            self.shared = live.cloned();
            self.own = live.map(|policy| Arc::new(Policy::clone(policy)));
        }
        self.own.clone()
    }

    /// The answer to an equal input on the bundle of the last [`Memory::follow`].
    pub(super) fn recall(&self, input: &Input) -> Option<(Arc<Input>, Decision)> {
        let (input, decision) = self.answers.get_key_value(input)?;
        Some((Arc::clone(input), decision.clone()))
    }

    /// Keeps an answer on the bundle of the last [`Memory::follow`]. A failure of the engine is no answer.
    pub(super) fn keep(&mut self, input: &Arc<Input>, decision: &Decision) {
        let text = input.path().map_or(0, str::len) + input.method().map_or(0, str::len);
        if decision.reason == DecisionReason::EngineError || text > TEXT_MAX {
            return;
        }
        if self.answers.len() >= ANSWERS {
            self.answers.clear();
        }
        self.answers.insert(Arc::clone(input), decision.clone());
    }
}
