//! Policies that mean harm, compiled by real OPA: they are stopped, they deny, and the next decision has a new machine.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nova_policy::publish::Evaluation;
use nova_policy::{Evaluator, NodeData, Policy};

use crate::opa;
use crate::worlds::{NOW, Signer, data};

/// One module for all kinds of harm, chosen by the source: compiling one takes seconds in a debug build.
const HARM: &str = r#"package nova.authz

import rego.v1

decision := {"n": count([1 | some i in numbers.range(1, 100000); some j in numbers.range(1, 100000); i == j])} if {
	input.source == "runs-for-minutes"
}

decision := {"n": count([x | some i in numbers.range(1, 3000); some j in numbers.range(1, 3000); x := [i, j]])} if {
	input.source == "fills-the-memory"
}

decision := {"allow": true} if input.source == "contradicts-itself"

decision := {"allow": false} if {
	input.source == "contradicts-itself"
	input.dest_port == 443
}

decision := "allow" if input.source == "answers-a-text"

decision := {"allow": true, "audit": false, "rule_id": "", "credential": "", "reason": "no_grant"} if {
	input.source == "allows-without-grant"
}
"#;
const KINDS: [&str; 6] = [
    "runs-for-minutes",
    "fills-the-memory",
    "contradicts-itself",
    "is-undefined",
    "answers-a-text",
    "allows-without-grant",
];

fn files(rego: &str, wasm: Option<Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    let data = node_data();
    let mut manifest = serde_json::json!({"revision": "harm", "roots": ["nova"], "rego_version": 1, "metadata": {"serial": 1, "expires": NOW + 60}});
    let mut files = BTreeMap::from([
        ("data.json".to_owned(), serde_json::json!({ "nova": data }).to_string().into_bytes()),
        ("nova/authz.rego".to_owned(), rego.as_bytes().to_vec()),
    ]);
    if let Some(wasm) = wasm {
        manifest["wasm"] = serde_json::json!([{"entrypoint": "nova/authz/decision", "module": "/policy.wasm"}]);
        files.insert("policy.wasm".to_owned(), wasm);
    }
    files.insert(".manifest".to_owned(), manifest.to_string().into_bytes());
    files
}

fn load(files: &BTreeMap<String, Vec<u8>>) -> Result<Policy, nova_policy::LoadError> {
    let signer = Signer::new();
    signer.load(&signer.sign(files, "node-1"), "node-1")
}

/// A policy that does harm denies in time, again and again, and the thread's other policy is not affected.
fn denies(policy: &Policy, good: &Policy) {
    let ask = |source: &str| {
        let text = format!(
            r#"{{"direction":"egress","phase":"connect","source":"{source}","dest_host":"service-a.t.nova","dest_port":443}}"#
        );
        serde_json::from_str(&text).expect("an input")
    };
    let mut evaluator = Evaluator::new();
    for kind in KINDS.iter().chain(&KINDS) {
        let start = Instant::now();
        let got = evaluator.decide(policy, &ask(kind));
        assert_eq!((got.allow, got.reason.as_str()), (false, "engine_error"), "{}: {kind}", policy.engine_name());
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}: {kind}", start.elapsed());
        assert!(evaluator.decide(good, &ask("x")).allow);
    }
}

// covers: B5e
#[test]
fn policies_that_loop_fill_memory_abort_or_answer_nonsense_deny() {
    let good = Signer::new().policy(&node_data(), Evaluation::Rego);
    denies(&load(&files(HARM, None)).expect("it loads"), &good);
    let Some(program) = opa::program() else { return };
    denies(&load(&files(HARM, Some(compiled(&program, "a.rego", HARM)))).expect("it loads"), &good);
}

fn node_data() -> NodeData {
    data(include_str!("../data/decision-rules.yaml"), include_str!("../data/decision-workloads.yaml"), "node-1")
}

/// What OPA compiles Rego to. The file name ends up in the module.
pub(crate) fn compiled(program: &std::path::Path, name: &str, rego: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("temp dir");
    std::fs::write(dir.path().join(name), rego).expect("write");
    let build = ["build", "-t", "wasm", "-e", "nova/authz/decision", "-o", "b.tar.gz", name];
    opa::run(program, dir.path(), &build).expect("OPA compiles it");
    let bundle = std::fs::File::open(dir.path().join("b.tar.gz")).expect("a bundle");
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bundle));
    for entry in archive.entries().expect("entries") {
        let mut entry = entry.expect("an entry");
        if entry.path_bytes().ends_with(b"/policy.wasm") {
            let mut wasm = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut wasm).expect("content");
            return wasm;
        }
    }
    panic!("OPA wrote no policy.wasm");
}
