//! The fields of an audit line, in the order in which they are written.

use nova_policy::input::Input;
use serde::Serialize;

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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Dest {
    /// Name or address literal as decided.
    #[serde(rename = "dest_host", skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Port as decided.
    #[serde(rename = "dest_port", skip_serializing_if = "is_zero")]
    pub port: u16,
    /// Address that was dialled.
    #[serde(rename = "dest_addr", skip_serializing_if = "Option::is_none")]
    pub addr: Option<std::net::SocketAddr>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(port: &u16) -> bool {
    *port == 0
}

/// One line. Never a query string, a body, a header value or a secret.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// RFC 3339, UTC, microseconds.
    pub time: String,
    /// What the line is about.
    pub kind: Kind,
    /// Names the decision, also to the caller.
    pub decision_id: String,
    /// Bundle revision that decided.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// Engine that decided.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub engine: &'static str,
    /// `ingress` or `egress`, seen from the workload.
    pub direction: &'static str,
    /// Phase of the last decision.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub phase: &'static str,
    /// The workload whose supervisor this is.
    pub workload: String,
    /// Its pod.
    pub pod_uid: String,
    /// Its generation.
    pub generation: u64,
    /// The other side's SPIFFE ID.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub peer: String,
    /// External CA that vouches for the peer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub peer_ca: String,
    /// Address the call came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src: Option<std::net::SocketAddr>,
    /// Destination.
    #[serde(flatten)]
    pub dest: Dest,
    /// HTTP method.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub method: String,
    /// Canonical path, without the query.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Rule that decided.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// How it went.
    pub verdict: Verdict,
    /// Closed set; the metric label.
    pub reason: &'static str,
    /// A finer reason from a closed set of its own (the gate's, for example).
    #[serde(skip_serializing_if = "str::is_empty")]
    pub detail: &'static str,
    /// Name of the credential, never its value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub credential: String,
    /// The app named no port, 80 has no rule, 443 has one: the call went to 443 with TLS.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub upgraded: bool,
    /// HTTP status that the caller got.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Bytes of payload from the caller.
    pub bytes_in: u64,
    /// Bytes of payload to the caller.
    pub bytes_out: u64,
    /// From start to end.
    pub duration_us: u64,
    /// How the stream ended.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub close: &'static str,
    /// The canonical decision input: replay needs nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Input>,
}
