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
    /// Held, so that no other bundle can come to lie at its address.
    policy: Option<Arc<Policy>>,
    answers: HashMap<Arc<Input>, Decision>,
}

impl Memory {
    /// The answer to an equal input on the same bundle. Another bundle than before empties the memory.
    pub(super) fn recall(&mut self, policy: &Arc<Policy>, input: &Input) -> Option<(Arc<Input>, Decision)> {
        if !self.policy.as_ref().is_some_and(|known| Arc::ptr_eq(known, policy)) {
            self.answers.clear();
            self.policy = Some(Arc::clone(policy));
        }
        let (input, decision) = self.answers.get_key_value(input)?;
        Some((Arc::clone(input), decision.clone()))
    }

    /// Keeps an answer on the bundle of the last [`Memory::recall`]. A failure of the engine is no answer.
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
