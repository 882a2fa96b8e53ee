//! The fields of an audit line, in the order in which they are written.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use nova_policy::decision::Decision;
use nova_policy::engine::Policy;
use nova_policy::input::Input;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::reason::Reason;
use crate::state::endpoint::EndpointSpec;

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A whole connection, written at its end.
    Connection,
    /// One HTTP request.
    Request,
    /// An opaque stream was allowed and starts.
    Open,
    /// The same stream ended; the id is that of its `open`.
    Close,
    /// Denials of an endpoint, and connections that served nothing, that were counted instead of written.
    Summary,
}

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A rule allowed it.
    Allow,
    /// Refused.
    Deny,
    /// Not allowed, but every candidate rule only audits.
    WouldDeny,
    /// Allowed, then the other side failed.
    Error,
}

/// Where a call goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dest {
    /// Name or address literal as decided.
    pub host: String,
    /// Port as decided.
    pub port: u16,
    /// Address that was dialled.
    pub addr: Option<SocketAddr>,
    /// The name that aliases of DNS lead to.
    pub canonical: String,
}

/// Stands in the place of a path that no path could be made of. A path starts with `/` or is `*`.
const UNPARSED: &str = "unparsed";

/// One line. Never a query string, a body, a header value or a secret. What many lines have in common is shared, not copied.
#[derive(Debug, Clone)]
pub struct Line {
    /// When it was written.
    pub time: SystemTime,
    /// What the line is about.
    pub kind: Kind,
    /// Names the decision, also to the caller. A summary has none.
    pub decision_id: String,
    /// Bundle that decided.
    pub policy: Option<Arc<Policy>>,
    /// Engine that decided.
    pub engine: &'static str,
    /// `ingress` or `egress`, seen from the workload.
    pub direction: &'static str,
    /// Phase of the last decision.
    pub phase: &'static str,
    /// The endpoint whose supervisor this is.
    pub endpoint: Arc<EndpointSpec>,
    /// The other side: its SPIFFE ID, a name of its certificate, or the subject of its token.
    pub peer: String,
    /// External CA, or issuer of the token, that vouches for the peer.
    pub peer_ca: String,
    /// Address the call came from.
    pub src: Option<SocketAddr>,
    /// Destination.
    pub dest: Dest,
    /// HTTP method.
    pub method: String,
    /// Canonical path, without the query; empty when none could be made.
    pub path: String,
    /// Rule that decided.
    pub rule: Arc<str>,
    /// How it went.
    pub verdict: Verdict,
    /// Closed set; the metric label.
    pub reason: &'static str,
    /// A finer reason from a closed set of its own (the gate's, for example).
    pub detail: &'static str,
    /// Name of the credential, never its value.
    pub credential: Arc<str>,
    /// The app named no port, 80 has no rule, 443 has one: the call went to 443 with TLS.
    pub upgraded: bool,
    /// Name in a ClientHello that was refused for it.
    pub sni: String,
    /// The app spoke TLS of its own, and the supervisor answered it.
    pub intercepted: bool,
    /// HTTP status that the caller got.
    pub status: Option<u16>,
    /// Status code of gRPC that the caller got from us.
    pub grpc_status: Option<u16>,
    /// Bytes of payload from the caller.
    pub bytes_in: u64,
    /// Bytes of payload to the caller.
    pub bytes_out: u64,
    /// From start to end.
    pub duration_us: u64,
    /// How the stream ended.
    pub close: &'static str,
    /// How many lines a summary stands for.
    pub count: Option<u64>,
    /// The canonical decision input: replay needs nothing else.
    pub input: Option<Arc<Input>>,
    /// Of a connection: something that was asked for on it was allowed. Not a field: one that served nothing may be counted.
    pub served: bool,
    /// What the policy said, and when, before anything else had its say. Not a field: for other forms of the log.
    pub decision: Option<(SystemTime, Decision)>,
}

impl Line {
    /// A line that says only whom it is about: a denial with [`Reason::Aborted`] until somebody says otherwise.
    #[must_use]
    pub fn new(kind: Kind, direction: &'static str, endpoint: &Arc<EndpointSpec>) -> Self {
        Self {
            time: SystemTime::UNIX_EPOCH,
            kind,
            decision_id: String::new(),
            policy: None,
            engine: "",
            direction,
            phase: "",
            endpoint: Arc::clone(endpoint),
            peer: String::new(),
            peer_ca: String::new(),
            src: None,
            dest: Dest::default(),
            method: String::new(),
            path: String::new(),
            rule: Arc::default(),
            verdict: Verdict::Deny,
            reason: Reason::Aborted.as_str(),
            detail: "",
            credential: Arc::default(),
            upgraded: false,
            sni: String::new(),
            intercepted: false,
            status: None,
            grpc_status: None,
            bytes_in: 0,
            bytes_out: 0,
            duration_us: 0,
            close: "",
            count: None,
            input: None,
            served: false,
            decision: None,
        }
    }
}

/// The order is part of the format; what is not known is left out.
impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("time", &format_args!("{}", humantime::format_rfc3339_micros(self.time)))?;
        map.serialize_entry("kind", &self.kind)?;
        text(&mut map, "decision_id", &self.decision_id)?;
        text(&mut map, "revision", self.policy.as_ref().map_or("", |policy| policy.revision()))?;
        text(&mut map, "engine", self.engine)?;
        map.serialize_entry("direction", self.direction)?;
        text(&mut map, "phase", self.phase)?;
        map.serialize_entry("workload", self.endpoint.workload.as_str())?;
        map.serialize_entry("pod_uid", self.endpoint.pod_uid.as_str())?;
        map.serialize_entry("generation", &self.endpoint.generation)?;
        text(&mut map, "peer", &self.peer)?;
        text(&mut map, "peer_ca", &self.peer_ca)?;
        known(&mut map, "src", self.src.as_ref())?;
        text(&mut map, "dest_host", &self.dest.host)?;
        known(&mut map, "dest_port", Some(self.dest.port).filter(|port| *port > 0).as_ref())?;
        known(&mut map, "dest_addr", self.dest.addr.as_ref())?;
        text(&mut map, "dest_canonical", &self.dest.canonical)?;
        text(&mut map, "method", &self.method)?;
        text(&mut map, "path", self.path_or_unparsed())?;
        text(&mut map, "rule", &self.rule)?;
        map.serialize_entry("verdict", &self.verdict)?;
        map.serialize_entry("reason", self.reason)?;
        text(&mut map, "detail", self.detail)?;
        text(&mut map, "credential", &self.credential)?;
        known(&mut map, "upgraded", Some(&self.upgraded).filter(|upgraded| **upgraded))?;
        text(&mut map, "sni", &self.sni)?;
        known(&mut map, "intercepted", Some(&self.intercepted).filter(|intercepted| **intercepted))?;
        known(&mut map, "status", self.status.as_ref())?;
        known(&mut map, "grpc_status", self.grpc_status.as_ref())?;
        let is_one = self.kind != Kind::Summary;
        known(&mut map, "bytes_in", Some(&self.bytes_in).filter(|_| is_one))?;
        known(&mut map, "bytes_out", Some(&self.bytes_out).filter(|_| is_one))?;
        known(&mut map, "duration_us", Some(&self.duration_us).filter(|_| is_one))?;
        text(&mut map, "close", self.close)?;
        known(&mut map, "count", self.count.as_ref())?;
        known(&mut map, "input", self.input.as_deref())?;
        map.end()
    }
}

impl Line {
    fn path_or_unparsed(&self) -> &str {
        let is_ping = self.input.as_ref().is_some_and(|input| input.icmp().is_some());
        let should_have_one = (self.kind == Kind::Request && !is_ping) || self.reason == Reason::Malformed.as_str();
        if self.path.is_empty() && should_have_one { UNPARSED } else { &self.path }
    }
}

fn text<M: SerializeMap>(map: &mut M, name: &'static str, text: &str) -> Result<(), M::Error> {
    known(map, name, Some(text).filter(|text| !text.is_empty()))
}

fn known<M: SerializeMap>(
    map: &mut M,
    name: &'static str,
    value: Option<&(impl Serialize + ?Sized)>,
) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| map.serialize_entry(name, value))
}
