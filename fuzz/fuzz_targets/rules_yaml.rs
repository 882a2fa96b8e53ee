//! Any text as rules and as a workload table: mistakes are reported with a place, and what compiles has one rank per rule.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use nova_policy::compile::{Options, SourceText, compile_texts};

const WORKLOADS: &str = include_str!("../../policy/tests/data/decision-workloads.yaml");

fuzz_target!(|text: &str| {
    let options = Options { node: "node-1".to_owned(), lab: false };
    let load = |_: &str| Ok(include_bytes!("../../policy/tests/data/partner-ca.pem").to_vec());
    let table = SourceText { file: "endpoints.yaml", text: WORKLOADS };
    match compile_texts(SourceText { file: "rules.yaml", text }, table, &options, &load) {
        Err(report) => assert!(!report.is_empty() && report.to_string().len() < 4 << 20),
        Ok(data) => {
            let mut ranks = BTreeMap::new();
            for rule in data.egress.values().flat_map(|egress| egress.exact.values().flatten()) {
                let id = ranks.entry(rule.rank).or_insert(&rule.id);
                assert_eq!(*id, &rule.id, "two rules of one rank");
            }
        }
    }
    let _ = nova_policy::workloads::parse("endpoints.yaml", text);
});
