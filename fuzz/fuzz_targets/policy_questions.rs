//! Any text as a decision input, as a pair, as a piece of the audit log, as an approval and as a map of callers: what is read
//! is decided and explained alike, and nothing panics.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use nova_policy::bundle::KeyPair;
use nova_policy::compile::{Options, SourceText, compile_texts};
use nova_policy::gate::{Approval, InUse};
use nova_policy::import::{Callers, rules_of};
use nova_policy::pair::Pair;
use nova_policy::publish::{Publish, bundle_of};
use nova_policy::{DecisionReason, Evaluator, Input, Policy, SigningKey, VerifyKeys, VerifyOptions, explain, verify};

const RULES: &str = include_str!("../../policy/tests/data/decision-rules.yaml");
const WORKLOADS: &str = include_str!("../../policy/tests/data/decision-workloads.yaml");
const NOW: u64 = 1_800_000_000;

fuzz_target!(|text: &str| {
    let policy = policy();
    if let Ok(input) = serde_json::from_str::<Input>(text) {
        ask(policy, &input);
    }
    if let Ok(inputs) = text.parse::<Pair>().map_err(drop).and_then(|pair| pair.inputs(policy, &|_| Vec::new()).map_err(drop)) {
        inputs.iter().for_each(|input| ask(policy, input));
    }
    let _ = InUse::parse(text);
    let _ = serde_json::from_str::<Approval>(text);
    let _ = VerifyKeys::from_json(text);
    if let Ok(callers) = Callers::from_json(text) {
        let _ = rules_of(&callers, "t", "https");
    }
});

fn ask(policy: &Policy, input: &Input) {
    let decided = Evaluator::new().decide(policy, input);
    // An input of thousands of names runs out of the engine's budget, which denies.
    assert!(decided.reason == DecisionReason::EngineError || explain(policy, input).decision == decided);
    let text = serde_json::to_string(input).expect("an input has a JSON form");
    assert_eq!(serde_json::from_str::<Input>(&text).ok().as_ref(), Some(input));
}

fn policy() -> &'static Policy {
    static POLICY: OnceLock<Policy> = OnceLock::new();
    POLICY.get_or_init(|| {
        let options = Options { node: "node-1".to_owned(), lab: false };
        let load = |_: &str| Ok(include_bytes!("../../policy/tests/data/partner-ca.pem").to_vec());
        let source = |file, text| SourceText { file, text };
        let data = compile_texts(source("r", RULES), source("w", WORKLOADS), &options, &load).expect("it compiles");
        let pair = KeyPair::eddsa().expect("a key");
        let key = SigningKey::from_pem(pair.private_pem.as_bytes()).expect("a key");
        let how = Publish { key: &key, key_id: "k", serial: 1, now: NOW, expires_in: 60 };
        let bundle = bundle_of(&data, &how).expect("a bundle");
        let mut keys = VerifyKeys::default();
        keys.insert("k", pair.algorithm, pair.public_pem);
        let options =
            VerifyOptions { keys: &keys, key_id: None, scope: "node-1", now: NOW, stale_grace: 0, newer_than: None };
        Policy::load(verify(&bundle, &options).expect("it verifies")).expect("it loads")
    })
}
