//! The decision vectors on every engine and on real OPA. Any difference fails, in any member of the answer.

use std::collections::BTreeSet;

use nova_policy::explain::Explanation;
use nova_policy::{Evaluator, Input, Policy, explain};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::worlds::{REGO, data};
use crate::{opa, worlds};

#[derive(Deserialize)]
struct World {
    name: String,
    rules: Value,
    workloads: Value,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    input: Value,
    /// `allow` follows from the reason; rule, audit and credential are empty when absent.
    want: Want,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Want {
    reason: String,
    #[serde(default)]
    rule: String,
    #[serde(default)]
    credential: String,
}

impl Want {
    fn answer(&self) -> Value {
        json!({
            "allow": matches!(self.reason.as_str(), "rule" | "connect" | "would_deny"),
            "audit": self.reason == "would_deny",
            "rule_id": self.rule,
            "credential": self.credential,
            "reason": self.reason,
        })
    }
}

const NODE: &str = "node-1";

fn worlds() -> Vec<World> {
    let worlds: Vec<World> = serde_json::from_str(include_str!("../data/decisions.json")).expect("decisions.json");
    let cases: usize = worlds.iter().map(|world| world.cases.len()).sum();
    assert!(cases > 500, "only {cases} cases");
    worlds
}

fn compiled(world: &World) -> worlds::World {
    // JSON is YAML, so the files of a world can stand in the vectors as they are.
    worlds::World::new(data(&world.rules.to_string(), &world.workloads.to_string(), NODE))
}

fn check(name: &str, engine: &str, world: &World, mut answer: impl FnMut(&Value) -> Option<Value>) {
    let mut wrong = Vec::new();
    for case in &world.cases {
        let got = answer(&case.input);
        if got.as_ref() != Some(&case.want.answer()) {
            wrong.push(format!("{name}/{}: {engine} says {got:?}, not {:?}", case.name, case.want.answer()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn ask(policy: &Policy) -> impl FnMut(&Value) -> Option<Value> {
    let mut evaluator = Evaluator::new();
    move |input| evaluator.answer(policy, input)
}

// covers: B5d
#[test]
fn every_engine_gives_the_answer_of_the_vectors() {
    for world in worlds() {
        let policies = compiled(&world);
        assert_eq!((policies.rego.engine_name(), policies.wasm.engine_name()), ("regorus", "opa-wasm"));
        check(&world.name, "regorus", &world, ask(&policies.rego));
        check(&world.name, "opa-wasm", &world, ask(&policies.wasm));
        for policy in [&policies.rego, &policies.wasm] {
            assert!(policy.self_test().is_ok_and(|vectors| vectors > 0), "{}", world.name);
        }
    }
}

// covers: B5d, B5c
#[test]
fn real_opa_gives_the_answer_of_the_vectors() {
    let Some(program) = opa::program() else { return };
    for world in worlds() {
        let policies = compiled(&world);
        let dir = tempfile::tempdir().expect("temp dir");
        let server = opa::Server::start(&program, dir.path(), &[REGO]).expect("OPA serves");
        server.client().put_data("nova", &policies.data).expect("OPA takes the data");
        let remote = policies.rego.with_opa_server(&server.socket);
        assert_eq!(remote.engine_name(), "opa-server");
        check(&world.name, "OPA", &world, ask(&remote));
        assert!(remote.self_test().is_ok(), "{}", world.name);
    }
}

/// The rules that OPA itself finds at a place of the policy: `candidates` is a set of rules, the others are rules by rank.
fn rules_at(server: &opa::Server, place: &str, input: &Value) -> BTreeSet<String> {
    let found: Option<Value> = server.client().ask_at(&format!("nova/authz/{place}"), input).expect("OPA answers");
    let id = |rule: &Value| rule["id"].as_str().expect("a rule has an id").to_owned();
    match found {
        None => BTreeSet::new(),
        Some(Value::Array(rules)) => rules.iter().map(id).collect(),
        Some(Value::Object(rules)) => rules.values().map(id).collect(),
        Some(other) => panic!("{place}: {other}"),
    }
}

fn explained(explanation: &Explanation, which: fn(&nova_policy::explain::Considered) -> bool) -> BTreeSet<String> {
    explanation.rules.iter().filter(|rule| which(rule)).map(|rule| rule.rule.clone()).collect()
}

// covers: B11d
#[test]
fn real_opa_agrees_with_every_explanation_in_the_vectors() {
    let Some(program) = opa::program() else { return };
    let mut explanations = 0;
    for world in worlds() {
        let policies = compiled(&world);
        let dir = tempfile::tempdir().expect("temp dir");
        let server = opa::Server::start(&program, dir.path(), &[REGO]).expect("OPA serves");
        server.client().put_data("nova", &policies.data).expect("OPA takes the data");
        let mut real = (policies.rego.with_opa_server(&server.socket), Evaluator::new());
        for case in &world.cases {
            // Some vectors are what no supervisor would ever ask; those have no explanation.
            let Ok(input) = serde_json::from_value::<Input>(case.input.clone()) else { continue };
            let explanation = explain(&policies.rego, &input);
            let shown = format!("{}/{}\n{explanation}", world.name, case.name);
            assert_eq!(explanation.decision, real.1.decide(&real.0, &input), "{shown}");
            let asked = serde_json::to_value(&input).expect("an input has a JSON form");
            let candidates = rules_at(&server, "candidates", &asked);
            assert_eq!(explained(&explanation, |rule| rule.candidate), candidates, "candidates of {shown}");
            let told = explanation.rules.iter().all(|rule| rule.matches == rule.tests.iter().all(|test| test.ok));
            assert!(told && (explanation.decision.allow || !explanation.hint.is_empty()), "{shown}");
            explanations += 1;
            let place = match case.input["phase"].as_str() {
                Some("request") => "matched",
                Some("opaque") => "opaque",
                // Whichever rule of the pair can be used will do.
                _ => continue,
            };
            assert_eq!(explained(&explanation, |rule| rule.matches), rules_at(&server, place, &asked), "{shown}");
        }
    }
    assert!(explanations > 500, "only {explanations}");
}
