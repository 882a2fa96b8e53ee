//! Policies that mean harm, compiled by real OPA: they are stopped, they deny, and the next decision has a new machine.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nova_policy::publish::Evaluation;
use nova_policy::{Evaluator, Policy};

use crate::opa;
use crate::worlds::{NOW, Signer, data};

const INPUT: &str =
    r#"{"direction":"egress","phase":"connect","source":"x","dest_host":"service-a.t.nova","dest_port":443}"#;
const HARM: [&str; 6] = [
    // Runs for minutes.
    r#"decision := {"n": count([1 | some i in numbers.range(1, 100000); some j in numbers.range(1, 100000); i == j])}"#,
    // Fills the memory.
    r#"decision := {"n": count([x | some i in numbers.range(1, 3000); some j in numbers.range(1, 3000); x := [i, j]])}"#,
    // Two rules that disagree: OPA's runtime aborts.
    r#"decision := {"allow": true} if input.source == "x"
decision := {"allow": false} if input.dest_port == 443"#,
    r#"decision := {"allow": true} if input.nothing"#,
    r#"decision := "allow""#,
    r#"decision := {"allow": true, "audit": false, "rule_id": "", "credential": "", "reason": "no_grant"}"#,
];

fn files(rego: &str, wasm: Option<Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    let rules = include_str!("../data/decision-rules.yaml");
    let data = data(rules, include_str!("../data/decision-workloads.yaml"), "node-1");
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

/// A policy that does harm denies in time, again and again, and the thread's next policy is not affected.
fn denies(policy: &Policy, shown: &str) {
    let good = Signer::new().policy(
        &data(include_str!("../data/decision-rules.yaml"), include_str!("../data/decision-workloads.yaml"), "node-1"),
        Evaluation::Wasm,
    );
    let input = serde_json::from_str(INPUT).expect("an input");
    let mut evaluator = Evaluator::new();
    for _ in 0..3 {
        let start = Instant::now();
        let got = evaluator.decide(policy, &input);
        assert_eq!((got.allow, got.reason.as_str()), (false, "engine_error"), "{}: {shown}", policy.engine_name());
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}: {shown}", start.elapsed());
        assert!(evaluator.decide(&good, &input).allow);
    }
}

// covers: B5e
#[test]
fn policies_that_loop_fill_memory_abort_or_answer_nonsense_deny() {
    for body in HARM {
        let rego = format!("package nova.authz\n\nimport rego.v1\n\n{body}\n");
        denies(&load(&files(&rego, None)).expect(body), body);
    }
    let Some(program) = opa::program() else { return };
    for body in HARM {
        let rego = format!("package nova.authz\n\nimport rego.v1\n\n{body}\n");
        match load(&files(&rego, Some(compiled(&program, "a.rego", &rego)))) {
            Ok(policy) => denies(&policy, body),
            // What OPA does not compile into the module would be a function of the host, and the host has none.
            Err(error) => assert!(error.to_string().contains("policy.wasm"), "{error}"),
        }
    }
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
