//! Random rule sets with overlapping ranges, suffixes and prefixes, and hostile peers: regorus, wasm, the native judge
//! behind `explain` and real OPA must agree on every input.

use std::fmt::Write;
use std::time::{Duration, Instant};

use nova_policy::{Decision, Evaluator, Input, explain};
use serde_json::{Value, json};

use crate::opa;
use crate::worlds::{REGO, World, data};

/// Inputs that real OPA is asked.
const INPUTS: usize = 10_000;
const INPUTS_OF_ONE_SET: usize = 200;
/// More than the whole takes on a slow machine; an OPA that hangs must not hang the tests.
const AT_MOST: Duration = Duration::from_secs(300);

/// xorshift64*: the same inputs on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(value).unwrap_or(0) % end
    }

    fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }
}

const WORKLOADS: &str = "
trust_domain: n
endpoints:
- {workload_id: w0, tenant: t, labels: {parity: even}, pod_uid: p0, workload_ip: 10.0.0.1, node: node-1, ports: PORTS}
- {workload_id: w1, tenant: t, labels: {parity: odd}, pod_uid: p1, workload_ip: 10.0.0.2, node: node-1, ports: PORTS}
- {workload_id: w2, tenant: t, labels: {parity: even}, pod_uid: p2, workload_ip: 10.0.0.3, node: node-2, ports: PORTS}
";

const PORTS: &str = "[{name: web, port: 443, mode: mtls, protocol: http}, {name: raw, port: 9000, mode: mtls}, {name: lb, port: 8080, mode: tls, protocol: http}]";
const OWN: [&str; 5] =
    ["workload: w0", "workload: w1", "workload: w2", "labels: {parity: even}", "labels: {parity: odd}"];
const OUTSIDE: [&str; 12] = [
    "external: api.example.com, port: 443",
    "external: '*.example.com', port: 443",
    "external: '*.api.example.com', port: 443",
    "external: a.api.example.com, port: 443",
    "external: '*.b.a.api.example.com', port: 443",
    "cidr: 10.0.0.0/8, port: 443",
    "cidr: 10.1.0.0/16, port: 443",
    "cidr: 10.1.2.0/24, port: 443",
    "cidr: 10.1.2.3/32, port: 443",
    "cidr: 11.0.0.0/8, port: 9000",
    "cidr: 'fd00:1::/32', port: 443",
    "cidr: 'fd00:1::/64', port: 443",
];
/// Callers from outside, each with the port they may come to.
const CALLERS: [(&str, &str); 9] = [
    ("external_ca: p, uri: 'spiffe://partner/*'", "web"),
    ("external_ca: p, uri: 'spiffe://partner/a/*'", "web"),
    ("external_ca: p, uri: spiffe://partner/a/b", "raw"),
    ("external_ca: q, uri: 'spiffe://partner/a/*'", "web"),
    ("external_ca: q, uri: spiffe://partner/a", "web"),
    ("cidr: 10.0.0.0/8", "lb"),
    ("cidr: 10.1.0.0/16", "lb"),
    ("cidr: 10.1.0.1/32", "lb"),
    ("cidr: '::/0'", "lb"),
];
const METHODS: [&str; 4] = ["", "methods: [GET]", "methods: [GET, POST]", "methods: ['*']"];
const PATHS: [&str; 9] = [
    "",
    "paths: ['/**']",
    "paths: [/a, /a/b]",
    "paths: ['/a/**']",
    "paths: ['/a/b/**', /a]",
    "paths: ['/a/*/c']",
    "paths: ['/*/b/**']",
    "paths: ['/*/*/*']",
    "paths: ['/a/**', '*']",
];

fn rules(random: &mut Random) -> String {
    let mut text = "external_cas: [{name: p, pem_file: p}, {name: q, pem_file: q}]\nrules:\n".to_owned();
    for index in 0..=random.below(60) {
        let (from, to, opaque_only) = match random.below(3) {
            0 => {
                let port = *random.pick(&["web", "raw"]);
                (*random.pick(&OWN), format!("{}, port: {port}", random.pick(&OWN)), port == "raw")
            }
            1 => (*random.pick(&OWN), (*random.pick(&OUTSIDE)).to_owned(), false),
            _ => {
                let (from, port) = *random.pick(&CALLERS);
                (from, format!("{}, port: {port}", random.pick(&OWN)), port == "raw")
            }
        };
        let (methods, paths) = (*random.pick(&METHODS), *random.pick(&PATHS));
        let parts: Vec<&str> = [methods, paths].into_iter().filter(|part| !part.is_empty()).collect();
        let http = if opaque_only || parts.is_empty() || random.one_in(3) {
            String::new()
        } else {
            format!(", http: {{{}}}", parts.join(", "))
        };
        let audit = random.one_in(3);
        let _ = writeln!(text, "- {{id: r{index}, tenant: t, from: {{{from}}}, to: {{{to}}}{http}, audit: {audit}}}");
    }
    text
}

const HOSTS: [&str; 18] = [
    "w0.t.nova",
    "w1.t.nova",
    "w2",
    "w0.u.nova",
    "api.example.com",
    "x.example.com",
    "a.api.example.com",
    "b.a.api.example.com",
    "example.com",
    "evilexample.com",
    "api.example.com.evil.org",
    "10.1.2.3",
    "10.1.2.4",
    "10.9.9.9",
    "11.1.2.3",
    "fd00:1::1",
    "fd00:1:0:1::1",
    "10.1.2.3.example.com",
];
/// What a peer says it is, and who vouches for it: ours, each partner, a CA of no rule, and names that look like ours.
const PEERS: [&str; 8] = [
    "spiffe://n/t/t/w/w0",
    "spiffe://n/t/t/w/w1",
    "spiffe://n/t/u/w/w0",
    "spiffe://partner/a",
    "spiffe://partner/a/b",
    "spiffe://partner/ab",
    "spiffe://partnerx/a/b",
    "spiffe://partner/a/b/c",
];
const CAS: [&str; 4] = ["spiffe", "p", "q", "r"];
const SOURCES: [&str; 6] = ["10.1.0.1", "10.1.0.2", "10.9.0.1", "11.0.0.1", "fd00::1", "::1"];
const ASKED_METHODS: [&str; 5] = ["GET", "POST", "DELETE", "get", "*"];
const ASKED_PATHS: [&str; 16] = [
    "/",
    "/a",
    "/a/",
    "/a/b",
    "/a/b/",
    "/a/b/c",
    "/a/x/c",
    "/a/b;v/c",
    "/a/b%3Bv/c",
    "/x/b/c",
    "/x/b/",
    "/x/b",
    "/ab",
    "/A/b",
    "/a%20b",
    "*",
];

fn input(random: &mut Random) -> Input {
    let mut input = if random.one_in(2) {
        json!({
            "direction": "egress",
            "source": random.pick(&["w0", "w1", "w2", "nobody"]),
            "dest_host": random.pick(&HOSTS),
            "dest_port": random.pick(&[443, 443, 443, 9000, 8080]),
        })
    } else {
        let mut input = json!({
            "direction": "ingress",
            "target": random.pick(&["w0", "w1", "w2", "nobody"]),
            "port": random.pick(&["web", "web", "raw", "lb", "none"]),
            "src_ip": random.pick(&SOURCES),
        });
        if !random.one_in(4) {
            input["peer"] = Value::from(*random.pick(&PEERS));
            input["peer_ca"] = Value::from(*random.pick(&CAS));
        }
        input
    };
    match random.below(4) {
        0 => input["phase"] = "connect".into(),
        1 => input["phase"] = "opaque".into(),
        _ => {
            input["phase"] = "request".into();
            input["method"] = Value::from(*random.pick(&ASKED_METHODS));
            input["path"] = Value::from(*random.pick(&ASKED_PATHS));
        }
    }
    serde_json::from_value(input.clone()).unwrap_or_else(|error| panic!("{input}: {error}"))
}

/// Asks `inputs` inputs about random rule sets; `other` gets each set's data first and then answers each input.
fn compare(mut other: impl FnMut(&World, &[Input]) -> Vec<Decision>, inputs: usize, seed: u64) {
    let mut random = Random(seed);
    let workloads = WORKLOADS.replace("PORTS", PORTS);
    let start = Instant::now();
    let (mut asked, mut allowed) = (0, 0);
    while asked < inputs {
        assert!(start.elapsed() < AT_MOST, "{asked} inputs after {AT_MOST:?}");
        let rules = rules(&mut random);
        let world = World::new(data(&rules, &workloads, "node-1"));
        let batch: Vec<Input> = (0..INPUTS_OF_ONE_SET).map(|_| input(&mut random)).collect();
        let (mut rego, mut wasm) = (Evaluator::new(), Evaluator::new());
        for (input, other) in batch.iter().zip(other(&world, &batch)) {
            let shown = || format!("{}\n{rules}", serde_json::to_string(input).unwrap_or_default());
            let native = explain(&world.rego, input).decision;
            assert_eq!(rego.decide(&world.rego, input), native, "regorus and judge: {}", shown());
            assert_eq!(wasm.decide(&world.wasm, input), native, "opa-wasm and judge: {}", shown());
            assert_eq!(other, native, "the other and judge: {}", shown());
            allowed += usize::from(native.allow);
        }
        asked += batch.len();
    }
    println!("{asked} inputs, {allowed} allowed, {:.0} s", start.elapsed().as_secs_f64());
    assert!(
        allowed * 33 > asked && allowed * 2 < asked,
        "{allowed} of {asked} allowed: the generator asks the wrong things"
    );
}

// covers: B5d
#[test]
fn the_engines_agree_on_random_rules_and_hostile_peers() {
    let judge = |world: &World, batch: &[Input]| {
        batch.iter().map(|input| explain(&world.wasm, input).decision).collect::<Vec<_>>()
    };
    compare(judge, INPUTS, 0x6e6f_7661);
}

// covers: B5d
#[test]
fn real_opa_agrees_on_ten_thousand_random_inputs() {
    let Some(program) = opa::program() else { return };
    let dir = tempfile::tempdir().expect("temp dir");
    let server = opa::Server::start(&program, dir.path(), &[REGO]).expect("OPA serves");
    let real = |world: &World, batch: &[Input]| {
        server.client().put_data("nova", &world.data).expect("OPA takes the data");
        let remote = world.rego.with_opa_server(&server.socket);
        let mut evaluator = Evaluator::new();
        batch.iter().map(|input| evaluator.decide(&remote, input)).collect::<Vec<_>>()
    };
    compare(real, INPUTS, 0x6f70_6121);
}
