//! The gate on pairs of bundles that differ in one thing.

#![allow(clippy::panic, reason = "a test that cannot go on")]

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::bundle::{Claims, KeyPair, SigningKey, VerifyKeys, build, dangerous_unverified};
use crate::publish::REGO;
use crate::testing;

mod approval;
mod roads;
mod rows;

const WORKLOADS: &str = "
trust_domain: n
endpoints:
  - {workload_id: x, tenant: t, labels: {app: x}, pod_uid: pod-x, workload_ip: 10.64.3.11}
  - {workload_id: y, tenant: t, labels: {app: y}, pod_uid: pod-y, workload_ip: 10.64.3.12}
  - {workload_id: z, tenant: t, labels: {app: raw}, pod_uid: pod-z, workload_ip: 10.64.3.13}
  - workload_id: service-a
    tenant: t
    pod_uid: pod-a
    workload_ip: 10.64.3.21
    ports:
      - {name: https, port: 443, target_port: 8080, mode: mtls, protocol: http}
      - {name: raw, port: 5432, mode: mtls, protocol: tcp}
      - {name: health, port: 8081, mode: tls, protocol: http}
      - {name: spare, port: 9000, mode: mtls, protocol: tcp}
  - workload_id: far
    tenant: t
    node: node-2
    pod_uid: pod-far
    workload_ip: 10.64.4.21
    ports: [{name: https, port: 443, mode: mtls, protocol: http}]
";

/// Rules that are in both bundles.
const BASE: &str = "
external_cas: [{name: partner-ca, pem_file: partner.pem}]
credentials:
  - {name: stripe-live, form: bearer, hosts: [api.example.com, api.stripe.com], owner: security}
  - {name: stripe-test, form: bearer, hosts: [api.example.com], owner: security}
rules:
  - {id: x-to-a, tenant: t, from: {workload: x}, to: {workload: service-a, port: https}, http: {methods: [GET], paths: [/v1/orders]}}
  - {id: x-to-raw, tenant: t, from: {workload: x}, to: {workload: service-a, port: raw}}
  - {id: x-to-far, tenant: t, from: {workload: x}, to: {workload: far, port: https}, http: {methods: [GET], paths: [/f]}}
  - {id: x-out, tenant: t, from: {workload: x}, to: {external: api.example.com, port: 443}, http: {methods: [GET], paths: [/status]}}
  - {id: lb, tenant: t, from: {cidr: 10.64.0.0/16}, to: {workload: service-a, port: health}, http: {methods: [GET], paths: [/healthz]}}
  - {id: partner, tenant: t, from: {external_ca: partner-ca, uri: \"spiffe://partner/a/*\"}, to: {workload: service-a, port: https}, http: {methods: [GET], paths: [/p]}}
  - {id: by-label, tenant: t, from: {labels: {app: raw}}, to: {workload: service-a, port: raw}}
";

/// A bundle to be made: the base, and what differs.
#[derive(Clone)]
struct Doc {
    rules: String,
    workloads: String,
    change: fn(&mut Value),
    rego: String,
}

fn same() -> Doc {
    Doc { rules: BASE.to_owned(), workloads: WORKLOADS.to_owned(), change: |_| {}, rego: REGO.to_owned() }
}

/// The base with one text of the rules replaced.
fn edit(from: &str, to: &str) -> Doc {
    same().edit(from, to)
}

/// The base with one more rule.
fn more(rule: &str) -> Doc {
    same().more(rule)
}

/// The base with one text of the workloads replaced.
fn place(from: &str, to: &str) -> Doc {
    assert!(WORKLOADS.contains(from), "{from:?} is not in the workloads");
    Doc { workloads: WORKLOADS.replacen(from, to, 1), ..same() }
}

/// The base with its compiled data changed, as no compiler would.
fn raw(change: fn(&mut Value)) -> Doc {
    Doc { change, ..same() }
}

impl Doc {
    fn edit(mut self, from: &str, to: &str) -> Self {
        assert!(self.rules.contains(from), "{from:?} is not in the rules");
        self.rules = self.rules.replacen(from, to, 1);
        self
    }

    fn more(mut self, rule: &str) -> Self {
        self.rules = format!("{}  - {rule}\n", self.rules);
        self
    }

    /// One more rule in front of all others.
    fn first(self, rule: &str) -> Self {
        self.edit("\nrules:\n", &format!("\nrules:\n  - {rule}\n"))
    }

    fn without(mut self, rule: &str) -> Self {
        let (id, before) = (format!("{{id: {rule},"), self.rules.lines().count());
        self.rules = self.rules.lines().filter(|line| !line.contains(&id)).collect::<Vec<_>>().join("\n") + "\n";
        assert_eq!(self.rules.lines().count() + 1, before, "{rule}");
        self
    }

    fn data(&self) -> Value {
        let mut data = match testing::data(&self.rules, &self.workloads, "node-1") {
            Ok(data) => serde_json::to_value(data).expect("data has a JSON form"),
            Err(report) => panic!("the fixture has mistakes:\n{report}"),
        };
        (self.change)(&mut data);
        data
    }
}

fn base() -> Value {
    same().data()
}

struct Signer {
    key: SigningKey,
    keys: VerifyKeys,
    pem: String,
    id: &'static str,
}

fn signer(id: &'static str) -> Signer {
    let pair = KeyPair::es256().expect("a key");
    let mut keys = VerifyKeys::default();
    keys.insert(id, pair.algorithm, &pair.public_pem);
    Signer { key: SigningKey::from_pem(pair.private_pem.as_bytes()).expect("a key"), keys, pem: pair.private_pem, id }
}

fn packed(data: &Value, rego: &str, serial: u64, signer: &Signer) -> Vec<u8> {
    let manifest = json!({"revision": format!("node-1@{serial}"), "roots": ["nova"], "rego_version": 1,
        "metadata": {"serial": serial, "expires": 4_000_000_000_u64, "node": "node-1"}});
    let files = BTreeMap::from([
        (".manifest".to_owned(), manifest.to_string().into_bytes()),
        ("data.json".to_owned(), json!({"nova": data}).to_string().into_bytes()),
        ("nova/authz.rego".to_owned(), rego.as_bytes().to_vec()),
    ]);
    let claims = Claims { key_id: signer.id, scope: "node-1", issued_at: 1, expires: Some(4_000_000_000) };
    build(&files, &signer.key, &claims).expect("a bundle")
}

fn opened(data: &Value, rego: &str, serial: u64) -> VerifiedBundle {
    dangerous_unverified(&packed(data, rego, serial, &signer("author"))).expect("a bundle")
}

/// What the gate says about the step from `live` to `next`.
fn risks(live: &Doc, next: &Doc, in_use: Option<&str>) -> Vec<Risk> {
    let in_use = in_use.map(|text| InUse::parse(text).expect("in use"));
    let (live, next) = (opened(&live.data(), &live.rego, 5), opened(&next.data(), &next.rego, 6));
    compare(&live, &next, in_use.as_ref()).expect("comparable").risks
}

fn kinds(live: &Doc, next: &Doc) -> Vec<&'static str> {
    named(&risks(live, next, None))
}

fn named(risks: &[Risk]) -> Vec<&'static str> {
    let mut kinds: Vec<_> = risks.iter().map(|risk| risk.kind.as_str()).collect();
    kinds.dedup();
    kinds
}
