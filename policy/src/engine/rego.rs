//! The engine for bundles without `policy.wasm`: regorus' virtual machine runs the bundle's Rego. Program and data are
//! shared by all threads.

use std::num::NonZeroU32;
use std::sync::Arc;

use regorus::Value;
use regorus::languages::rego::compiler::Compiler;
use regorus::rvm::program::Program;
use regorus::rvm::vm::RegoVM;
use regorus::utils::limits::ExecutionTimerConfig;

use super::{Engine, LoadError, Machine, TIME_BUDGET};
use crate::decision::{Decision, DecisionReason};
use crate::input::{Direction, Input, Phase};

/// The rule that is asked.
const ENTRY_POINT: &str = "data.nova.authz.decision";
/// Instructions one decision may take. An indexed lookup needs a few hundred; whoever runs into this is denied.
const MAX_INSTRUCTIONS: usize = 25_000;
/// Instructions between two looks at the clock. An honest decision ends before the first one, so a thread that the
/// system keeps waiting denies nothing.
const TIME_CHECK: u32 = 2_000;

/// Program and data of one bundle.
pub(super) struct Rego {
    program: Arc<Program>,
    data: Value,
}

impl Rego {
    pub(super) fn new(modules: &[(String, String)], data: &str) -> Result<Self, LoadError> {
        let data = Value::from_json_str(data).map_err(|error| LoadError::Data(error.to_string()))?;
        Ok(Self { program: compile(modules)?, data })
    }
}

impl Engine for Rego {
    fn name(&self) -> &'static str {
        "regorus"
    }

    fn machine(&self) -> Result<Box<dyn Machine>, LoadError> {
        let mut vm = RegoVM::new();
        vm.set_max_instructions(MAX_INSTRUCTIONS);
        let check_interval = NonZeroU32::new(TIME_CHECK).unwrap_or(NonZeroU32::MIN);
        vm.set_execution_timer_config(Some(ExecutionTimerConfig { limit: TIME_BUDGET, check_interval }));
        vm.load_program(Arc::clone(&self.program));
        vm.set_data(self.data.clone()).map_err(|error| LoadError::Compile(error.to_string()))?;
        Ok(Box::new(Vm { vm, words: Words::default() }))
    }
}

fn compile(modules: &[(String, String)]) -> Result<Arc<Program>, LoadError> {
    let fail = |error: &dyn std::fmt::Display| LoadError::Compile(error.to_string());
    let mut engine = regorus::Engine::new();
    for (name, text) in modules {
        engine.add_policy(name.clone(), text.clone()).map_err(|error| fail(&error))?;
    }
    let compiled = engine.compile_with_entrypoint(&ENTRY_POINT.into()).map_err(|error| fail(&error))?;
    Compiler::compile_from_policy(&compiled, &[ENTRY_POINT]).map_err(|error| fail(&error))
}

struct Vm {
    vm: RegoVM,
    words: Words,
}

impl Machine for Vm {
    fn decide(&mut self, input: &Input) -> Option<Decision> {
        self.vm.set_input(self.words.to_value(input));
        let answer = self.vm.execute_entry_point_by_index(0).ok()?;
        self.words.read_answer(&answer)
    }

    fn answer(&mut self, input: &serde_json::Value) -> Option<serde_json::Value> {
        self.vm.set_input(Value::from(input.clone()));
        let answer = self.vm.execute_entry_point_by_index(0).ok()?;
        serde_json::from_str(&answer.to_json_str().ok()?).ok()
    }
}

/// The member names and fixed words of inputs and answers, made once per thread: a decision allocates none of them.
struct Words {
    /// In the order of [`Input::texts`].
    texts: [Value; Input::TEXTS.len()],
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
        for (name, structure) in input.structures() {
            object.insert(name.into(), structure.into());
        }
        value
    }

    /// `None` for everything that is not exactly a decision object.
    fn read_answer(&self, answer: &Value) -> Option<Decision> {
        let object = answer.as_object().ok()?;
        let flag = |name: &Value| object.get(name)?.as_bool().ok().copied();
        let text = |name: &Value| object.get(name)?.as_string().ok().map(Arc::clone);
        Some(Decision {
            allow: flag(&self.allow)?,
            would_deny: flag(&self.audit)?,
            rule_id: text(&self.rule_id)?,
            credential: text(&self.credential)?,
            reason: DecisionReason::from_engine(&text(&self.reason)?)?,
        })
    }
}
