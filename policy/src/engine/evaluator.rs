//! One virtual machine per thread.

use std::sync::Arc;

use regorus::Value;
use regorus::rvm::vm::RegoVM;

use super::Policy;
use crate::decision::{Decision, DecisionReason};
use crate::input::{Direction, Input, Phase};

/// Instructions one decision may take. An indexed lookup needs a few hundred; whoever runs into this is denied.
const MAX_INSTRUCTIONS: usize = 25_000;

/// Decides for one thread. It keeps the machine of the last policy it was asked with.
#[derive(Default)]
pub struct Evaluator {
    machine: Option<Machine>,
}

struct Machine {
    policy: Policy,
    vm: RegoVM,
}

impl Evaluator {
    /// An evaluator without a policy yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decides. A rule that injects a credential denies as long as no credential can be provided.
    pub fn decide(&mut self, policy: &Policy, input: &Input) -> Decision {
        self.evaluate(policy, input).without_credentials()
    }

    /// What the policy itself says, before credentials are looked at.
    pub(crate) fn evaluate(&mut self, policy: &Policy, input: &Input) -> Decision {
        let failed = Decision::deny(DecisionReason::EngineError);
        let Some(answer) = self.run(policy, to_value(input)) else { return failed };
        read_answer(&answer).unwrap_or(failed)
    }

    /// The engine's raw answer, `None` when it failed.
    pub(crate) fn run(&mut self, policy: &Policy, input: Value) -> Option<Value> {
        let mut machine = match self.machine.take() {
            Some(machine) if machine.policy.is_same(policy) => machine,
            _ => Machine::new(policy)?,
        };
        machine.vm.set_input(input);
        // A machine that failed is dropped: nothing of its state is trusted again.
        let answer = machine.vm.execute_entry_point_by_index(0).ok()?;
        self.machine = Some(machine);
        Some(answer)
    }
}

impl Machine {
    fn new(policy: &Policy) -> Option<Self> {
        let mut vm = RegoVM::new();
        vm.set_max_instructions(MAX_INSTRUCTIONS);
        vm.load_program(Arc::clone(&policy.0.program));
        vm.set_data(policy.0.value.clone()).ok()?;
        Some(Self { policy: policy.clone(), vm })
    }
}

fn to_value(input: &Input) -> Value {
    let mut value = Value::new_object();
    if let Ok(object) = value.as_object_mut() {
        let direction = match input.direction() {
            Direction::Egress => "egress",
            Direction::Ingress => "ingress",
        };
        let phase = match input.phase() {
            Phase::Connect => "connect",
            Phase::Opaque => "opaque",
            Phase::Request => "request",
        };
        object.insert("direction".into(), direction.into());
        object.insert("phase".into(), phase.into());
        for (name, text) in input.texts() {
            if let Some(text) = text {
                object.insert(name.into(), Value::String(Arc::clone(text)));
            }
        }
        if let Some(port) = input.dest_port() {
            object.insert("dest_port".into(), u32::from(port).into());
        }
    }
    value
}

/// `None` for everything that is not exactly a decision object.
fn read_answer(answer: &Value) -> Option<Decision> {
    let object = answer.as_object().ok()?;
    let flag = |name: &str| object.get(&name.into())?.as_bool().ok().copied();
    let text = |name: &str| object.get(&name.into())?.as_string().ok().map(Arc::clone);
    let reason = DecisionReason::from_engine(&text("reason")?)?;
    let decision = Decision {
        allow: flag("allow")?,
        would_deny: flag("audit")?,
        rule_id: text("rule_id")?,
        credential: text("credential")?,
        reason,
    };
    (decision.allow == reason.allows()).then_some(decision)
}
