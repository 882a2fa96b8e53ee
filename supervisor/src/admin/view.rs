//! Decisions and explanations of the policy crate as an operator gets them.

use nova_policy::decision::Decision;
use nova_policy::engine::Policy;
use nova_policy::explain::{self, Considered, Test};
use nova_policy::input::Input;
use serde_json::Value;

use crate::decide::verdict_of;

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
