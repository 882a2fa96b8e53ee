//! Properties over random rule sets: engine and explanation agree, and both ends of a call agree.

#![allow(clippy::panic, reason = "a test that cannot go on")]

use std::fmt::Write;

use nova_proto::ids::SpiffeId;
use proptest::prelude::*;
use proptest::sample::select;

use crate::data::EgressTarget;
use crate::engine::{Evaluator, Policy};
use crate::explain::explain;
use crate::host::Host;
use crate::input::{Input, Peer, Token};
use crate::path::CanonicalPath;
use crate::testing::{data, policy_of};

const WORKLOADS: [&str; 4] = ["w0", "w1", "w2", "w3"];
const PATHS: [&str; 15] = [
    "/",
    "/a",
    "/a/",
    "/a/b",
    "/a/b/c",
    "/a/x/c",
    "/a/b;v/c",
    "/v1/orders/1",
    "/v1/orders",
    "/a%20b",
    "/o.v1.Orders/Get",
    "/a%2Fb",
    "/a/b%2Fc",
    "/a/x%2fy/c",
    "/a%2Fb/c",
];
const METHODS: [&str; 4] = ["GET", "POST", "DELETE", "get"];

/// Two nodes, four workloads; every workload has a port of each legal kind.
fn workloads() -> String {
    let mut text = "trust_domain: n\nendpoints:\n".to_owned();
    for (index, name) in WORKLOADS.iter().enumerate() {
        let _ = write!(
            text,
            "- workload_id: {name}\n  tenant: t\n  labels: {{parity: p{}}}\n  pod_uid: pod-{index}\n  workload_ip: 10.0.0.{}\n  node: node-{}\n  ports:\n  - {{name: web, port: 443, mode: mtls, protocol: http}}\n  - {{name: raw, port: 9000, mode: mtls}}\n  - {{name: lb, port: 8080, mode: tls, protocol: http}}\n  - {{name: rpc, port: 50051, mode: mtls, protocol: grpc}}\n",
            index % 2,
            index + 1,
            index % 2,
        );
    }
    text
}

#[derive(Debug, Clone)]
struct RuleText {
    from: String,
    to: String,
    http: String,
    audit: bool,
}

fn workload_side() -> impl Strategy<Value = String> {
    prop_oneof![
        select(&WORKLOADS[..]).prop_map(|name| format!("workload: {name}")),
        select(vec!["p0", "p1"]).prop_map(|parity| format!("labels: {{parity: {parity}}}")),
    ]
}

fn http() -> impl Strategy<Value = String> {
    let methods = select(vec!["", "methods: [GET]", "methods: [GET, POST]", "methods: ['*']"]);
    let paths = select(vec![
        "",
        "paths: ['/**']",
        "paths: [/a, /a/b]",
        "paths: ['/a/**']",
        "paths: ['/a/*/c']",
        "paths: ['/*/b/**']",
        "paths: ['/v1/orders/**', '*']",
    ]);
    let slash =
        select(vec!["", "", "encoded_slash: false", "encoded_slash: true", "encoded_slash: true, paths: [/a%2Fb]"]);
    (any::<bool>(), methods, paths, slash).prop_map(|(block, methods, paths, slash)| {
        let paths = if slash.contains("paths") { "" } else { paths };
        let parts: Vec<&str> = [methods, paths, slash].into_iter().filter(|part| !part.is_empty()).collect();
        let upgrade = if methods.is_empty() { ", upgrade: [websocket]" } else { "" };
        if block && !parts.is_empty() { format!(", http: {{{}}}{upgrade}", parts.join(", ")) } else { String::new() }
    })
}

fn rule() -> impl Strategy<Value = RuleText> {
    // All callers live in this range; the question of the other property is asked from elsewhere too.
    let caller =
        (workload_side(), select(vec!["", ", cidr: 10.0.0.0/24"])).prop_map(|(from, at)| format!("{from}{at}"));
    let internal = (caller, workload_side(), select(vec!["web", "raw", "rpc"]), http(), any::<bool>()).prop_map(
        |(from, to, port, http, grpc)| {
            let asked = match port {
                "raw" => String::new(),
                "rpc" if grpc => ", grpc: {services: [o.v1.Orders], methods: [Get]}".to_owned(),
                _ => http,
            };
            (from, format!("{to}, port: {port}"), asked)
        },
    );
    let outside = select(vec![
        "external: api.example.com, port: 443",
        "external: '*.example.com', port: 443",
        "external: '*.api.example.com', port: 443",
        "cidr: 10.0.0.0/8, port: 443",
        "cidr: 10.1.0.0/16, port: 443",
        "cidr: 'fd00:1::/32', port: 443",
        "external: via.example.com, port: 443, via: corp",
        "cidr: 10.1.0.0/16, protocol: icmp",
    ]);
    let egress = (workload_side(), outside, http()).prop_map(|(from, to, http)| {
        let asked = if to.contains("icmp") { ", icmp: {types: [echo], rate_per_s: 1}".to_owned() } else { http };
        (from, to.to_owned(), asked)
    });
    let caller = select(vec![
        ("external_ca: p, uri: 'spiffe://partner/*'", "web"),
        ("external_ca: p, uri: spiffe://partner/a", "web"),
        ("external_ca: q, uri: 'spiffe://partner/a/*'", "web"),
        ("cidr: 10.0.0.0/8", "lb"),
        ("cidr: 10.1.0.0/16", "lb"),
        ("external_ca: p, uri: 'spiffe://partner/*', cidr: 10.1.0.0/16", "web"),
        ("external_ca: p, dns: '*.partner.example'", "web"),
        ("external_ca: p, cn: Robot", "raw"),
        ("jwt: {issuer: i, subject: s}", "lb"),
        ("cidr: 10.0.0.0/8, jwt: {issuer: i, claims: {role: [a, b]}}", "lb"),
    ]);
    let ingress = (caller, workload_side(), http()).prop_map(|((from, port), to, http)| {
        let http = if port == "raw" { String::new() } else { http };
        (from.to_owned(), format!("{to}, port: {port}"), http)
    });
    (prop_oneof![internal, egress, ingress], prop::bool::weighted(0.3)).prop_map(|((from, to, http), audit)| RuleText {
        from,
        to,
        http,
        audit,
    })
}

fn rules_text(rules: &[RuleText]) -> String {
    let mut text = "external_cas: [{name: p, pem_file: p}, {name: q, pem_file: q}]\nrules:\n".to_owned();
    if rules.is_empty() {
        return text.replace("rules:\n", "rules: []\n");
    }
    for (index, rule) in rules.iter().enumerate() {
        let RuleText { from, to, http, audit } = rule;
        let _ = writeln!(text, "- {{id: r{index}, tenant: t, from: {{{from}}}, to: {{{to}}}{http}, audit: {audit}}}");
    }
    text
}

fn host(text: &str) -> Host {
    Host::parse(text).expect(text)
}

/// Every pair worth asking about, hostile ones included.
fn pairs() -> Vec<Input> {
    let mut all = Vec::new();
    let names = [
        "w0.t.nova",
        "w1",
        "w2.t.nova",
        "w3",
        "api.example.com",
        "x.example.com",
        "a.api.example.com",
        "example.com",
        "evilexample.com",
        "10.1.2.3",
        "10.9.9.9",
        "fd00:1::1",
        "w0.u.nova",
        "10.1.2.3.example.com",
        "via.example.com",
    ];
    for source in ["w0", "w1", "nobody"] {
        for name in names {
            for port in [443, 9000, 8080] {
                all.push(Input::egress_connect(source, &host(name), port));
            }
        }
        for kind in ["echo", "redirect"] {
            all.extend([[10, 1, 2, 3], [10, 9, 9, 9]].map(|to| Input::egress_icmp(source, to.into(), kind)));
        }
    }
    let id = |text: &str| SpiffeId::new(text).expect(text);
    let peers = [
        Peer::Anonymous,
        Peer::Own(id("spiffe://n/t/t/w/w0")),
        Peer::Own(id("spiffe://n/t/t/w/w1")),
        Peer::Own(id("spiffe://n/t/u/w/w1")),
        Peer::Own(id("spiffe://partner/a")),
        Peer::External { ca: "p".into(), id: id("spiffe://n/t/t/w/w0") },
        Peer::External { ca: "p".into(), id: id("spiffe://partner/a") },
        Peer::External { ca: "q".into(), id: id("spiffe://partner/a/b") },
        Peer::External { ca: "r".into(), id: id("spiffe://partner/a") },
        named("p", "a.partner.example", "Robot"),
        named("q", "partner.example", "Robot"),
    ];
    for target in ["w0", "w1", "nobody"] {
        for port in ["web", "raw", "lb", "rpc", "none"] {
            for peer in &peers {
                for address in [[10, 1, 0, 1], [10, 9, 0, 1], [192, 0, 2, 1]] {
                    all.push(Input::ingress_connect(target, port, peer, address.into()));
                }
            }
        }
    }
    all
}

fn named(ca: &str, dns: &str, cn: &str) -> Peer {
    Peer::Named { ca: ca.into(), id: None, dns: vec![host(dns)], cn: Some(cn.into()) }
}

/// All three phases. ICMP messages are no requests.
fn asked(pair: &Input, method: &str, path: &str) -> Vec<Input> {
    let path = CanonicalPath::parse(path.as_bytes()).expect(path);
    let request = Some(pair.request(method, &path)).filter(|_| pair.icmp().is_none());
    [pair.connect(), pair.opaque()].into_iter().chain(request).collect()
}

/// The same with what a request may bring along, one thing at a time.
fn with_more(input: Input, turn: usize) -> Input {
    let token = |subject: &str, role: &str| {
        let claims = [("role".into(), vec![role.into()])].into_iter().collect();
        std::sync::Arc::new(Token { issuer: "i".into(), subject: Some(subject.into()), claims })
    };
    match turn % 6 {
        0 => input.with_upgrade("websocket"),
        1 => input.with_upgrade("h2c"),
        2 => input.with_abilities(["via".into()]),
        3 => input.with_token(token("s", "z")),
        4 => input.with_token(token("z", "b")),
        _ => input,
    }
}

fn asks_with_a_slash(input: &Input) -> bool {
    input.path().is_some_and(|path| path.contains("%2F"))
}

fn load(rules: &[RuleText], node: &str) -> Policy {
    match data(&rules_text(rules), &workloads(), node) {
        Ok(data) => policy_of(&data),
        Err(report) => panic!("{}\n{report}", rules_text(rules)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    // covers: A5b
    #[test]
    fn the_explanation_says_what_the_engine_says(
        rules in prop::collection::vec(rule(), 0..10), seed in any::<u64>(),
    ) {
        let policy = load(&rules, "node-0");
        policy.self_test().map_err(|error| TestCaseError::fail(error.to_string()))?;
        let mut evaluator = Evaluator::new();
        let mut turn = usize::try_from(seed % 1_000_003).unwrap_or(0);
        for pair in pairs() {
            turn += 1;
            for input in asked(&pair, METHODS[turn % METHODS.len()], PATHS[turn % PATHS.len()]) {
                let input = with_more(input, turn / 7);
                let explained = explain(&policy, &input);
                let decided = evaluator.decide(&policy, &input);
                prop_assert_eq!(&explained.decision, &decided, "{:?}\n{}", input, rules_text(&rules));
                let any_match = explained.rules.iter().any(|rule| rule.matches);
                prop_assert_eq!(any_match, decided.allow && !decided.would_deny, "{}", explained);
                let accepted = rules_text(&rules).contains("encoded_slash: true");
                prop_assert!(accepted || !asks_with_a_slash(&input) || !decided.allow, "{}", explained);
            }
        }
    }

    // covers: A5b, B2a
    #[test]
    fn the_callers_egress_and_the_callees_ingress_agree(
        rules in prop::collection::vec(rule(), 0..10),
        method in select(&METHODS[..]), path in select(&PATHS[..]),
    ) {
        let nodes = [load(&rules, "node-0"), load(&rules, "node-1")];
        let mut evaluator = Evaluator::new();
        for (from, source) in WORKLOADS.iter().enumerate() {
            for (to, target) in WORKLOADS.iter().enumerate() {
                for (port, name) in [(443, "web"), (9000, "raw"), (50051, "rpc")] {
                    let peer = Peer::Own(SpiffeId::new(format!("spiffe://n/t/t/w/{source}")).expect("valid"));
                    let callee = host(&format!("{target}.t.nova"));
                    let out = asked(&Input::egress_connect(*source, &callee, port), method, path);
                    let inward = Input::ingress_connect(*target, name, &peer, [10, 0, 0, 1].into());
                    for (out, inward) in out.iter().zip(asked(&inward, method, path)) {
                        let egress = evaluator.decide(&nodes[from % 2], out);
                        let ingress = evaluator.decide(&nodes[to % 2], &inward);
                        prop_assert_eq!(&egress, &ingress, "{:?}\n{}", out, rules_text(&rules));
                        if egress.allow && !egress.rule_id.is_empty() {
                            let leads = nodes[from % 2].egress_target(source, &egress.rule_id, &callee, port);
                            let is_callee = matches!(
                                leads,
                                Some(EgressTarget::Workload { workload, port_name, .. })
                                    if workload == target && port_name == name
                            );
                            prop_assert!(is_callee, "{:?}", leads);
                        }
                    }
                }
            }
        }
    }
}
