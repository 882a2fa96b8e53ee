//! One fixture and one near miss per kind: two rule sets, two workload tables or two data documents that differ in one thing.

#![allow(clippy::panic, reason = "a test that cannot go on")]

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::bundle::{Claims, KeyPair, SigningKey, VerifyKeys, build, dangerous_unverified};
use crate::publish::REGO;
use crate::testing;

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
";

/// Rules that are in both bundles.
const BASE: &str = "
external_cas: [{name: partner-ca, pem_file: partner.pem}]
rules:
  - {id: x-to-a, tenant: t, from: {workload: x}, to: {workload: service-a, port: https}, http: {methods: [GET], paths: [/v1/orders]}}
  - {id: x-to-raw, tenant: t, from: {workload: x}, to: {workload: service-a, port: raw}}
  - {id: x-out, tenant: t, from: {workload: x}, to: {external: api.example.com, port: 443}, http: {methods: [GET], paths: [/status]}}
  - {id: lb, tenant: t, from: {cidr: 10.64.0.0/16}, to: {workload: service-a, port: health}, http: {methods: [GET], paths: [/healthz]}}
  - {id: partner, tenant: t, from: {external_ca: partner-ca, uri: \"spiffe://partner/a/*\"}, to: {workload: service-a, port: https}, http: {methods: [GET], paths: [/p]}}
  - {id: by-label, tenant: t, from: {labels: {app: raw}}, to: {workload: service-a, port: raw}}
";

fn data(rules: &str, workloads: &str) -> Value {
    match testing::data(rules, workloads, "node-1") {
        Ok(data) => serde_json::to_value(data).expect("data has a JSON form"),
        Err(report) => panic!("the fixture has mistakes:\n{report}"),
    }
}

fn base() -> Value {
    data(BASE, WORKLOADS)
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

fn compared(live: &Value, next: &Value, in_use: Option<&str>) -> Result<Comparison, GateError> {
    let signer = signer("author");
    let open = |data, serial| dangerous_unverified(&packed(data, REGO, serial, &signer)).expect("a bundle");
    let in_use = in_use.map(|text| InUse::parse(text).expect("in use"));
    compare(&open(live, 5), &open(next, 6), in_use.as_ref())
}

fn kinds(live: &Value, next: &Value) -> Vec<&'static str> {
    let found = compared(live, next, None).expect("comparable").risks;
    let mut kinds: Vec<_> = found.iter().map(|risk| risk.kind.as_str()).collect();
    kinds.dedup();
    kinds
}

/// What comes of replacing a text in the rules.
fn edited(from: &str, to: &str) -> Vec<&'static str> {
    assert!(BASE.contains(from), "{from:?} is not in the rules");
    kinds(&data(BASE, WORKLOADS), &data(&BASE.replace(from, to), WORKLOADS))
}

fn added(rule: &str) -> Vec<&'static str> {
    kinds(&data(BASE, WORKLOADS), &data(&format!("{BASE}  - {rule}\n"), WORKLOADS))
}

fn placed(from: &str, to: &str) -> Vec<&'static str> {
    assert!(WORKLOADS.contains(from), "{from:?} is not in the workloads");
    kinds(&data(BASE, WORKLOADS), &data(BASE, &WORKLOADS.replace(from, to)))
}

/// What comes of a change of the data.
fn mutated(change: impl Fn(&mut Value)) -> Vec<&'static str> {
    let live = base();
    let mut next = live.clone();
    change(&mut next);
    assert_ne!(live, next, "the fixture must differ");
    kinds(&live, &next)
}

// covers: B9a
#[test]
fn the_same_rules_again_publish_in_any_order_and_under_other_ids() {
    assert!(kinds(&base(), &base()).is_empty());
    assert!(edited("id: x-out,", "id: x-outside,").is_empty(), "a new name for the same grant");
    let mut lines: Vec<&str> = BASE.lines().collect();
    let at = lines.iter().position(|line| line.contains("x-to-a")).expect("there");
    lines.swap(at, at + 1);
    assert!(kinds(&data(BASE, WORKLOADS), &data(&lines.join("\n"), WORKLOADS)).is_empty(), "the order of alike rules");
}

// covers: B9a
#[test]
fn a_new_external_destination_with_a_credential_is_held_and_without_one_published() {
    let rule = "{id: new, tenant: t, from: {workload: x}, to: {external: api.stripe.com, port: 443}, http: {methods: [POST], paths: [/v1/charges]}}";
    assert!(added(rule).is_empty());
    let mut next = data(&format!("{BASE}  - {rule}\n"), WORKLOADS);
    next["egress"]["x"]["exact"]["api.stripe.com:443"][0]["credential"] = json!("stripe-live");
    assert_eq!(kinds(&data(BASE, WORKLOADS), &next), ["new_external_credential"]);
}

// covers: B9a
#[test]
fn a_wildcard_host_is_held_and_a_host_under_the_same_domain_published() {
    let rule = |host: &str| {
        format!(
            "{{id: new, tenant: t, from: {{workload: x}}, to: {{external: {host}, port: 443}}, http: {{methods: [GET], paths: [/a]}}}}"
        )
    };
    assert_eq!(added(&rule("\"*.example.org\"")), ["wildcard_host"]);
    assert!(added(&rule("www.example.org")).is_empty());
}

// covers: B9a
#[test]
fn a_wildcard_path_is_held_and_one_more_path_published() {
    assert_eq!(edited("paths: [/v1/orders]", "paths: [/v1/orders, \"/v1/orders/**\"]"), ["wildcard_path"]);
    assert_eq!(edited("paths: [/v1/orders]", "paths: [/v1/orders, \"/v1/*/detail\"]"), ["wildcard_path"]);
    assert!(edited("paths: [/v1/orders]", "paths: [/v1/orders, /v1/items]").is_empty());
    // A wildcard within one that is there.
    let live = BASE.replace("paths: [/v1/orders]", "paths: [\"/v1/**\"]");
    let next = BASE.replace("paths: [/v1/orders]", "paths: [\"/v1/**\", \"/v1/*/detail\", \"/v1/orders/**\"]");
    assert!(kinds(&data(&live, WORKLOADS), &data(&next, WORKLOADS)).is_empty());
}

// covers: B9a
#[test]
fn a_new_write_method_of_a_pair_is_held_and_a_method_that_reads_published() {
    for method in ["POST", "PUT", "PATCH", "DELETE", "\"*\""] {
        assert_eq!(
            edited("methods: [GET], paths: [/v1/orders]", &format!("methods: [GET, {method}], paths: [/v1/orders]")),
            ["new_write_method"],
            "{method}"
        );
    }
    assert!(edited("methods: [GET], paths: [/v1/orders]", "methods: [GET, HEAD], paths: [/v1/orders]").is_empty());
    // By another rule of the same pair.
    assert_eq!(
        added(
            "{id: new, tenant: t, from: {workload: x}, to: {workload: service-a, port: https}, http: {methods: [DELETE], paths: [/v1/orders]}}"
        ),
        ["new_write_method"]
    );
}

// covers: B9a
#[test]
fn a_new_peer_on_a_tcp_port_is_held_and_one_on_an_http_port_published() {
    assert_eq!(
        added("{id: new, tenant: t, from: {workload: y}, to: {workload: service-a, port: raw}}"),
        ["new_tcp_peer"]
    );
    assert!(added("{id: new, tenant: t, from: {workload: y}, to: {workload: service-a, port: https}, http: {methods: [GET], paths: [/a]}}").is_empty());
    assert_eq!(
        added("{id: new, tenant: t, from: {workload: y}, to: {workload: service-a, port: https}}"),
        ["wildcard_path"],
        "no http block is every path"
    );
}

// covers: B9b
#[test]
fn a_relabelled_workload_is_held_and_a_new_one_with_labels_published() {
    let kinds_of = placed("labels: {app: y}", "labels: {app: raw}");
    assert_eq!(kinds_of, ["new_tcp_peer", "labels_changed"], "the selector's end, and the label itself");
    let more = format!(
        "{WORKLOADS}  - {{workload_id: w, tenant: t, labels: {{app: w}}, pod_uid: pod-w, workload_ip: 10.64.3.14}}\n"
    );
    assert!(kinds(&data(BASE, WORKLOADS), &data(BASE, &more)).is_empty());
}

// covers: B9b
#[test]
fn another_port_mode_or_protocol_is_held_and_another_target_port_published() {
    assert_eq!(placed("mode: tls, protocol: http", "mode: tcp, protocol: http"), ["port_changed"]);
    assert!(placed("protocol: tcp", "protocol: http").contains(&"port_changed"));
    assert!(placed("target_port: 8080", "target_port: 8090").is_empty());
}

// covers: B9b
#[test]
fn another_certificate_behind_a_ca_is_held_and_one_less_published() {
    let more = |nova: &mut Value| {
        nova["external_cas"]["partner-ca"].as_array_mut().expect("a list").push(json!("QUJD"));
    };
    assert_eq!(mutated(more), ["ca_changed"]);
    assert_eq!(mutated(|nova| nova["external_cas"]["partner-ca"][0] = json!("AAAA")), ["ca_changed"]);
    let mut live = base();
    more(&mut live);
    assert!(kinds(&live, &base()).is_empty());
}

// covers: B9b
#[test]
fn another_tls_mode_is_held() {
    assert_eq!(
        edited(
            "to: {external: api.example.com, port: 443}, http",
            "to: {external: api.example.com, port: 443}, tls: none, http"
        ),
        ["tls_changed"]
    );
}

// covers: B9b
#[test]
fn a_dropped_http_block_is_held_and_a_new_one_on_an_open_pair_published() {
    let with = ", http: {methods: [GET], paths: [/v1/orders]}}";
    assert_eq!(edited(with, "}"), ["http_block_dropped"]);
    let live = BASE.replace(with, "}");
    let both = format!(
        "{live}  - {{id: new, tenant: t, from: {{workload: x}}, to: {{workload: service-a, port: https}}, http: {{methods: [POST], paths: [\"/**\"]}}}}\n"
    );
    assert!(kinds(&data(&live, WORKLOADS), &data(&both, WORKLOADS)).is_empty());
}

// covers: B9b
#[test]
fn a_wider_range_or_prefix_is_held_and_a_narrower_one_published_if_unused() {
    assert_eq!(edited("10.64.0.0/16", "10.0.0.0/8"), ["wider_range"]);
    assert_eq!(edited("spiffe://partner/a/*", "spiffe://partner/*"), ["wider_peer"]);
    let narrower =
        data(&BASE.replace("10.64.0.0/16", "10.64.3.0/24").replace("partner/a/*", "partner/a/b/*"), WORKLOADS);
    let unused = compared(&data(BASE, WORKLOADS), &narrower, Some("")).expect("comparable");
    assert_eq!(unused.risks, []);
}

// covers: B9b
#[test]
fn a_private_range_behind_a_name_is_held() {
    let to = |more: &str| format!("to: {{external: api.example.com, port: 443{more}}}");
    assert_eq!(edited(&to(""), &to(", addresses: [10.1.0.0/16]")), ["wider_range"]);
}

// covers: B9b
#[test]
fn audit_turned_on_or_off_is_held_and_so_is_a_new_audit_pair() {
    let audit = BASE.replace("paths: [/v1/orders]}}", "paths: [/v1/orders]}, audit: true}");
    assert_eq!(kinds(&data(BASE, WORKLOADS), &data(&audit, WORKLOADS)), ["audit_on"]);
    assert_eq!(kinds(&data(&audit, WORKLOADS), &data(BASE, WORKLOADS)), ["audit_off"]);
    let rule = |audit| {
        format!(
            "{{id: new, tenant: t, from: {{workload: y}}, to: {{workload: service-a, port: https}}, http: {{methods: [GET], paths: [/a]}}, audit: {audit}}}"
        )
    };
    assert_eq!(added(&rule(true)), ["new_audit_pair"]);
    assert!(added(&rule(false)).is_empty());
}

// covers: B9b
#[test]
fn another_credential_or_another_meaning_of_its_name_is_held_and_an_unused_one_published() {
    let at = |nova: &mut Value, name: &str| {
        nova["egress"]["x"]["exact"]["api.example.com:443"][0]["credential"] = json!(name)
    };
    assert_eq!(mutated(|nova| at(nova, "stripe-live")), ["credential_changed"]);
    let define = |nova: &mut Value, owner: &str| {
        nova["credentials"] = json!({"stripe-live": {"form": "bearer", "hosts": ["api.example.com"], "owner": owner}});
    };
    let (mut live, mut next) = (base(), base());
    define(&mut live, "payments");
    define(&mut next, "somebody");
    assert_eq!(kinds(&live, &next), ["credential_definition"]);
    assert!(mutated(|nova| define(nova, "payments")).is_empty(), "nothing names it");
}

// covers: B9b
#[test]
fn another_identity_is_held_and_a_new_workload_with_its_own_published() {
    assert!(
        mutated(|nova| nova["workloads"]["x"]["spiffe_id"] = json!("spiffe://n/t/t/w/root"))
            .contains(&"identity_changed")
    );
    let new = |id: &str| json!({"tenant": "t", "spiffe_id": id});
    assert_eq!(mutated(|nova| nova["workloads"]["w"] = new("spiffe://n/t/t/w/x")), ["identity_changed"]);
    assert!(mutated(|nova| nova["workloads"]["w"] = new("spiffe://n/t/t/w/w")).is_empty());
}

// covers: B9a
#[test]
fn a_removed_rule_is_held_while_it_is_in_use_and_published_when_it_is_not() {
    let without: Vec<&str> = BASE.lines().filter(|line| !line.contains("x-to-raw")).collect();
    let (live, next) = (data(BASE, WORKLOADS), data(&without.join("\n"), WORKLOADS));
    assert_eq!(kinds(&live, &next), ["rule_removed"], "without a list everything counts as used");
    let input =
        r#"{"direction":"egress","phase":"opaque","source":"x","dest_host":"service-a.t.nova","dest_port":5432}"#;
    for (in_use, held) in [
        (String::new(), false),
        ("x -> service-a:raw".to_owned(), true),
        ("x -> service-a:https".to_owned(), false),
        (format!(r#"{{"verdict":"allow","rule":"x-to-raw","input":{input}}}"#), true),
        (format!(r#"{{"verdict":"deny","rule":"","input":{input}}}"#), false),
    ] {
        let found = compared(&live, &next, Some(&in_use)).expect("comparable").risks;
        assert_eq!(!found.is_empty(), held, "{in_use}: {found:?}");
        assert!(found.iter().all(|risk| risk.kind == Kind::RuleRemoved), "{found:?}");
    }
    assert!(InUse::parse("nonsense").is_err());
}

// covers: B9b
#[test]
fn other_code_another_layout_and_members_we_do_not_know_never_pass() {
    let signer = signer("author");
    let open = |rego: &str, serial| dangerous_unverified(&packed(&base(), rego, serial, &signer)).expect("a bundle");
    let found = compare(&open(REGO, 5), &open(&format!("{REGO}\n# other\n"), 6), None).expect("comparable");
    assert_eq!(found.risks.iter().map(|risk| risk.kind).collect::<Vec<_>>(), [Kind::PolicyCode]);
    let mut next = base();
    next["surprise"] = json!({"a": 1});
    assert!(matches!(compared(&base(), &next, None), Err(GateError::Load(_))), "no node would load it");
    // What a newer build of the gate's neighbours would load: the comparison itself must see it.
    for (at, value) in [
        ("/egress/x/exact/api.example.com:443/0/surprise", json!(true)),
        ("/surprise", json!(1)),
        ("/workloads/x/surprise", json!(1)),
        ("/targets/x/x-out/0/surprise", json!(1)),
    ] {
        let (mut changed, parts): (Value, Vec<&str>) = (base(), at.rsplitn(2, '/').collect());
        changed.pointer_mut(parts[1]).expect("there")[parts[0]] = value;
        let read = |data: &Value| {
            flat::flatten(
                &crate::bundle::canonical::Json::parse(json!({"nova": data}).to_string().as_bytes()).expect("JSON"),
            )
        };
        let (before, after) = (read(&base()), read(&changed));
        let mut found = risk::Found::default();
        compare::pairs(&before, &after, None, &mut found);
        compare::targets(&before, &after, &mut found);
        leaves::compare(&before, &after, &mut found);
        let kinds: Vec<_> = found.into_risks().into_iter().map(|risk| risk.kind).collect();
        assert_eq!(kinds, [Kind::UnknownDifference], "{at}");
    }
}

// covers: B9a
#[test]
fn bundles_of_two_nodes_and_older_ones_are_not_compared() {
    let mut other = base();
    other["node"] = json!("node-2");
    assert!(matches!(compared(&base(), &other, None), Err(GateError::OtherNode { .. })));
    let signer = signer("author");
    let open = |serial| dangerous_unverified(&packed(&base(), REGO, serial, &signer)).expect("a bundle");
    assert!(matches!(compare(&open(6), &open(6), None), Err(GateError::OlderSerial { .. })));
}

struct Held {
    live: Vec<u8>,
    next: Vec<u8>,
    author: Signer,
}

impl Held {
    fn new() -> Self {
        let author = signer("author");
        let mut next = base();
        next["egress"]["x"]["exact"]["api.example.com:443"][0]["credential"] = json!("stripe-live");
        Self { live: packed(&base(), REGO, 5, &author), next: packed(&next, REGO, 6, &author), author }
    }

    fn comparison(&self) -> Comparison {
        let open = |bytes: &[u8]| dangerous_unverified(bytes).expect("a bundle");
        compare(&open(&self.live), &open(&self.next), None).expect("comparable")
    }
}

// covers: B9c
#[test]
fn the_author_cannot_approve_under_any_name() {
    let held = Held::new();
    let comparison = held.comparison();
    assert!(comparison.is_held());
    for id in ["author", "somebody-else"] {
        let refused = approve(&comparison, &held.next, &held.author.key, id);
        assert!(matches!(refused, Err(ApprovalError::Author(_))), "{id}: {refused:?}");
    }
    // With another key, but under the author's id; and with the author's key in the approvers file under another id.
    let other = signer("other");
    assert!(matches!(approve(&comparison, &held.next, &other.key, "author"), Err(ApprovalError::Author(_))));
    let good = approve(&comparison, &held.next, &other.key, "other").expect("approved");
    let public: BTreeMap<String, Value> = serde_json::from_str(&held.author.keys.to_json()).expect("keys");
    let disguised = VerifyKeys::from_json(&json!({"other": public["author"]}).to_string()).expect("keys");
    assert!(matches!(check(&good, &comparison, &held.next, &disguised), Err(ApprovalError::Author(_))));
    assert!(!held.author.pem.is_empty());
}

// covers: B9c
#[test]
fn an_approval_counts_for_one_change_and_is_stale_when_live_has_moved() {
    let held = Held::new();
    let (comparison, other) = (held.comparison(), signer("other"));
    let good = approve(&comparison, &held.next, &other.key, "other").expect("approved");
    let approved = check(&good, &comparison, &held.next, &other.keys).expect("it counts");
    assert_eq!(approved.by, "other");

    let reason = |approval: &Approval, comparison: &Comparison, keys: &VerifyKeys| {
        check(approval, comparison, &held.next, keys).map(|by| by.by).map_err(|error| error.reason())
    };
    let mut moved = comparison.clone();
    moved.live.serial = 7;
    assert_eq!(reason(&good, &moved, &other.keys), Err("stale"));
    let mut replaced = comparison.clone();
    replaced.next.sha256 = "00".to_owned();
    assert_eq!(reason(&good, &replaced, &other.keys), Err("other_bundle"));
    let mut riskier = comparison.clone();
    riskier.risks[0].after.push('!');
    assert_eq!(reason(&good, &riskier, &other.keys), Err("other_risks"));
    assert_eq!(reason(&good, &comparison, &signer("nobody").keys), Err("unknown_approver"));
    assert_eq!(reason(&good, &comparison, &signer("other").keys), Err("bad_signature"));
    // Saying in the file what would fit does not help.
    let edited = Approval { live_serial: 7, ..good.clone() };
    assert_eq!(reason(&edited, &moved, &other.keys), Err("bad_signature"));
    for jws in ["", "..", "e30..AAAA", "a.b.c"] {
        assert_eq!(
            reason(&Approval { jws: jws.to_owned(), ..good.clone() }, &comparison, &other.keys),
            Err("bad_form"),
            "{jws}"
        );
    }
    let mut calm = comparison.clone();
    calm.risks.clear();
    assert!(matches!(approve(&calm, &held.next, &other.key, "other"), Err(ApprovalError::NothingHeld)));
}
