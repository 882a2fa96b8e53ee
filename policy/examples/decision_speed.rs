//! What one decision takes on each engine, at 1,000 workloads with 20 rules each on one node:
//! `cargo run --release -p nova-policy --example decision_speed [-- PATH-OF-OPA]`.
//!
//! Prints a table with one row for each engine.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use nova_policy::bundle::KeyPair;
use nova_policy::engine::OpaClient;
use nova_policy::host::Host;
use nova_policy::path::CanonicalPath;
use nova_policy::publish::{Evaluation, Publish, bundle_for};
use nova_policy::{Evaluator, Input, NodeData, Policy, SigningKey, VerifyKeys, VerifyOptions, verify};
use serde_json::{Map, Value, json};

const WORKLOADS: usize = 1_000;
/// Of the 20 rules of a workload: 12 to other workloads, 5 to names outside, 1 wildcard, 2 ranges.
const PEERS: usize = 12;
const INPUTS: usize = 10_000;
const ROUNDS: usize = 3;
const NOW: u64 = 1_800_000_000;

fn main() -> anyhow::Result<()> {
    let data = data()?;
    let inputs = inputs()?;
    println!("| engine | p50 | p99 | mean | load | machine of a thread |\n|---|---:|---:|---:|---:|---:|");
    for evaluation in [Evaluation::Rego, Evaluation::Wasm] {
        let bundle = sign(&data, evaluation)?;
        let before = resident()?;
        let start = Instant::now();
        let policy = load(&bundle, &data.node)?;
        let loaded = start.elapsed();
        let between = resident()?;
        let start = Instant::now();
        policy.warm(2)?;
        let warmed = start.elapsed();
        let after = resident()?;
        let times = measure(&policy, &inputs, INPUTS);
        row(policy.engine_name(), &times, loaded, warmed, (between - before, after - between));
    }
    if let Some(program) = std::env::args().nth(1) {
        let policy = load(&sign(&data, Evaluation::Rego)?, &data.node)?;
        let dir = std::env::temp_dir().join(format!("nova-decision-speed-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let done = with_server(&program, &dir, &data, &policy, &inputs);
        std::fs::remove_dir_all(&dir)?;
        done?;
    }
    Ok(())
}

fn measure(policy: &Policy, inputs: &[Input], count: usize) -> Vec<Duration> {
    let mut evaluator = Evaluator::new();
    let mut times = Vec::new();
    let mut allowed = 0;
    for _ in 0..ROUNDS {
        for input in inputs.iter().take(count) {
            let start = Instant::now();
            let decision = evaluator.decide(policy, input);
            times.push(start.elapsed());
            allowed += usize::from(decision.allow);
        }
    }
    eprintln!("{}: {:.0} % allowed", policy.engine_name(), 100.0 * allowed as f64 / times.len() as f64);
    times.sort();
    times
}

fn row(name: &str, times: &[Duration], loaded: Duration, warmed: Duration, memory: (i64, i64)) {
    let micros = |time: Duration| time.as_nanos() as f64 / 1000.0;
    let at = |part: f64| micros(times[((times.len() - 1) as f64 * part) as usize]);
    let mean = micros(times.iter().sum::<Duration>()) / times.len() as f64;
    println!(
        "| {name} | {:.1} us | {:.1} us | {mean:.1} us | {} ms, {} MB | {:.1} ms, {} MB |",
        at(0.5),
        at(0.99),
        loaded.as_millis(),
        memory.0,
        warmed.as_nanos() as f64 / 1e6,
        memory.1
    );
}

fn with_server(program: &str, dir: &Path, data: &NodeData, policy: &Policy, inputs: &[Input]) -> anyhow::Result<()> {
    let socket = dir.join("opa.sock");
    let rego = dir.join("authz.rego");
    std::fs::write(&rego, nova_policy::publish::REGO)?;
    let mut server = Command::new(program)
        .args(["run", "--server", "--skip-version-check", "--log-level", "error", "--addr"])
        .arg(format!("unix://{}", socket.display()))
        .arg(&rego)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context(program.to_owned())?;
    let measured = ask_server(&socket, data, policy, inputs);
    server.kill()?;
    server.wait()?;
    let times = measured?;
    row("OPA server, Unix socket", &times, Duration::ZERO, Duration::ZERO, (0, 0));
    Ok(())
}

fn ask_server(socket: &Path, data: &NodeData, policy: &Policy, inputs: &[Input]) -> anyhow::Result<Vec<Duration>> {
    let end = Instant::now() + Duration::from_secs(10);
    let mut client = loop {
        match OpaClient::connect(socket) {
            Ok(client) => break client,
            Err(error) if Instant::now() > end => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    client.put_data("nova", data)?;
    Ok(measure(&policy.with_opa_server(socket), inputs, INPUTS / 10))
}

fn load(bundle: &[u8], node: &str) -> anyhow::Result<Policy> {
    let mut keys = VerifyKeys::default();
    let pair = pair()?;
    keys.insert("k", pair.algorithm, &pair.public_pem);
    let options = VerifyOptions { keys: &keys, key_id: None, scope: node, now: NOW, stale_grace: 0, newer_than: None };
    Ok(Policy::load(verify(bundle, &options)?)?)
}

fn sign(data: &NodeData, evaluation: Evaluation) -> anyhow::Result<Vec<u8>> {
    let key = SigningKey::from_pem(pair()?.private_pem.as_bytes())?;
    Ok(bundle_for(data, evaluation, &Publish { key: &key, key_id: "k", serial: 1, now: NOW, expires_in: 60 })?)
}

fn pair() -> anyhow::Result<&'static KeyPair> {
    static PAIR: std::sync::OnceLock<Option<KeyPair>> = std::sync::OnceLock::new();
    PAIR.get_or_init(|| KeyPair::eddsa().ok()).as_ref().context("no key")
}

/// Resident memory in MB.
fn resident() -> anyhow::Result<i64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: i64 = text.split(' ').nth(1).context("statm")?.parse()?;
    Ok(pages * 4096 / 1_000_000)
}

fn id(workload: usize) -> String {
    format!("spiffe://n/t/t/w/w{workload}")
}

/// Who `workload` may call.
fn callee(workload: usize, rule: usize) -> usize {
    (workload * 7 + rule * 83 + 1) % WORKLOADS
}

fn rule(workload: usize, rule: usize) -> Value {
    json!({
        "id": format!("w{workload}-{rule}"),
        "rank": workload * 20 + rule,
        "methods": {"GET": true, "POST": true},
        "exact": {"/healthz": true},
        "prefix": ["/v1/orders/", "/v1/items/"],
        "segs": [["v1", "*", "detail"]],
    })
}

/// The data of a node with all workloads on it, as the compiler would write it.
fn data() -> anyhow::Result<NodeData> {
    let (mut egress, mut workloads) = (Map::new(), Map::new());
    let mut peers: Vec<Map<String, Value>> = vec![Map::new(); WORKLOADS];
    for workload in 0..WORKLOADS {
        let mut exact = Map::new();
        for number in 0..PEERS {
            let to = callee(workload, number);
            exact.insert(format!("w{to}.t.nova:443"), json!([rule(workload, number)]));
            peers[to].insert(id(workload), json!([rule(workload, number)]));
        }
        for number in PEERS..17 {
            exact.insert(format!("api{number}.example.com:443"), json!([rule(workload, number)]));
        }
        let suffix = json!([{"suffix": ".wild.example.com", "port": 443, "rules": [rule(workload, 17)]}]);
        let cidr = json!([
            {"cidr": "10.1.0.0/16", "port": 5432, "rules": [rule(workload, 18)]},
            {"cidr": "10.2.0.0/16", "port": 5432, "rules": [rule(workload, 19)]},
        ]);
        egress.insert(format!("w{workload}"), json!({"exact": exact, "suffix": suffix, "cidr": cidr}));
        workloads.insert(format!("w{workload}"), json!({"tenant": "t", "spiffe_id": id(workload)}));
    }
    let ingress: Map<String, Value> =
        peers.into_iter().enumerate().map(|(to, peer)| (format!("w{to}"), json!({"https": {"peer": peer}}))).collect();
    Ok(serde_json::from_value(json!({
        "schema": nova_policy::data::SCHEMA, "node": "node-1", "trust_domain": "n", "egress": egress, "ingress": ingress,
        "targets": {}, "workloads": workloads, "external_cas": {},
    }))?)
}

/// Requests in both directions, seven of ten allowed, in an order that no cache likes.
fn inputs() -> anyhow::Result<Vec<Input>> {
    let path = |text: &str| CanonicalPath::parse(text.as_bytes()).context("a path");
    let (good, segments, bad) = (path("/v1/orders/42")?, path("/v1/77/detail")?, path("/v2/orders/42")?);
    let mut inputs = Vec::new();
    for number in 0..INPUTS {
        let workload = number * 7_919 % WORKLOADS;
        let to = callee(workload, number % PEERS);
        let source = format!("w{workload}");
        let path = if number % 3 == 0 { &segments } else { &good };
        let peer = nova_policy::Peer::Own(nova_proto::ids::SpiffeId::new(id(workload))?);
        let inward = Input::ingress_connect(format!("w{to}"), "https", &peer, [10, 0, 0, 1].into());
        inputs.push(match number % 10 {
            0..3 => Input::egress_request(source, &Host::parse(&format!("w{to}.t.nova"))?, 443, "GET", path),
            3 => Input::egress_request(source, &Host::parse("api13.example.com")?, 443, "POST", path),
            4 => Input::egress_request(source, &Host::parse("a.wild.example.com")?, 443, "GET", path),
            5..7 => inward.request("GET", path),
            7 => inward.request("GET", &bad),
            8 => Input::egress_request(source, &Host::parse("w0.u.nova")?, 443, "GET", path),
            _ => Input::egress_request(source, &Host::parse(&format!("w{to}.t.nova"))?, 443, "DELETE", path),
        });
    }
    Ok(inputs)
}
