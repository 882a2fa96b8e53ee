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
    words: Words,
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
        let value = self.words.to_value(input);
        let Some(answer) = self.run(policy, value) else { return failed };
        self.words.read_answer(&answer).unwrap_or(failed)
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

/// The member names and fixed words of inputs and answers, made once per thread: a decision allocates none of them.
struct Words {
    /// In the order of [`Input::texts`].
    texts: [Value; 9],
    direction: Value,
    egress: Value,
    ingress: Value,
    phase: Value,
    connect: Value,
    opaque: Value,
    request: Value,
    dest_port: Value,
    allow: Value,
    audit: Value,
    rule_id: Value,
    credential: Value,
    reason: Value,
}

impl Default for Words {
    fn default() -> Self {
        Self {
            texts: Input::TEXTS.map(Value::from),
            direction: "direction".into(),
            egress: "egress".into(),
            ingress: "ingress".into(),
            phase: "phase".into(),
            connect: "connect".into(),
            opaque: "opaque".into(),
            request: "request".into(),
            dest_port: "dest_port".into(),
            allow: "allow".into(),
            audit: "audit".into(),
            rule_id: "rule_id".into(),
            credential: "credential".into(),
            reason: "reason".into(),
        }
    }
}

impl Words {
    fn to_value(&self, input: &Input) -> Value {
        let mut value = Value::new_object();
        let Ok(object) = value.as_object_mut() else { return value };
        let direction = match input.direction() {
            Direction::Egress => &self.egress,
            Direction::Ingress => &self.ingress,
        };
        let phase = match input.phase() {
            Phase::Connect => &self.connect,
            Phase::Opaque => &self.opaque,
            Phase::Request => &self.request,
        };
        object.insert(self.direction.clone(), direction.clone());
        object.insert(self.phase.clone(), phase.clone());
        for (name, text) in self.texts.iter().zip(input.texts()) {
            if let Some(text) = text {
                object.insert(name.clone(), Value::String(Arc::clone(text)));
            }
        }
        if let Some(port) = input.dest_port() {
            object.insert(self.dest_port.clone(), u32::from(port).into());
        }
        value
    }

    /// `None` for everything that is not exactly a decision object.
    fn read_answer(&self, answer: &Value) -> Option<Decision> {
        let object = answer.as_object().ok()?;
        let flag = |name: &Value| object.get(name)?.as_bool().ok().copied();
        let text = |name: &Value| object.get(name)?.as_string().ok().map(Arc::clone);
        let reason = DecisionReason::from_engine(&text(&self.reason)?)?;
        let decision = Decision {
            allow: flag(&self.allow)?,
            would_deny: flag(&self.audit)?,
            rule_id: text(&self.rule_id)?,
            credential: text(&self.credential)?,
            reason,
        };
        (decision.allow == reason.allows()).then_some(decision)
    }
}
