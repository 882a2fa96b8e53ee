//! The decision vectors on every engine and on real OPA. Any difference fails, in any member of the answer.

use nova_policy::{Evaluator, Policy};
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
    assert!(cases >= 200, "only {cases} cases");
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
