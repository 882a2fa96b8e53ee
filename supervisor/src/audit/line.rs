//! The fields of an audit line, in the order in which they are written.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

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
    /// Names the decision, also to the caller.
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
    /// The other side's SPIFFE ID.
    pub peer: String,
    /// External CA that vouches for the peer.
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
    pub rule: String,
    /// How it went.
    pub verdict: Verdict,
    /// Closed set; the metric label.
    pub reason: &'static str,
    /// A finer reason from a closed set of its own (the gate's, for example).
    pub detail: &'static str,
    /// Name of the credential, never its value.
    pub credential: String,
    /// The app named no port, 80 has no rule, 443 has one: the call went to 443 with TLS.
    pub upgraded: bool,
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
    /// The canonical decision input: replay needs nothing else.
    pub input: Option<Arc<Input>>,
}

/// The order is part of the format; what is not known is left out.
impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("time", &format_args!("{}", humantime::format_rfc3339_micros(self.time)))?;
        map.serialize_entry("kind", &self.kind)?;
        map.serialize_entry("decision_id", &self.decision_id)?;
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
        text(&mut map, "method", &self.method)?;
        text(&mut map, "path", self.path_or_unparsed())?;
        text(&mut map, "rule", &self.rule)?;
        map.serialize_entry("verdict", &self.verdict)?;
        map.serialize_entry("reason", self.reason)?;
        text(&mut map, "detail", self.detail)?;
        text(&mut map, "credential", &self.credential)?;
        known(&mut map, "upgraded", Some(&self.upgraded).filter(|upgraded| **upgraded))?;
        known(&mut map, "status", self.status.as_ref())?;
        known(&mut map, "grpc_status", self.grpc_status.as_ref())?;
        map.serialize_entry("bytes_in", &self.bytes_in)?;
        map.serialize_entry("bytes_out", &self.bytes_out)?;
        map.serialize_entry("duration_us", &self.duration_us)?;
        text(&mut map, "close", self.close)?;
        known(&mut map, "input", self.input.as_deref())?;
        map.end()
    }
}

impl Line {
    fn path_or_unparsed(&self) -> &str {
        let should_have_one = self.kind == Kind::Request || self.reason == Reason::Malformed.as_str();
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
