//! Deciding again: an input that the operator gives, or one that the audit log recorded.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use nova_policy::engine::Policy;
use nova_policy::input::Input;
use nova_policy::never;
use nova_policy::pair::{Pair, PairError};
use serde_json::Value;

use super::protocol::{Code, DecisionView, EndView, ExplanationView, Failure, ReplayView};
use super::{AdminHandles, audit_log, view};
use crate::bundles::KEPT;
use crate::decide::{verdict_of, with_abilities};

/// Longest decision id that is looked for.
const MAX_ID: usize = 64;

/// Why the active policy decides an input as it does.
pub(super) fn explain(handles: &AdminHandles, input: Value) -> Result<ExplanationView, Failure> {
    let input = asked(input)?;
    Ok(view::explanation_here(handles, &*active(handles)?, &input))
}

/// The same for a pair, on the active policy or an earlier revision.
pub(super) fn explain_pair(
    handles: &AdminHandles,
    pair: &str,
    revision: Option<&str>,
) -> Result<Vec<EndView>, Failure> {
    let refuse = |error: PairError| {
        let remedy = "write \"x -> service-a GET /v1/orders\", \"x -> api.example.com:443\" or \"spiffe://... -> a:https GET /p\"";
        Failure::new(Code::BadInput, error.to_string(), remedy)
    };
    let pair: Pair = pair.parse().map_err(refuse)?;
    let policy = match revision {
        None => active(handles)?,
        Some(revision) => handles.feed.by_revision(revision, SystemTime::now()).ok_or_else(|| {
            let message = format!("revision {revision} is not in the store, which keeps the last {KEPT}");
            Failure::new(
                Code::NotFound,
                message,
                "take one from an audit line, or leave it out to ask the active policy",
            )
        })?,
    };
    let endpoints = handles.endpoints.load();
    let addresses = |workload: &str| {
        let of_workload =
            endpoints.iter().map(|endpoint| endpoint.spec()).filter(|spec| spec.workload.as_str() == workload);
        of_workload.flat_map(|spec| spec.ips().collect::<Vec<_>>()).collect()
    };
    let inputs = pair.inputs(&policy, &addresses).map_err(refuse)?;
    let inputs = inputs.into_iter().map(|input| with_abilities(input, &handles.abilities));
    let end = |input: &Input| EndView {
        input: serde_json::to_value(input).unwrap_or_default(),
        explanation: view::explanation_here(handles, &policy, input),
    };
    Ok(inputs.map(|input| end(&input)).collect())
}

/// What the active policy decides.
pub(super) fn decide(handles: &AdminHandles, input: Value) -> Result<DecisionView, Failure> {
    let input = asked(input)?;
    let policy = active(handles)?;
    let decision = verdict_of(&policy, &input);
    Ok(view::decision_here(handles, &policy, &input, &decision).0)
}

/// Decides a recorded input on the revision of that moment and on the active one.
pub(super) fn replay(handles: &AdminHandles, decision_id: &str) -> Result<ReplayView, Failure> {
    check_id(decision_id)?;
    let line = find(handles, decision_id)?;
    let recorded = view::recorded(&line);
    if !line["input"].is_object() {
        let message = format!("decision {decision_id} ended as {} before policy was asked", recorded.reason);
        return Err(Failure::new(Code::NoDecision, message, "its reason says why; there is nothing to decide again"));
    }
    let input = parse(line["input"].clone())?;
    let mut notes = Vec::new();
    let then = at_that_time(handles, &recorded.revision, &mut notes).map(|policy| view::explanation(&policy, &input));
    let now = handles.policy.load().map(|policy| view::explanation_here(handles, &policy, &input));
    if now.is_none() {
        notes.push("no policy is active now, so everything is denied; publish a bundle for this node".to_owned());
    }
    if let Some(then) = &then {
        notes.extend(difference(&then.decision, &recorded));
    }
    let time = line["time"].as_str().unwrap_or_default().to_owned();
    Ok(ReplayView {
        decision_id: decision_id.to_owned(),
        time,
        recorded,
        input: line["input"].clone(),
        then,
        now,
        notes,
    })
}

/// An input that somebody asks about: what no rule is asked about has no decision.
fn asked(input: Value) -> Result<Input, Failure> {
    let input = parse(input)?;
    never::check(input.method().unwrap_or_default(), None).map_err(|never| {
        Failure::new(Code::BadInput, never.to_string(), "ask about the method that the call would have")
    })?;
    Ok(input)
}

fn parse(input: Value) -> Result<Input, Failure> {
    serde_json::from_value(input).map_err(|error| {
        Failure::new(
            Code::BadInput,
            format!("not a decision input: {error}"),
            "give direction and phase, then source, dest_host and dest_port (egress) or target, port and src_ip \
             (ingress), and method and path for phase request",
        )
    })
}

fn active(handles: &AdminHandles) -> Result<Arc<Policy>, Failure> {
    handles.policy.load().ok_or_else(|| {
        let remedy = "publish a bundle signed for this node; `policy` tells what was wrong with the last one";
        Failure::new(Code::NoPolicy, "no policy is active, so everything is denied", remedy)
    })
}

fn check_id(decision_id: &str) -> Result<(), Failure> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if decision_id.is_empty() || decision_id.len() > MAX_ID || !decision_id.bytes().all(plain) {
        let remedy = "take it from the header x-nova-decision-id or from an audit line";
        return Err(Failure::new(Code::BadInput, "that is not a decision id", remedy));
    }
    Ok(())
}

fn find(handles: &AdminHandles, decision_id: &str) -> Result<Value, Failure> {
    let file = handles.audit_file.display();
    let failed = |error: io::Error| {
        Failure::new(
            Code::Failed,
            format!("the audit log {file} cannot be read: {error}"),
            "check audit.file and its rights",
        )
    };
    audit_log::find(&handles.audit_file, decision_id).map_err(failed)?.ok_or_else(|| {
        Failure::new(
            Code::NotFound,
            format!("{file} has no decision {decision_id}"),
            "check the id and ask the node that decided; a line may come up to a second after its decision, and old logs may \
             have been moved away",
        )
    })
}

fn at_that_time(handles: &AdminHandles, revision: &str, notes: &mut Vec<String>) -> Option<Arc<Policy>> {
    if revision.is_empty() {
        notes.push("no policy was active then".to_owned());
        return None;
    }
    let policy = handles.feed.by_revision(revision, SystemTime::now());
    if policy.is_none() {
        notes.push(format!(
            "revision {revision} is no longer in the store, which keeps the last {KEPT}: only today's verdict is shown"
        ));
    }
    policy
}

/// The engine decides the same input on the same bundle the same way. If the record says otherwise, somebody else decided.
fn difference(replayed: &DecisionView, recorded: &DecisionView) -> Option<String> {
    match (replayed.verdict.as_str(), recorded.verdict.as_str()) {
        (policy, "deny") if policy != "deny" => {
            Some(format!("policy allowed it then; it was refused afterwards for another reason: {}", recorded.reason))
        }
        (policy, "error") if policy != "deny" => {
            Some(format!("policy allowed it then; the call failed afterwards for another reason: {}", recorded.reason))
        }
        ("deny", recorded) if recorded != "deny" => Some(
            "the record says that it was allowed, the replay denies it: report this with the bundle and the line"
                .into(),
        ),
        _ => None,
    }
}
