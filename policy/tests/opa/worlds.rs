//! From rules and workloads to policies on every engine, through real signed bundles.

use nova_policy::bundle::{self, Claims, KeyPair};
use nova_policy::compile::{Options, SourceText, compile_texts};
use nova_policy::publish::{Evaluation, Publish, bundle_for};
use nova_policy::{NodeData, Policy, SigningKey, VerifyKeys, VerifyOptions, verify};

pub(crate) const NOW: u64 = 1_800_000_000;
pub(crate) const REGO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/rego/authz.rego");

/// Compiles for a node; every PEM file is the test CA.
pub(crate) fn data(rules: &str, workloads: &str, node: &str) -> NodeData {
    let load = |_: &str| Ok(include_bytes!("../data/partner-ca.pem").to_vec());
    let options = Options { node: node.to_owned(), lab: false };
    let source = |file, text| SourceText { file, text };
    match compile_texts(source("rules.yaml", rules), source("endpoints.yaml", workloads), &options, &load) {
        Ok(data) => data,
        Err(report) => panic!("{rules}\n{report}"),
    }
}

/// One set of rules on both engines.
pub(crate) struct World {
    pub(crate) data: NodeData,
    pub(crate) rego: Policy,
    pub(crate) wasm: Policy,
}

impl World {
    pub(crate) fn new(data: NodeData) -> Self {
        let signer = Signer::new();
        let rego = signer.policy(&data, Evaluation::Rego);
        let wasm = signer.policy(&data, Evaluation::Wasm);
        Self { data, rego, wasm }
    }
}

/// A key that signs and the keys that verify it.
pub(crate) struct Signer {
    pub(crate) key: SigningKey,
    pub(crate) keys: VerifyKeys,
}

impl Signer {
    pub(crate) fn new() -> Self {
        Self::of(&KeyPair::eddsa().expect("a key"), "k")
    }

    pub(crate) fn of(pair: &KeyPair, id: &str) -> Self {
        let mut keys = VerifyKeys::default();
        keys.insert(id, pair.algorithm, &pair.public_pem);
        Self { key: SigningKey::from_pem(pair.private_pem.as_bytes()).expect("a key"), keys }
    }

    pub(crate) fn bundle(&self, data: &NodeData, evaluation: Evaluation) -> Vec<u8> {
        let how = Publish { key: &self.key, key_id: "k", serial: 1, now: NOW, expires_in: 60 };
        bundle_for(data, evaluation, &how).expect("a bundle")
    }

    pub(crate) fn policy(&self, data: &NodeData, evaluation: Evaluation) -> Policy {
        self.load(&self.bundle(data, evaluation), &data.node).expect("it loads")
    }

    pub(crate) fn load(&self, bundle: &[u8], scope: &str) -> Result<Policy, nova_policy::LoadError> {
        Policy::load(verify(bundle, &options(&self.keys, scope)).expect("it verifies"))
    }

    /// A bundle of any files.
    pub(crate) fn sign(&self, files: &std::collections::BTreeMap<String, Vec<u8>>, scope: &str) -> Vec<u8> {
        let claims = Claims { key_id: "k", scope, issued_at: NOW, expires: Some(NOW + 60) };
        bundle::build(files, &self.key, &claims).expect("signs")
    }
}

pub(crate) fn options<'a>(keys: &'a VerifyKeys, scope: &'a str) -> VerifyOptions<'a> {
    VerifyOptions { keys, key_id: None, scope, now: NOW, stale_grace: 0, newer_than: None }
}
