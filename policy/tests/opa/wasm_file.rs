//! The committed policy.wasm is what OPA makes of the committed Rego.

use aws_lc_rs::digest;
use nova_policy::publish::{Evaluation, REGO, WASM};

use crate::worlds::{Signer, data};
use crate::{budget, opa};

// covers: B5b
#[test]
fn the_wasm_was_made_of_this_rego() {
    let sum = |content: &[u8]| hex::encode(digest::digest(&digest::SHA256, content));
    let recorded = include_str!("../../rego/policy.wasm.sha256");
    let wanted = format!("{}  authz.rego\n{}  policy.wasm\n", sum(REGO.as_bytes()), sum(WASM));
    assert_eq!(recorded, wanted, "authz.rego has changed; run: cargo xtask policy-wasm");
}

// covers: B5b
#[test]
fn real_opa_makes_the_same_wasm_again() {
    let Some(program) = opa::program() else { return };
    let made = budget::compiled(&program, "authz.rego", REGO);
    assert!(made == WASM, "policy.wasm is not what OPA makes of authz.rego; run: cargo xtask policy-wasm");
}

// covers: B5a
#[test]
fn the_bundle_chooses_the_engine() {
    let rules = include_str!("../data/decision-rules.yaml");
    let data = data(rules, include_str!("../data/decision-workloads.yaml"), "node-1");
    let signer = Signer::new();
    for (evaluation, name) in [(Evaluation::Rego, "regorus"), (Evaluation::Wasm, "opa-wasm")] {
        assert_eq!(signer.policy(&data, evaluation).engine_name(), name);
    }
}
