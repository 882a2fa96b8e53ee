//! The engine against the published decision cases and the attacks on the first proposal.

#![allow(clippy::panic, reason = "a test that cannot go on")]

use super::*;
use crate::decision::{Decision, DecisionReason};
use crate::input::{Input, Peer};
use crate::path::CanonicalPath;
use crate::testing::{CASE_RULES, CASE_WORKLOADS, policy};
use nova_proto::ids::SpiffeId;

#[derive(serde::Deserialize)]
struct Case {
    name: String,
    input: serde_json::Value,
    want_rule: Option<String>,
}

fn case_policy() -> Policy {
    policy(CASE_RULES, CASE_WORKLOADS, "node-1")
}

/// The same policy with other Rego.
fn with_rego(policy: &Policy, text: &str) -> Policy {
    let data = serde_json::json!({ "nova": policy.data() }).to_string();
    let engine = rego::Rego::new(&[("a.rego".to_owned(), text.to_owned())], &data).expect(text);
    Policy { loaded: Arc::clone(&policy.loaded), served: Arc::new(Served::new(Box::new(engine))) }
}

fn host(text: &str) -> Host {
    Host::parse(text).expect(text)
}

fn path(text: &str) -> CanonicalPath {
    CanonicalPath::parse(text.as_bytes()).expect(text)
}

fn decide(policy: &Policy, input: &Input) -> Decision {
    Evaluator::new().decide(policy, input)
}

fn ask(policy: &Policy, input: &str) -> Decision {
    decide(policy, &serde_json::from_str(input).expect(input))
}

// covers: A5b
#[test]
fn the_published_cases_get_their_verdicts() {
    let policy = case_policy();
    let cases: Vec<Case> = serde_json::from_str(include_str!("../../tests/data/decision-cases.json")).expect("cases");
    assert_eq!(cases.len(), 26);
    let mut evaluator = Evaluator::new();
    for case in cases {
        let answer = evaluator.answer(&policy, &case.input).expect("an answer");
        let allowed = answer["allow"] == true;
        let rule = answer["rule_id"].as_str().expect("always an object").to_owned();
        assert_eq!(allowed.then_some(rule), case.want_rule, "{}", case.name);
    }
}

#[test]
fn policies_are_shared_between_threads() {
    fn shared<T: Send + Sync + Clone>(_: &T) {}
    fn movable<T: Send>(_: &T) {}
    shared(&case_policy());
    movable(&Evaluator::new());
}

// covers: A5b
#[test]
fn the_three_phases_ask_three_questions() {
    let policy = case_policy();
    let shop = Input::egress_connect("x", &host("service-a.t.nova"), 443);
    let orders = path("/v1/orders/42");
    for (input, want) in [
        (shop.clone(), DecisionReason::Connect),
        (shop.opaque(), DecisionReason::NeedsOpaqueGrant),
        (shop.request("GET", &orders), DecisionReason::Rule),
        (shop.request("DELETE", &orders), DecisionReason::L7Mismatch),
        (shop.request("get", &orders), DecisionReason::L7Mismatch),
        (shop.request("GET", &path("/v1/orders")), DecisionReason::L7Mismatch),
        (shop.request("OPTIONS", &CanonicalPath::asterisk()), DecisionReason::L7Mismatch),
        (Input::egress_connect("x", &host("service-a"), 443).request("GET", &orders), DecisionReason::Rule),
        (Input::egress_connect("x", &host("service-b.t.nova"), 443), DecisionReason::NoGrant),
        (Input::egress_opaque("service-a", &host("db.t.nova"), 5432), DecisionReason::Rule),
        (Input::egress_opaque("nobody", &host("db.t.nova"), 5432), DecisionReason::NoGrant),
    ] {
        let got = decide(&policy, &input);
        assert_eq!(got.reason, want, "{input:?}");
        assert_eq!(got.allow, want.allows());
    }
}

// covers: A5b (attack T3)
#[test]
fn an_external_ca_cannot_speak_for_our_workloads_nor_for_another_ca() {
    let policy = case_policy();
    let id = |text: &str| SpiffeId::new(text).expect(text);
    let ours = id("spiffe://n/t/t/w/x");
    let theirs = id("spiffe://partner/foo");
    let ask = |peer: &Peer| {
        decide(&policy, &Input::ingress_connect("service-a", "https", peer, [10, 64, 3, 20].into())).allow
    };
    assert!(ask(&Peer::Own(ours.clone())));
    assert!(ask(&Peer::External { ca: "partner-ca".into(), id: theirs.clone() }));
    assert!(!ask(&Peer::External { ca: "partner-ca".into(), id: ours.clone() }));
    assert!(!ask(&Peer::External { ca: "other-ca".into(), id: theirs.clone() }));
    assert!(!ask(&Peer::External { ca: "other-ca".into(), id: ours }));
    assert!(!ask(&Peer::Own(theirs)));
    assert!(!ask(&Peer::Anonymous));
    assert!(!ask(&Peer::Own(id("spiffe://partnerx/foo"))));
}

// covers: A5b (attack T4, K14)
#[test]
fn audit_mode_never_opens_more_than_a_pair_that_is_all_audit() {
    let rules = "
credentials: [{name: key, form: bearer, hosts: [api.example.com], owner: security}]
rules:
- {id: a-audit, tenant: t, from: {workload: service-a}, to: {workload: new, port: https}, http: {methods: [GET], paths: [/a]}, audit: true}
- {id: b-audit, tenant: t, from: {workload: x}, to: {workload: new, port: https}, http: {methods: [GET], paths: [/a]}, audit: true}
- {id: b-enforced, tenant: t, from: {workload: x}, to: {workload: new, port: https}, http: {methods: [GET], paths: [/b]}}
- {id: c-audit, tenant: t, from: {workload: x}, to: {external: api.example.com, port: 443}, http: {methods: [GET], paths: [/a]}, audit: true, credential: key}
";
    let policy = policy(rules, CASE_WORKLOADS, "node-1");
    let new = host("new.t.nova");
    let miss = decide(&policy, &Input::egress_request("service-a", &new, 443, "POST", &path("/z")));
    assert_eq!((miss.allow, miss.would_deny, &*miss.rule_id), (true, true, "a-audit"));
    let enforced = decide(&policy, &Input::egress_request("x", &new, 443, "POST", &path("/z")));
    assert_eq!((enforced.allow, enforced.reason), (false, DecisionReason::L7Mismatch));
    let opaque = decide(&policy, &Input::egress_opaque("service-a", &new, 443));
    assert_eq!((opaque.allow, opaque.reason), (false, DecisionReason::NeedsOpaqueGrant));
    let credentialed = decide(&policy, &Input::egress_request("x", &host("api.example.com"), 443, "POST", &path("/z")));
    assert_eq!((credentialed.allow, credentialed.reason), (false, DecisionReason::L7Mismatch));
}

// covers: A5b (attack T5)
#[test]
fn overlapping_lists_decide_instead_of_failing() {
    let rules = "
external_cas: [{name: p, pem_file: p.pem}]
rules:
- {id: exact, tenant: t, from: {workload: x}, to: {external: a.example.com, port: 443}}
- {id: wide, tenant: t, from: {workload: x}, to: {external: '*.example.com', port: 443}}
- {id: deep, tenant: t, from: {workload: x}, to: {external: '*.a.example.com', port: 443}}
- {id: net, tenant: t, from: {workload: x}, to: {cidr: 10.0.0.0/8, port: 22}}
- {id: subnet, tenant: t, from: {workload: x}, to: {cidr: 10.1.0.0/16, port: 22}}
- {id: all, tenant: t, from: {cidr: 0.0.0.0/0}, to: {workload: service-a, port: health}}
- {id: some, tenant: t, from: {cidr: 10.64.0.0/16}, to: {workload: service-a, port: health}}
- {id: one, tenant: t, from: {external_ca: p, uri: spiffe://partner/a/b}, to: {workload: service-a, port: https}}
- {id: below, tenant: t, from: {external_ca: p, uri: 'spiffe://partner/a/*'}, to: {workload: service-a, port: https}}
- {id: above, tenant: t, from: {external_ca: p, uri: 'spiffe://partner/'}, to: {workload: service-a, port: https}}
";
    let policy = policy(rules, CASE_WORKLOADS, "node-1");
    let peer = Peer::External { ca: "p".into(), id: SpiffeId::new("spiffe://partner/a/b").expect("valid") };
    for (input, want) in [
        (Input::egress_opaque("x", &host("a.example.com"), 443), "exact"),
        (Input::egress_opaque("x", &host("b.a.example.com"), 443), "wide"),
        (Input::egress_opaque("x", &host("10.1.2.3"), 22), "net"),
        (Input::ingress_opaque("service-a", "health", &Peer::Anonymous, [10, 64, 0, 1].into()), "all"),
        (Input::ingress_opaque("service-a", "https", &peer, [10, 64, 0, 1].into()), "one"),
    ] {
        let got = decide(&policy, &input);
        assert_eq!((got.allow, &*got.rule_id), (true, want), "{input:?}");
    }
}

// covers: A5b (K35)
#[test]
fn a_cidr_matches_address_literals_only() {
    let policy = case_policy();
    let ask = |name: &str, port| decide(&policy, &Input::egress_opaque("x", &host(name), port)).allow;
    assert!(ask("10.20.1.1", 5432));
    assert!(ask("::ffff:10.20.1.1", 5432));
    for (name, port) in
        [("10.21.1.1", 5432), ("10.20.1.1", 5433), ("db.internal", 5432), ("fd00::1", 5432), ("10.20.1.1.nip.io", 5432)]
    {
        assert!(!ask(name, port), "{name}:{port}");
    }
}

// covers: A5b
#[test]
fn a_grant_names_the_credential_that_its_rule_injects() {
    let policy = case_policy();
    let input = Input::egress_request("service-a", &host("api.stripe.com"), 443, "POST", &path("/v1/charges"));
    let got = decide(&policy, &input);
    assert!(got.allow && !got.would_deny);
    assert_eq!((got.reason.as_str(), &*got.rule_id, &*got.credential), ("rule", "a-to-stripe", "stripe-live"));
}

#[test]
fn star_segments_never_cover_parameters() {
    let policy = case_policy();
    let ask = |text: &str| {
        let input = Input::egress_request("service-a", &host("new.t.nova"), 443, "GET", &path(text));
        Evaluator::new().decide(&policy, &input).reason
    };
    assert_eq!(ask("/v1/9/detail"), DecisionReason::Rule);
    for miss in ["/v1/9;a/detail", "/v1/9%3Ba/detail", "/v1/9/8/detail", "/v1/9/detail/", "/v1/detail"] {
        assert_eq!(ask(miss), DecisionReason::WouldDeny, "{miss}");
    }
}

#[test]
fn a_granted_egress_rule_says_where_it_leads() {
    let policy = case_policy();
    let target = policy.egress_target("x", "x-to-a", &host("service-a"), 443).expect("a target");
    let EgressTarget::Workload { spiffe_id, port_name, host: name, .. } = target else { panic!("{target:?}") };
    assert_eq!(
        (spiffe_id.as_str(), port_name.as_str(), name.as_str()),
        ("spiffe://n/t/t/w/service-a", "https", "service-a.t.nova")
    );
    assert!(policy.egress_target("x", "x-to-a", &host("service-a"), 444).is_none());
    assert!(policy.egress_target("x", "a-to-db", &host("db"), 5432).is_none());
    assert_eq!(policy.egress_targets("service-a", &host("q.example.com"), 443).count(), 1);
    assert!(policy.knows_workload("x") && !policy.knows_workload("db") && policy.exposes("service-a", "health"));
    assert_eq!(policy.external_cas()["partner-ca"].len(), 1);
}

// covers: A5b
#[test]
fn the_self_test_passes_on_what_the_compiler_wrote_and_fails_on_other_rego() {
    let policy = case_policy();
    assert!(policy.self_test().expect("self-test") > 40);
    let open = "package nova.authz\nimport rego.v1\ndecision := {\"allow\": true, \"audit\": false, \"rule_id\": \"\", \"credential\": \"\", \"reason\": \"connect\"}\n";
    let policy = with_rego(&policy, open);
    assert_eq!(policy.self_test().map_err(|error| error.reason()), Err("self_test_failed"));
}

// covers: B1i
#[test]
fn rego_that_knows_no_escaped_slash_lets_none_through_that_no_rule_accepts() {
    let rules = "
- {id: closed, tenant: t, from: {workload: x}, to: {external: closed.test, port: 443}, http: {paths: ['/**']}}
- {id: other, tenant: t, from: {workload: x}, to: {external: open.test, port: 443}, http: {paths: ['/**']}}
- {id: open, tenant: t, from: {workload: x}, to: {external: open.test, port: 443}, http: {encoded_slash: true}}
";
    let policy = policy(rules, CASE_WORKLOADS, "node-1");
    let answered = |rego: &str, name: &str, target: &str| {
        let text = format!("package nova.authz\nimport rego.v1\ndecision := {rego}\n");
        let input = Input::egress_request("x", &host(name), 443, "GET", &path(target));
        decide(&with_rego(&policy, &text), &input).reason
    };
    let answer = |reason: &str, rule: &str| {
        let (allow, audit) = (matches!(reason, "rule" | "would_deny"), reason == "would_deny");
        format!(
            r#"{{"allow": {allow}, "audit": {audit}, "rule_id": "{rule}", "credential": "", "reason": "{reason}"}}"#
        )
    };
    for (rego, name, want) in [
        (answer("rule", "closed"), "closed.test", DecisionReason::EscapedSlash),
        (answer("would_deny", "closed"), "closed.test", DecisionReason::EscapedSlash),
        (answer("l7_mismatch", ""), "closed.test", DecisionReason::EscapedSlash),
        (answer("rule", "other"), "open.test", DecisionReason::EscapedSlash),
        (answer("rule", "open"), "closed.test", DecisionReason::EscapedSlash),
        (answer("no_grant", ""), "closed.test", DecisionReason::NoGrant),
        ("true".to_owned(), "open.test", DecisionReason::EngineError),
        (answer("rule", "open"), "open.test", DecisionReason::Rule),
        (answer("l7_mismatch", ""), "open.test", DecisionReason::L7Mismatch),
    ] {
        assert_eq!(answered(&rego, name, "/a%2Fb"), want, "{rego} {name}");
    }
    assert_eq!(answered(&answer("rule", "closed"), "closed.test", "/a/b"), DecisionReason::Rule);
}

// covers: A5b
#[test]
fn an_engine_that_fails_or_answers_nonsense_denies() {
    let policy = case_policy();
    let input =
        r#"{"direction":"egress","phase":"connect","source":"x","dest_host":"service-a.t.nova","dest_port":443}"#;
    for body in [
        "decision := true",
        "decision := \"allow\"",
        "decision := {\"allow\": true}",
        "decision := {\"allow\": \"true\", \"audit\": false, \"rule_id\": \"\", \"credential\": \"\", \"reason\": \"rule\"}",
        "decision := {\"allow\": true, \"audit\": false, \"rule_id\": \"\", \"credential\": \"\", \"reason\": \"no_grant\"}",
        "decision := {\"allow\": true, \"audit\": false, \"rule_id\": \"\", \"credential\": \"\", \"reason\": \"because\"}",
        "decision := {\"allow\": true} if input.nothing",
        "decision := {\"n\": count([1 | some i in numbers.range(1, 100000); some j in numbers.range(1, 100000)])}",
        "decision := {\"allow\": true} if input.source == \"x\"\ndecision := {\"allow\": false} if input.dest_port == 443",
    ] {
        let text = format!("package nova.authz\nimport rego.v1\n{body}\n");
        assert_eq!(ask(&with_rego(&policy, &text), input), Decision::deny(DecisionReason::EngineError), "{body}");
    }
}
