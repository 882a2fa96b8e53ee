//! What an honest decision takes of the budgets, and what happens to modules that are not ours.

#![allow(clippy::panic, reason = "a test that cannot go on")]

use super::*;
use crate::bundle::WasmModule;
use crate::engine::Evaluator;
use crate::publish::{Evaluation, WASM};
use crate::testing::{CASE_RULES, CASE_WORKLOADS, data, policy_for};

fn manifest(entrypoint: &str, module: &str) -> Manifest {
    let wasm = vec![WasmModule { entrypoint: entrypoint.to_owned(), module: module.to_owned() }];
    let mut manifest: Manifest = serde_json::from_str("{}").expect("a manifest");
    manifest.wasm = wasm;
    manifest
}

fn refused(wasm: &[u8], manifest: &Manifest) -> String {
    let made = Wasm::new(wasm, manifest, "{}".to_owned()).and_then(|engine| engine.machine().map(drop));
    made.expect_err("it is refused").to_string()
}

// covers: B5a
#[test]
fn modules_that_are_not_compiled_policies_are_refused() {
    let ours = manifest(WASM_ENTRY_POINT, "/policy.wasm");
    assert!(Wasm::new(WASM, &ours, "{}".to_owned()).is_ok_and(|engine| engine.machine().is_ok()));
    for (wasm, manifest, why) in [
        (WASM, manifest(WASM_ENTRY_POINT, "/other.wasm"), "the manifest does not say"),
        (WASM, manifest("nova/authz/other", "/policy.wasm"), "the manifest does not say"),
        (&WASM[..WASM.len() / 2], ours.clone(), "policy.wasm"),
        (b"", ours.clone(), "policy.wasm"),
        (b"(module)", ours.clone(), "policy.wasm"),
        // The smallest module there is: it exports nothing.
        (b"\0asm\x01\0\0\0", ours.clone(), "env.memory"),
        (&[0; MAX_MODULE + 1], ours, "at most"),
    ] {
        let got = refused(wasm, &manifest);
        assert!(got.contains(why), "{got}");
    }
}

// covers: B5e
#[test]
fn an_honest_decision_ends_before_the_clock_is_looked_at() {
    let data = data(CASE_RULES, CASE_WORKLOADS, "node-1").expect("compiles");
    let text = serde_json::json!({ "nova": data }).to_string();
    let mut machine = instance(&text);
    let policy = policy_for(&data, Evaluation::Wasm);
    let mut most = 0;
    for vector in crate::compile::samples(&data) {
        assert_eq!(machine.decide(&vector.input), Some(vector.want), "{:?}", vector.input);
        most = most.max(DECISION_FUEL - machine.store.get_fuel().expect("fuel is on"));
    }
    println!("the longest decision took {most} instructions");
    assert!(most * 4 < TIME_CHECK, "{most} instructions: raise TIME_CHECK and DECISION_FUEL");
    assert!(policy.self_test().is_ok());
}

fn instance(data: &str) -> Instance {
    let module = compile(WASM).expect("compiles");
    let mut store = Store::new(module.engine(), StoreLimitsBuilder::new().build());
    store.limiter(|limits| limits);
    store.set_fuel(LOAD_FUEL).expect("fuel is on");
    store.fuel_async_yield_interval(Some(TIME_CHECK)).expect("fuel is on");
    let data: serde_json::Value = serde_json::from_str(data).expect("JSON");
    let start = async { Runtime::new(&mut store, &module).await?.with_data(&mut store, &data).await };
    let policy = run(LOAD_TIME, start).expect("in time").expect("it starts");
    Instance { store, policy }
}

// covers: B5e
#[test]
fn a_decision_over_its_budget_is_denied_and_the_next_one_is_not() {
    let small = policy_for(&data(CASE_RULES, CASE_WORKLOADS, "node-1").expect("compiles"), Evaluation::Rego);
    // Far more wildcard rules than any compiler lets through: every one is looked at.
    let entries: Vec<_> = (0..60_000)
        .map(|index| serde_json::json!({"suffix": format!(".{index}.example.com"), "port": 443, "rules": []}))
        .collect();
    let text = serde_json::json!({"nova": {"egress": {"service-a": {"suffix": entries}}}}).to_string();
    let rego = [("authz.rego".to_owned(), crate::publish::REGO.to_owned())];
    let engines: [Box<dyn Engine>; 2] = [
        Box::new(crate::engine::rego::Rego::new(&rego, &text).expect("it loads")),
        Box::new(Wasm::new(WASM, &manifest(WASM_ENTRY_POINT, WASM_FILE), text).expect("it loads")),
    ];
    let ask = |source: &str| {
        let text = format!(
            r#"{{"direction":"egress","phase":"connect","source":"{source}","dest_host":"a.test","dest_port":443}}"#
        );
        serde_json::from_str(&text).expect("an input")
    };
    for engine in engines {
        let served = std::sync::Arc::new(crate::engine::Served::new(engine));
        let policy = crate::engine::Policy { loaded: std::sync::Arc::clone(&small.loaded), served };
        let mut evaluator = Evaluator::new();
        for _ in 0..2 {
            let over = evaluator.decide(&policy, &ask("service-a"));
            assert_eq!((over.allow, over.reason.as_str()), (false, "engine_error"), "{}", policy.engine_name());
            assert_eq!(evaluator.decide(&policy, &ask("x")).reason.as_str(), "no_grant", "{}", policy.engine_name());
        }
    }
}

#[test]
fn machines_wait_for_the_threads_that_need_them() {
    let data = data(CASE_RULES, CASE_WORKLOADS, "node-1").expect("compiles");
    let policy = policy_for(&data, Evaluation::Wasm);
    let waiting = || policy.served.ready().len();
    assert_eq!(waiting(), 1);
    policy.warm(3).expect("it warms");
    policy.self_test().expect("self-test");
    assert_eq!(waiting(), 3);
    let mut evaluator = Evaluator::new();
    let input = crate::compile::samples(&data).swap_remove(0).input;
    let _ = evaluator.decide(&policy, &input);
    assert_eq!(waiting(), 2);
}
