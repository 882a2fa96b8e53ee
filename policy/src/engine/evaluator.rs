//! What a thread decides with.

use super::{Machine, Policy};
use crate::decision::{Decision, DecisionReason};
use crate::input::Input;
use crate::judge;

/// Decides for one thread. It keeps the machine of the last policy it was asked with.
#[derive(Default)]
pub struct Evaluator {
    ready: Option<Ready>,
}

struct Ready {
    policy: Policy,
    machine: Box<dyn Machine>,
}

impl Evaluator {
    /// An evaluator without a policy yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decides.
    pub fn decide(&mut self, policy: &Policy, input: &Input) -> Decision {
        let answer = self.run(policy, |machine| machine.decide(input));
        let decision = answer.and_then(Decision::of_engine);
        let decision = decision.unwrap_or_else(|| Decision::deny(DecisionReason::EngineError));
        judge::held_to_slash(decision, policy.data(), input)
    }

    /// The engine's answer to any JSON, whether it is an input or not; none when it failed. For comparing engines.
    pub fn answer(&mut self, policy: &Policy, input: &serde_json::Value) -> Option<serde_json::Value> {
        self.run(policy, |machine| machine.answer(input))
    }

    /// Gives the machine to the next thread that needs one for this policy.
    pub(super) fn give_back(&mut self) {
        if let Some(Ready { policy, machine }) = self.ready.take() {
            policy.keep(machine);
        }
    }

    fn run<T>(&mut self, policy: &Policy, ask: impl FnOnce(&mut dyn Machine) -> Option<T>) -> Option<T> {
        let mut ready = match self.ready.take() {
            Some(ready) if ready.policy.is_same(policy) => ready,
            _ => Ready { machine: policy.take_machine()?, policy: policy.clone() },
        };
        // A machine that failed is dropped: nothing of its state is trusted again.
        let answer = ask(&mut *ready.machine)?;
        self.ready = Some(ready);
        Some(answer)
    }
}
