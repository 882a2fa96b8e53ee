//! Audit mode lets through only what nobody forbids: every mix of rules of one pair, asked of the engine.

use crate::decision::DecisionReason;
use crate::engine::Evaluator;
use crate::host::Host;
use crate::input::Input;
use crate::path::CanonicalPath;
use crate::testing::{CASE_WORKLOADS, policy};

/// Rules of one pair, none of which allows the request that is asked.
const KINDS: [(&str, bool); 5] = [
    ("http: {methods: [PUT]}, audit: true", true),
    ("http: {paths: [/b]}, audit: true", true),
    ("http: {methods: [PUT]}", false),
    ("http: {methods: [PUT]}, audit: true, credential: k", false),
    ("http: {methods: [PUT]}, credential: k", false),
];

fn rules(mix: usize) -> String {
    let mut text = "credentials: [{name: k, form: bearer, hosts: [api.example.com], owner: o}]\nrules:\n".to_owned();
    for (index, (kind, _)) in KINDS.iter().enumerate().filter(|(index, _)| mix >> index & 1 == 1) {
        text += &format!(
            "- {{id: r{index}, tenant: t, from: {{workload: x}}, to: {{external: api.example.com, port: 443}}, {kind}}}\n"
        );
    }
    text
}

// covers: B10 (K14, attack T4)
#[test]
fn a_miss_passes_only_when_every_rule_of_the_pair_is_audit_and_has_no_credential() {
    let host = Host::parse("api.example.com").expect("a name");
    let miss = Input::egress_request("x", &host, 443, "GET", &CanonicalPath::parse(b"/a").expect("a path"));
    let mut evaluator = Evaluator::new();
    for mix in 1..1 << KINDS.len() {
        let policy = policy(&rules(mix), CASE_WORKLOADS, "node-1");
        let harmless = KINDS.iter().enumerate().all(|(index, (_, harmless))| mix >> index & 1 == 0 || *harmless);
        let got = evaluator.decide(&policy, &miss);
        assert_eq!((got.allow, got.would_deny), (harmless, harmless), "{}", rules(mix));
        let want = if harmless { DecisionReason::WouldDeny } else { DecisionReason::L7Mismatch };
        assert_eq!(got.reason, want);
        assert!(got.credential.is_empty());
        let opaque = evaluator.decide(&policy, &miss.opaque());
        assert_eq!((opaque.allow, opaque.reason), (false, DecisionReason::NeedsOpaqueGrant), "bytes are never audited");
        let stranger = Host::parse("other.example.com").expect("a name");
        let none =
            evaluator.decide(&policy, &Input::egress_request("x", &stranger, 443, "GET", &CanonicalPath::asterisk()));
        assert_eq!((none.allow, none.reason), (false, DecisionReason::NoGrant), "no rule, no audit");
    }
}

// covers: B10
#[test]
fn a_rule_in_audit_mode_that_matches_grants_like_any_other() {
    let rules = "- {id: a, tenant: t, from: {workload: x}, to: {external: api.example.com, port: 443}, audit: true}\n";
    let policy = policy(rules, CASE_WORKLOADS, "node-1");
    let host = Host::parse("api.example.com").expect("a name");
    let got = Evaluator::new().decide(&policy, &Input::egress_opaque("x", &host, 443));
    assert_eq!((got.allow, got.would_deny, got.reason), (true, false, DecisionReason::Rule));
}

// covers: B10, B1i
#[test]
fn audit_mode_lets_no_escaped_slash_through_unless_a_rule_of_the_pair_accepts_it() {
    let rule = |id: &str, more: &str| {
        format!(
            "- {{id: {id}, tenant: t, from: {{workload: x}}, to: {{external: api.example.com, port: 443}}, http: {{paths: [/b]{more}}}, audit: true}}\n"
        )
    };
    let host = Host::parse("api.example.com").expect("a name");
    let path = CanonicalPath::parse(b"/a%2Fb").expect("a path");
    let asked = |rules: &[String]| {
        let policy = policy(&rules.concat(), CASE_WORKLOADS, "node-1");
        let got = Evaluator::new().decide(&policy, &Input::egress_request("x", &host, 443, "GET", &path));
        (got.allow, got.reason)
    };
    let (closed, open) = (rule("closed", ""), rule("open", ", encoded_slash: true"));
    assert_eq!(asked(std::slice::from_ref(&closed)), (false, DecisionReason::EscapedSlash));
    assert_eq!(asked(&[closed, open]), (true, DecisionReason::WouldDeny));
}
