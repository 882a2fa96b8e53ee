//! How long 10,000 rules over 1,000 workloads take for all of 100 nodes, from text to data:
//!     cargo run --release -p nova-policy --example compile_speed

use std::fmt::Write;
use std::time::Instant;

use nova_policy::{compile, rules, workloads};

const NODES: usize = 100;
const WORKLOADS: usize = 1_000;
const RULES: usize = 10_000;

fn table() -> String {
    let mut text = "trust_domain: prod.example\nendpoints:\n".to_owned();
    for index in 0..WORKLOADS {
        let (node, high, low) = (index % NODES, index / 250, index % 250 + 1);
        let _ = writeln!(
            text,
            "- {{workload_id: w{index}, tenant: t, labels: {{team: t{}}}, pod_uid: p{index}, workload_ip: 10.0.{high}.{low}, node: node-{node}, ports: [{{name: web, port: 443, mode: mtls, protocol: http}}]}}",
            index % 250
        );
    }
    text
}

fn rule_file() -> String {
    let mut text = "rules:\n".to_owned();
    for index in 0..RULES {
        let (from, to) = (index % WORKLOADS, (index * 7 + index / WORKLOADS + 1) % WORKLOADS);
        let line = match index % 20 {
            0 => format!("from: {{labels: {{team: t{}}}}}, to: {{workload: w{to}, port: web}}", from % 250),
            1 => format!("from: {{workload: w{from}}}, to: {{external: 'h{index}.example.com', port: 443}}"),
            2 => format!("from: {{workload: w{from}}}, to: {{cidr: 10.20.{}.0/24, port: 5432}}", index % 256),
            _ => format!(
                "from: {{workload: w{from}}}, to: {{workload: w{to}, port: web}}, http: {{methods: [GET, POST], paths: ['/v1/r{index}/**', '/v1/*/detail']}}"
            ),
        };
        let _ = writeln!(text, "- {{id: r{index}, tenant: t, {line}}}");
    }
    text
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (rule_text, table_text) = (rule_file(), table());
    for _ in 0..3 {
        let started = Instant::now();
        let table = workloads::parse("endpoints.yaml", &table_text)?;
        let rules = rules::parse("rules.yaml", &rule_text, false, &|_| Ok(Vec::new()))?;
        let parsed = started.elapsed();
        let nodes = compile::compile_all(&rules, &table)?;
        let compiled = started.elapsed();
        let bytes: usize = nodes.values().map(|data| serde_json::to_vec(data).map_or(0, |json| json.len())).sum();
        println!(
            "{} nodes, {bytes} bytes: parsed in {parsed:?}, compiled after {compiled:?}, written after {:?}",
            nodes.len(),
            started.elapsed()
        );
    }
    Ok(())
}
