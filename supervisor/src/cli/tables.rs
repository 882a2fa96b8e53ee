//! Each answer as a person reads it.

use std::fmt::Write;

use nova_supervisor::admin::protocol::{
    BudgetView, ConnectionView, DecisionView, EndView, EndpointView, ExplanationView, ReadyView, ReplayView, RuleView,
    TestView,
};
use serde_json::{Error, Value};

use super::output::{cell, table};

type Text = Result<String, Error>;

pub(super) fn endpoints(answer: &Value) -> Text {
    let views: Vec<EndpointView> = serde_json::from_value(answer.clone())?;
    let row = |view: EndpointView| {
        let state = match (view.reason.as_str(), view.message.as_str()) {
            ("", _) => view.stage,
            (reason, "") => format!("{} ({reason})", view.stage),
            (reason, message) => format!("{} ({reason}: {message})", view.stage),
        };
        let open = format!("{}/{}", view.connections, view.max_connections);
        let pod = format!("{} #{}", view.pod_uid, view.generation);
        // A row that was refused has none.
        let is_known = !view.workload.is_empty();
        let workload = if is_known { format!("{}.{}", view.workload, view.tenant) } else { String::new() };
        [workload, pod, view.ip, view.backend, state, view.ports.join(" "), open]
    };
    let header = ["workload", "pod", "ip", "backend", "state", "ports", "open"];
    Ok(table(header, views.into_iter().map(row).collect(), "no endpoints"))
}

pub(super) fn connections(answer: &Value) -> Text {
    let views: Vec<ConnectionView> = serde_json::from_value(answer.clone())?;
    let row = |view: ConnectionView| {
        let age = format!("{}.{:03}s", view.age_ms / 1000, view.age_ms % 1000);
        [view.decision_id, view.direction, view.workload, view.peer, view.what, age]
    };
    let header = ["id", "direction", "workload", "peer", "what", "open for"];
    Ok(table(header, views.into_iter().map(row).collect(), "no open connections"))
}

pub(super) fn policy(answer: &Value) -> Text {
    let field = |name: &str| match &answer[name] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let names = ["revision", "serial", "activated", "expires", "denies_at", "stale"];
    let mut rows: Vec<[String; 2]> = names.map(|name| [name.to_owned(), field(name)]).into();
    if answer["serial"].is_null() {
        rows = vec![["revision".to_owned(), "none: everything is denied".to_owned()]];
    }
    let error = &answer["last_error"];
    if error.is_object() {
        let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
        rows.push(["last error".to_owned(), format!("{}: {}", text("reason"), text("message"))]);
        rows.push(["since".to_owned(), text("time")]);
    }
    for (reason, count) in answer["failures"].as_object().into_iter().flatten() {
        rows.push([format!("refused: {reason}"), count.to_string()]);
    }
    Ok(table(["policy", ""], rows, ""))
}

pub(super) fn ready(answer: &Value) -> Text {
    let view: ReadyView = serde_json::from_value(answer.clone())?;
    let mut text = format!("{}: {}\n", if view.ready { "ready" } else { "not ready" }, cell(&view.node));
    let row = |check: nova_supervisor::admin::protocol::CheckView| [check.name, yes(check.ok), check.message];
    text += &table(["check", "ok", "what to do"], view.checks.into_iter().map(row).collect(), "");
    let BudgetView { budget, open, guaranteed, shared, shared_open } = view.connections;
    text += &format!(
        "connections: {open} of {budget}; each endpoint has {guaranteed} of its own, {shared_open} of {shared} shared \
         ones are in use\n"
    );
    for warning in view.warnings {
        text += &format!("warning: {}\n", cell(warning));
    }
    Ok(text)
}

pub(super) fn explanation(answer: &Value) -> Text {
    let view: ExplanationView = serde_json::from_value(answer.clone())?;
    Ok(format!("{}\n{}", verdict(&view.decision), tests(&view)))
}

/// A pair at each of its ends that the node has.
pub(super) fn ends(answer: &Value) -> Text {
    let views: Vec<EndView> = serde_json::from_value(answer.clone())?;
    let one = |view: &EndView| {
        let EndView { input, explanation } = view;
        let asked = cell(input.to_string());
        format!("{}\nasked: {asked}\n{}", verdict(&explanation.decision), tests(explanation))
    };
    Ok(views.iter().map(one).collect::<Vec<_>>().join("\n"))
}

pub(super) fn replay(answer: &Value) -> Text {
    let view: ReplayView = serde_json::from_value(answer.clone())?;
    let said =
        |view: Option<&ExplanationView>| view.map_or_else(|| "unknown".to_owned(), |view| verdict(&view.decision));
    let mut text = match &view.then {
        None => format!("then: {}; now: {}\n", verdict(&view.recorded), said(view.now.as_ref())),
        Some(then) if then.decision.verdict == view.recorded.verdict => {
            format!("then: {}; now: {}\n", verdict(&then.decision), said(view.now.as_ref()))
        }
        // Something else than the policy had the last word, and may have it again.
        Some(then) => {
            let (came, then, now) = (&view.recorded, verdict(&then.decision), said(view.now.as_ref()));
            cell(format!("then: {} ({})", came.verdict, came.reason))
                + &format!("; the policy alone: then {then}; now {now}\n")
        }
    };
    let mut add = |line: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", line.trim_end());
    };
    for note in &view.notes {
        add(&format!("note: {}", cell(note)));
    }
    add(&format!("recorded {}: {}", cell(&view.time), cell(view.input.to_string())));
    let same = match (&view.then, &view.now) {
        (Some(then), Some(now)) => then.decision.revision == now.decision.revision,
        _ => false,
    };
    for (when, explanation) in [("then", view.then.as_ref()), ("now", view.now.as_ref().filter(|_| !same))] {
        if let Some(explanation) = explanation {
            let when = if same { "then and now" } else { when };
            add(&format!("\n{when}, revision {}:\n{}", cell(&explanation.decision.revision), tests(explanation)));
        }
    }
    Ok(text)
}

fn verdict(decision: &DecisionView) -> String {
    let why = match (decision.rule.as_str(), decision.reason.as_str()) {
        ("", reason) => reason.to_owned(),
        (rule, "rule") => format!("rule {rule}"),
        (rule, reason) => format!("{reason}, rule {rule}"),
    };
    let revision = if decision.revision.is_empty() { "no policy" } else { &decision.revision };
    cell(format!("{} ({why}) on {revision}", decision.verdict))
}

fn tests(view: &ExplanationView) -> String {
    let candidates: Vec<_> = view.rules.iter().filter(|rule| rule.candidate).map(|rule| rule.rule.as_str()).collect();
    let candidates = if candidates.is_empty() { "none, no rule names this pair".into() } else { candidates.join(", ") };
    let mut text = format!("candidate rules: {}\n", cell(candidates));
    let row = |rule: &RuleView, test: &TestView| {
        let name = if rule.audit { format!("{} (audit)", rule.rule) } else { rule.rule.clone() };
        [name, test.test.clone(), test.wanted.clone(), test.got.clone(), yes(test.ok)]
    };
    let rows = view.rules.iter().flat_map(|rule| rule.tests.iter().map(move |test| row(rule, test)));
    text +=
        &table(["rule", "test", "wanted", "got", "ok"], rows.collect(), "the workload has no rules for this direction");
    if view.omitted > 0 {
        text += &format!("{} more rules are not shown\n", view.omitted);
    }
    if !view.hint.is_empty() {
        text += &format!("hint: {}\n", cell(&view.hint));
    }
    text
}

fn yes(ok: bool) -> String {
    if ok { "yes".to_owned() } else { "NO".to_owned() }
}
