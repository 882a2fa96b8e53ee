//! Helpers of the unit tests: rules and workloads to a loaded policy, through a real signed bundle.

#![allow(clippy::panic, reason = "a test that cannot go on")]

use crate::bundle::{KeyPair, SigningKey, VerifyKeys, VerifyOptions, verify};
use crate::compile::{Options, SourceText, compile_texts};
use crate::data::NodeData;
use crate::engine::Policy;
use crate::publish::{Evaluation, Publish, bundle_for};
use crate::report::Report;

pub(crate) const NOW: u64 = 1_800_000_000;

pub(crate) const CASE_RULES: &str = include_str!("../tests/data/decision-rules.yaml");
pub(crate) const CASE_WORKLOADS: &str = include_str!("../tests/data/decision-workloads.yaml");

/// Compiles for a node; PEM files are the test CA whatever their name.
pub(crate) fn data(rules: &str, workloads: &str, node: &str) -> Result<NodeData, Report> {
    let load = |_: &str| Ok(include_bytes!("../tests/data/partner-ca.pem").to_vec());
    let options = Options { node: node.to_owned(), lab: false };
    let (rules, workloads) =
        (SourceText { file: "rules.yaml", text: rules }, SourceText { file: "endpoints.yaml", text: workloads });
    compile_texts(rules, workloads, &options, &load)
}

/// Signs, verifies and loads compiled data.
pub(crate) fn policy_of(data: &NodeData) -> Policy {
    policy_for(data, Evaluation::Rego)
}

/// The same for a chosen engine.
pub(crate) fn policy_for(data: &NodeData, evaluation: Evaluation) -> Policy {
    let pair = KeyPair::eddsa().expect("a key");
    let key = SigningKey::from_pem(pair.private_pem.as_bytes()).expect("a key");
    let how = Publish { key: &key, key_id: "k", serial: 1, now: NOW, expires_in: 60 };
    let bundle = bundle_for(data, evaluation, &how).expect("a bundle");
    let mut keys = VerifyKeys::default();
    keys.insert("k", pair.algorithm, pair.public_pem);
    let options =
        VerifyOptions { keys: &keys, key_id: Some("k"), scope: &data.node, now: NOW, stale_grace: 0, newer_than: None };
    Policy::load(verify(&bundle, &options).expect("it verifies")).expect("it loads")
}

/// The policy of rules and workloads for a node.
pub(crate) fn policy(rules: &str, workloads: &str, node: &str) -> Policy {
    match data(rules, workloads, node) {
        Ok(data) => policy_of(&data),
        Err(report) => panic!("the rules have mistakes:\n{report}"),
    }
}
