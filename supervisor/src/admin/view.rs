//! Decisions and explanations of the policy crate as an operator gets them.

use nova_policy::decision::Decision;
use nova_policy::engine::Policy;
use nova_policy::explain::{self, Considered, Test};
use nova_policy::input::Input;
use serde_json::Value;

use super::AdminHandles;
use crate::decide::{NoCredential, check_credential, verdict_of};

use super::protocol::{DecisionView, ExplanationView, RuleView, TestView};

pub(super) fn decision(policy: &Policy, decision: &Decision) -> DecisionView {
    let verdict = match (decision.allow, decision.would_deny) {
        (true, false) => "allow",
        (true, true) => "would_deny",
        (false, _) => "deny",
    };
    DecisionView {
        revision: policy.revision().to_owned(),
        verdict: verdict.to_owned(),
        reason: decision.reason.as_str().to_owned(),
        rule: decision.rule_id.to_string(),
        credential: decision.credential.to_string(),
    }
}

/// The same for a call that would be made here and now: a grant also needs its credential.
pub(super) fn decision_here(
    handles: &AdminHandles,
    policy: &Policy,
    input: &Input,
    verdict: &Decision,
) -> (DecisionView, Option<&'static str>) {
    let granted = decision(policy, verdict);
    let endpoints = handles.endpoints.load();
    let is_listed = |name: &str| {
        endpoints
            .iter()
            .map(|endpoint| endpoint.spec())
            .any(|spec| spec.workload.as_str() == input.workload() && spec.credentials.contains(name))
    };
    match check_credential(policy, input, verdict, &handles.credentials, is_listed) {
        Ok(()) => (granted, None),
        Err(missing) => {
            let reason = missing.reason().as_str().to_owned();
            (DecisionView { verdict: "deny".to_owned(), reason, ..granted }, Some(remedy(missing)))
        }
    }
}

/// As [`explanation`], for a call that would be made here and now.
pub(super) fn explanation_here(handles: &AdminHandles, policy: &Policy, input: &Input) -> ExplanationView {
    let explained = explanation(policy, input);
    let (decision, remedy) = decision_here(handles, policy, input, &verdict_of(policy, input));
    let hint = remedy.map_or(explained.hint, |remedy| {
        format!("rule {} injects credential {}: {remedy}", decision.rule, decision.credential)
    });
    ExplanationView { decision, hint, ..explained }
}

fn remedy(missing: NoCredential) -> &'static str {
    match missing {
        NoCredential::Host => "its declaration does not list this host; ask its owner to add it",
        NoCredential::Plaintext => "it goes out with requests over TLS only; use tls: originate, or intercept",
        NoCredential::Pod => "no pod of the workload on this node lists it in `credentials`",
        NoCredential::Missing => {
            "this node has no such file in [credentials] dir; `ready` says if it could not be read"
        }
        NoCredential::Form => "its file does not hold what its form needs",
    }
}

/// The engine's own verdict, and the tests behind it.
pub(super) fn explanation(policy: &Policy, input: &Input) -> ExplanationView {
    let verdict = verdict_of(policy, input);
    let explanation = explain::explain(policy, input);
    ExplanationView {
        decision: decision(policy, &verdict),
        rules: explanation.rules.into_iter().map(rule).collect(),
        omitted: explanation.omitted,
        hint: explanation.hint,
    }
}

fn rule(considered: Considered) -> RuleView {
    let Considered { rule, candidate, audit, tests, .. } = considered;
    let test = |test: Test| TestView { test: test.test.to_owned(), wanted: test.wanted, got: test.got, ok: test.ok };
    RuleView { rule, candidate, audit, tests: tests.into_iter().map(test).collect() }
}

/// What an audit line says was decided.
pub(super) fn recorded(line: &Value) -> DecisionView {
    let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
    DecisionView {
        revision: text("revision"),
        verdict: text("verdict"),
        reason: text("reason"),
        rule: text("rule"),
        credential: text("credential"),
    }
}
