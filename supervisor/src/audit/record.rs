//! A line in the making. Dropping it writes it.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use nova_policy::decision::Decision;
use nova_policy::engine::Policy;
use nova_policy::input::{Input, Phase};
use nova_proto::ids::PodUid;

use super::line::{Kind, Line, Verdict};
use super::sink::{AuditSink, next_decision_id};
use crate::reason::Reason;
use crate::state::endpoint::EndpointSpec;

/// An open record. Starts as a denial with [`Reason::Aborted`], so that whatever is cut short says so.
pub struct Record {
    sink: Arc<AuditSink>,
    started: Instant,
    served: Cell<bool>,
    line: Box<Line>,
}

impl Record {
    /// Opens a record about something of an endpoint.
    #[must_use]
    pub fn open(sink: &Arc<AuditSink>, kind: Kind, direction: &'static str, endpoint: &Arc<EndpointSpec>) -> Self {
        let line = Line { decision_id: next_decision_id(), ..Line::new(kind, direction, endpoint) };
        Self { sink: Arc::clone(sink), started: Instant::now(), served: Cell::new(false), line: Box::new(line) }
    }

    /// The id that the caller is told.
    #[must_use]
    pub fn decision_id(&self) -> &str {
        &self.line.decision_id
    }

    /// The endpoint, as it was when the record was opened.
    #[must_use]
    pub fn endpoint(&self) -> &EndpointSpec {
        &self.line.endpoint
    }

    /// The endpoint's pod.
    #[must_use]
    pub fn pod_uid(&self) -> &PodUid {
        &self.line.endpoint.pod_uid
    }

    /// Address the call came from.
    pub fn src(&mut self, src: SocketAddr) {
        self.line.src = Some(src);
    }

    /// The other side's identity.
    pub fn peer(&mut self, id: &str, ca: Option<&str>) {
        id.clone_into(&mut self.line.peer);
        ca.unwrap_or_default().clone_into(&mut self.line.peer_ca);
    }

    /// Where the call goes.
    pub fn dest(&mut self, host: &str, port: u16) {
        host.clone_into(&mut self.line.dest.host);
        self.line.dest.port = port;
    }

    /// The address that was dialled.
    pub fn dialled(&mut self, addr: SocketAddr) {
        self.line.dest.addr = Some(addr);
    }

    /// The name that the destination's leads to, through aliases of DNS.
    pub fn canonical(&mut self, name: &str) {
        name.clone_into(&mut self.line.dest.canonical);
    }

    /// The address that was refused or failed, and which check or step it was.
    pub fn not_dialled(&mut self, addr: Option<SocketAddr>, detail: &'static str) {
        self.line.dest.addr = addr.or(self.line.dest.addr);
        if !detail.is_empty() {
            self.line.detail = detail;
        }
    }

    /// Method and canonical path.
    pub fn request(&mut self, method: &str, path: &str) {
        method.clone_into(&mut self.line.method);
        path.clone_into(&mut self.line.path);
    }

    /// The app's destination had no port and was taken to 443.
    pub fn upgraded(&mut self) {
        self.line.upgraded = true;
    }

    /// The name that a refused ClientHello asked for.
    pub fn sni(&mut self, name: &str) {
        name.clone_into(&mut self.line.sni);
    }

    /// The app's own TLS was answered by us.
    pub fn intercepted(&mut self) {
        self.line.intercepted = true;
    }

    /// What was asked of the engine, of which bundle, and what came out.
    pub fn decided(&mut self, policy: &Arc<Policy>, input: &Arc<Input>, decision: &Decision) {
        self.line.policy = Some(Arc::clone(policy));
        self.line.engine = policy.engine_name();
        self.line.phase = phase_label(input.phase());
        self.line.input = Some(Arc::clone(input));
        if self.sink.has_events() {
            self.line.decision = Some((SystemTime::now(), decision.clone()));
        }
    }

    /// Nothing could be asked of any bundle: whatever was decided before on this record says nothing of this.
    pub fn undecided(&mut self, reason: Reason) {
        let line = &mut *self.line;
        (line.policy, line.input, line.decision) = (None, None, None);
        (line.engine, line.phase) = ("", "");
        (line.rule, line.credential) = Default::default();
        self.deny(reason);
    }

    /// The engine's answer.
    pub fn verdict(&mut self, verdict: Verdict, reason: Reason, rule: &Arc<str>, credential: &Arc<str>) {
        self.line.verdict = verdict;
        self.line.reason = reason.as_str();
        self.line.rule = Arc::clone(rule);
        self.line.credential = Arc::clone(credential);
    }

    /// Refused.
    pub fn deny(&mut self, reason: Reason) {
        self.line.verdict = Verdict::Deny;
        self.line.reason = reason.as_str();
    }

    /// Allowed, but the other side failed.
    pub fn fail(&mut self, reason: Reason) {
        self.line.verdict = Verdict::Error;
        self.line.reason = reason.as_str();
    }

    /// Something that was asked for on the connection is allowed: it has its line, however many there are.
    pub fn serves(&self) {
        self.served.set(true);
    }

    /// The credential that the call is about.
    pub fn credential(&mut self, name: &str) {
        self.line.credential = name.into();
    }

    /// A finer reason.
    pub fn detail(&mut self, detail: &'static str) {
        self.line.detail = detail;
    }

    /// Status code that the caller got.
    pub fn status(&mut self, status: u16) {
        self.line.status = Some(status);
    }

    /// Status code of gRPC that the caller got.
    pub fn grpc_status(&mut self, status: u16) {
        self.line.grpc_status = Some(status);
    }

    /// Adds payload bytes.
    pub fn bytes(&mut self, from_caller: u64, to_caller: u64) {
        self.line.bytes_in += from_caller;
        self.line.bytes_out += to_caller;
    }

    /// How it ended.
    pub fn close(&mut self, how: Reason) {
        self.line.close = how.as_str();
    }

    /// Writes an `open` line now; the record goes on as its `close`.
    pub fn write_open(&mut self) {
        self.line.kind = Kind::Open;
        self.write(true);
        self.line.kind = Kind::Close;
        self.line.close = Reason::Aborted.as_str();
    }

    fn write(&mut self, at_once: bool) {
        self.line.time = SystemTime::now();
        self.line.served = self.served.get();
        self.line.duration_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.sink.write(&self.line, at_once || self.line.verdict == Verdict::Deny);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.write(self.line.kind == Kind::Close);
    }
}

fn phase_label(phase: Phase) -> &'static str {
    match phase {
        Phase::Connect => "connect",
        Phase::Opaque => "opaque",
        Phase::Request => "request",
    }
}
