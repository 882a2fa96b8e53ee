//! The answer to each question.

use std::time::{Instant, SystemTime};

use serde::Serialize;
use serde_json::Value;

use super::protocol::{BudgetView, CheckView, Code, ConnectionView, EndpointView, Failure, ReadyView, Request};
use super::{AdminHandles, replay};
use crate::conn::Live;
use crate::state::endpoint::{Backend, Endpoint, PortMode, PortSpec, Protocol, Stage};
use crate::state::refusals::Refusal;

/// Answers one question. May block: decisions, and a search of the audit log.
pub(super) fn answer(handles: &AdminHandles, request: Request) -> Result<Value, Failure> {
    match request {
        Request::Endpoints => json(&endpoints(handles)),
        Request::Connections => json(&connections(handles)),
        Request::Policy => json(&handles.feed.status(SystemTime::now())),
        Request::Ready => json(&ready(handles)),
        Request::Explain { input } => json(&replay::explain(handles, input)?),
        Request::ExplainPair { pair, revision } => json(&replay::explain_pair(handles, &pair, revision.as_deref())?),
        Request::Decide { input } => json(&replay::decide(handles, input)?),
        Request::Replay { decision_id } => json(&replay::replay(handles, &decision_id)?),
    }
}

fn json(answer: &impl Serialize) -> Result<Value, Failure> {
    let failed = |error| Failure::new(Code::Failed, format!("the answer cannot be written: {error}"), "report this");
    serde_json::to_value(answer).map_err(failed)
}

fn endpoints(handles: &AdminHandles) -> Vec<EndpointView> {
    let table = handles.endpoints.load();
    let refused = handles.endpoints.refusals().rows().into_iter().map(refused_view);
    let mut views: Vec<_> = table.iter().map(|endpoint| endpoint_view(endpoint)).chain(refused).collect();
    views.sort_by(|a, b| (&a.workload, &a.pod_uid).cmp(&(&b.workload, &b.pod_uid)));
    views
}

fn endpoint_view(endpoint: &Endpoint) -> EndpointView {
    let spec = endpoint.spec();
    let status = endpoint.status.load_full();
    let (phase, reason, message) =
        status.as_ref().map_or(("", "", ""), |status| (status.phase, status.reason, status.message.as_str()));
    EndpointView {
        workload: spec.workload.to_string(),
        tenant: spec.tenant.to_string(),
        pod_uid: spec.pod_uid.to_string(),
        generation: spec.generation,
        ip: spec.ips().map(|ip| ip.to_string()).collect::<Vec<_>>().join(" "),
        backend: match &spec.backend {
            Backend::Vsock { cid } => format!("vsock cid {cid}"),
            Backend::Hybrid { file, half_close: true, .. } => format!("hybrid {file}"),
            Backend::Hybrid { file, half_close: false, .. } => format!("hybrid {file} framed"),
        },
        stage: stage(endpoint.stage()).to_owned(),
        phase: phase.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        ports: spec.ports.iter().map(port).collect(),
        connections: endpoint.open_connections(),
        max_connections: spec.limits.max_connections,
    }
}

/// Phase of a row that is refused for good; others wait for something.
const REJECTED: &str = "REJECTED";

/// A row that changed nothing. Its pod may have another row, of the endpoint as it was before.
fn refused_view(refusal: Refusal) -> EndpointView {
    let Refusal { pod, generation, phase, reason, message } = refusal;
    EndpointView {
        workload: String::new(),
        tenant: String::new(),
        pod_uid: pod,
        generation,
        ip: String::new(),
        backend: String::new(),
        stage: if phase == REJECTED { "refused" } else { "waiting" }.to_owned(),
        phase: phase.to_owned(),
        reason: reason.to_owned(),
        message,
        ports: Vec::new(),
        connections: 0,
        max_connections: 0,
    }
}

fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Waiting => "waiting",
        Stage::EgressOnly => "egress only",
        Stage::Serving => "serving",
        Stage::Draining => "draining",
        Stage::Closed => "closed",
    }
}

fn port(port: &PortSpec) -> String {
    let mode = match port.mode {
        PortMode::Mtls => "mtls",
        PortMode::Tls => "tls",
        PortMode::Tcp => "tcp",
    };
    let protocol = match port.protocol {
        Protocol::Raw => "tcp",
        Protocol::Http => "http",
        Protocol::Grpc => "grpc",
    };
    format!("{}:{}/{mode}/{protocol}", port.name, port.port)
}

fn connections(handles: &AdminHandles) -> Vec<ConnectionView> {
    let now = Instant::now();
    let view = |live: Live| ConnectionView {
        decision_id: live.decision_id,
        direction: live.direction.to_owned(),
        workload: live.workload,
        peer: live.peer,
        what: live.what,
        age_ms: u64::try_from(now.saturating_duration_since(live.since).as_millis()).unwrap_or(u64::MAX),
    };
    handles.connections.list().into_iter().map(view).collect()
}

fn ready(handles: &AdminHandles) -> ReadyView {
    let status = handles.feed.status(SystemTime::now());
    let mut checks = vec![policy_check(handles, status.last_error.as_ref().map(|error| error.message.as_str()))];
    checks.extend(handles.checks.iter().map(|check| {
        let message = (check.probe)().err();
        CheckView { name: check.name.to_owned(), ok: message.is_none(), message: message.unwrap_or_default() }
    }));
    let mut warnings = handles.warnings.clone();
    warnings.extend(handles.watches.iter().flat_map(|watch| watch()));
    let refusals = handles.endpoints.refusals();
    warnings.extend(refusals.of_source());
    let refused = refusals.rows().iter().filter(|row| row.phase == REJECTED).count();
    if refused > 0 {
        warnings.push(format!("endpoints that are refused as they are asked for: {refused}; `endpoints` says why"));
    }
    if status.stale {
        let until = status.denies_at.unwrap_or_default();
        warnings.push(format!("the policy bundle has expired and decides until {until} only; publish a fresh one"));
    }
    if let Some(error) = status.last_error {
        warnings.push(format!("the last bundle was refused ({}): {}", error.reason, error.message));
    }
    ReadyView {
        node: handles.node.clone(),
        ready: checks.iter().all(|check| check.ok),
        checks,
        connections: budget(handles),
        warnings,
    }
}

fn budget(handles: &AdminHandles) -> BudgetView {
    let view = handles.endpoints.budget().view();
    BudgetView {
        budget: view.connections,
        open: handles.endpoints.load().iter().map(|endpoint| endpoint.open_connections()).sum(),
        guaranteed: view.guaranteed,
        shared: view.shared,
        shared_open: view.shared_used,
    }
}

fn policy_check(handles: &AdminHandles, last_error: Option<&str>) -> CheckView {
    let ok = handles.policy.load().is_some();
    let message = match (ok, last_error) {
        (true, _) => String::new(),
        (false, Some(error)) => format!("no policy is active, everything is denied: {error}"),
        (false, None) => "no policy is active, everything is denied; publish a bundle for this node".to_owned(),
    };
    CheckView { name: "policy".to_owned(), ok, message }
}
