//! Random rule sets.

use std::fmt::Write;

use crate::generator::Random;

/// The table of all rule sets.
pub(crate) fn workloads() -> String {
    WORKLOADS.replace("PORTS", PORTS)
}

const WORKLOADS: &str = "
trust_domain: n
endpoints:
- {workload_id: w0, tenant: t, labels: {parity: even}, pod_uid: p0, workload_ip: 10.0.0.1, node: node-1, ports: PORTS}
- {workload_id: w1, tenant: t, labels: {parity: odd}, pod_uid: p1, workload_ip: 10.0.0.2, node: node-1, ports: PORTS}
- {workload_id: w2, tenant: t, labels: {parity: even}, pod_uid: p2, workload_ip: 10.0.0.3, node: node-2, ports: PORTS}
";

const PORTS: &str = "[{name: web, port: 443, mode: mtls, protocol: http}, {name: raw, port: 9000, mode: mtls}, {name: lb, port: 8080, mode: tls, protocol: http}, {name: rpc, port: 50051, mode: mtls, protocol: grpc}, {name: api, port: 8443, mode: tls, protocol: grpc}]";
const OWN: [&str; 5] =
    ["workload: w0", "workload: w1", "workload: w2", "labels: {parity: even}", "labels: {parity: odd}"];
/// What may stand beside a caller as one more condition.
const PLACES: [&str; 3] = ["", ", cidr: 10.1.0.0/16", ", cidr: 'fd00::/16'"];
const OUTSIDE: [&str; 18] = [
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
    VIA,
    "external: '*.via.example.com', port: 443",
    RPC,
    "cidr: 10.0.0.0/8, protocol: icmp",
    "cidr: 10.1.2.0/24, protocol: icmp",
    "cidr: 'fd00:1::/32', protocol: icmp",
];
/// A host behind a parent proxy, below wildcards that go there directly.
const VIA: &str = "external: a.via.example.com, port: 443, via: corp";
/// A host that gRPC is spoken with; `grpc` and `http` do not go together there.
const RPC: &str = "external: rpc.example.com, port: 443";
/// Callers from outside, each with the port they may come to.
const CALLERS: [(&str, &str); 19] = [
    ("external_ca: p, uri: 'spiffe://partner/*'", "web"),
    ("external_ca: p, uri: 'spiffe://partner/a/*'", "web"),
    ("external_ca: p, uri: spiffe://partner/a/b", "raw"),
    ("external_ca: q, uri: 'spiffe://partner/a/*'", "web"),
    ("external_ca: q, uri: spiffe://partner/a", "web"),
    ("cidr: 10.0.0.0/8", "lb"),
    ("cidr: 10.1.0.0/16", "lb"),
    ("cidr: 10.1.0.1/32", "lb"),
    ("cidr: '::/0'", "lb"),
    ("external_ca: p, uri: 'spiffe://partner/*', cidr: 10.1.0.0/16", "web"),
    ("external_ca: p, dns: one.partner.example", "web"),
    ("external_ca: p, dns: '*.partner.example'", "rpc"),
    ("external_ca: q, dns: '*.partner.example', cidr: 10.1.0.0/32", "web"),
    ("external_ca: p, cn: Robot", "raw"),
    ("external_ca: q, cn: one.partner.example", "web"),
    ("jwt: {issuer: i, subject: s}", "lb"),
    ("jwt: {issuer: i, claims: {role: [a, b]}}", "api"),
    ("jwt: {issuer: j, subject: s, claims: {role: a, team: [c]}}", "lb"),
    ("cidr: 10.0.0.0/8, jwt: {issuer: j, claims: {role: a}}", "lb"),
];
const GRPC: [&str; 3] = [
    "services: [o.v1.Orders]",
    "services: [o.v1.Orders], methods: [Get]",
    "services: [o.v1.Orders, o.v1.Admin], methods: [Get, List]",
];
const METHODS: [&str; 4] = ["", "methods: [GET]", "methods: [GET, POST]", "methods: ['*']"];
const PATHS: [&str; 11] = [
    "",
    "paths: ['/**']",
    "paths: [/a, /a/b]",
    "paths: ['/a/**']",
    "paths: ['/a/b/**', /a]",
    "paths: ['/a/*/c']",
    "paths: ['/*/b/**']",
    "paths: ['/*/*/*']",
    "paths: ['/a/**', '*']",
    "paths: ['/*']",
    "paths: ['/*/**']",
];

/// Whether paths with an escaped slash match, and may be named.
const SLASHES: [&str; 4] =
    ["", "encoded_slash: false", "encoded_slash: true", "encoded_slash: true, paths: ['/a%2Fb', '/a%2Fb/**']"];

/// A rule set.
pub(crate) fn rules(random: &mut Random) -> String {
    let mut text = "external_cas: [{name: p, pem_file: p}, {name: q, pem_file: q}]\nrules:\n".to_owned();
    for index in 0..=random.below(60) {
        let (from, to, port) = match random.below(3) {
            0 => {
                let port = *random.pick(&["web", "raw", "rpc"]);
                let from = format!("{}{}", random.pick(&OWN), random.pick(&PLACES));
                (from, format!("{}, port: {port}", random.pick(&OWN)), port)
            }
            1 => ((*random.pick(&OWN)).to_owned(), (*random.pick(&OUTSIDE)).to_owned(), ""),
            _ => {
                let (from, port) = *random.pick(&CALLERS);
                (from.to_owned(), format!("{}, port: {port}", random.pick(&OWN)), port)
            }
        };
        let asked = requests(random, &to, port);
        let audit = random.one_in(3);
        let _ = writeln!(text, "- {{id: r{index}, tenant: t, from: {{{from}}}, to: {{{to}}}{asked}, audit: {audit}}}");
    }
    text
}

/// What a rule says about requests, where anything may be said.
fn requests(random: &mut Random, to: &str, port: &str) -> String {
    if to.contains("icmp") {
        return ", icmp: {types: [echo], rate_per_s: 5}".to_owned();
    }
    if to == RPC || (matches!(port, "rpc" | "api") && random.one_in(2)) {
        return format!(", grpc: {{{}}}", random.pick(&GRPC));
    }
    let (methods, paths, slash) = (*random.pick(&METHODS), *random.pick(&PATHS), *random.pick(&SLASHES));
    let paths = if slash.contains("paths") { "" } else { paths };
    let parts: Vec<&str> = [methods, paths, slash].into_iter().filter(|part| !part.is_empty()).collect();
    if port == "raw" || parts.is_empty() || random.one_in(3) {
        return String::new();
    }
    let upgrade = if random.one_in(3) { ", upgrade: [websocket]" } else { "" };
    format!(", http: {{{}}}{upgrade}", parts.join(", "))
}
