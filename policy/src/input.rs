//! The input of a decision. Its JSON form is what the audit log records and what `replay` and `explain` read back.

use std::net::IpAddr;
use std::sync::Arc;

use nova_proto::ids::SpiffeId;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::host::{Host, HostError};
use crate::path::{CanonicalPath, PathError};

/// `peer_ca` of a peer that our own trust bundle verified. No external CA may have this name.
pub const OWN_CA: &str = "spiffe";

/// Which way the bytes go, seen from the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Out of the workload.
    Egress,
    /// Into the workload.
    Ingress,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// May this pair talk at all?
    Connect,
    /// May bytes be copied that nobody looks at?
    Opaque,
    /// May this request pass?
    Request,
}

/// Who stands at the other end of an ingress connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// Verified by the node's own trust bundle.
    Own(SpiffeId),
    /// Verified by an external CA of the policy.
    External {
        /// Name of the CA.
        ca: Arc<str>,
        /// Canonical SPIFFE ID out of its certificate.
        id: SpiffeId,
    },
    /// No client certificate: the port does not ask for one.
    Anonymous,
}

/// Everything a decision depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawInput")]
pub struct Input {
    direction: Direction,
    phase: Phase,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_ca: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    src_ip: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dest_host: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dest_port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<Arc<str>>,
}

impl Input {
    /// May `source` talk to `host`:`port` at all?
    #[must_use]
    pub fn egress_connect(source: impl Into<Arc<str>>, host: &Host, port: u16) -> Self {
        Self {
            source: Some(source.into()),
            dest_host: Some(host.shared()),
            dest_port: Some(port),
            ..Self::empty(Direction::Egress, Phase::Connect)
        }
    }

    /// May `source` exchange uninspected bytes with `host`:`port`?
    #[must_use]
    pub fn egress_opaque(source: impl Into<Arc<str>>, host: &Host, port: u16) -> Self {
        Self::egress_connect(source, host, port).opaque()
    }

    /// May `source` send this request to `host`:`port`?
    #[must_use]
    pub fn egress_request(
        source: impl Into<Arc<str>>,
        host: &Host,
        port: u16,
        method: &str,
        path: &CanonicalPath,
    ) -> Self {
        Self::egress_connect(source, host, port).request(method, path)
    }

    /// May `peer` talk to port `port` (by name) of `target` at all?
    #[must_use]
    pub fn ingress_connect(
        target: impl Into<Arc<str>>,
        port: impl Into<Arc<str>>,
        peer: &Peer,
        source_ip: IpAddr,
    ) -> Self {
        let (peer, peer_ca) = match peer {
            Peer::Own(id) => (Some(id.as_str().into()), Some(OWN_CA.into())),
            Peer::External { ca, id } => (Some(id.as_str().into()), Some(Arc::clone(ca))),
            Peer::Anonymous => (None, None),
        };
        Self {
            target: Some(target.into()),
            port: Some(port.into()),
            peer,
            peer_ca,
            src_ip: Some(source_ip.to_canonical().to_string().into()),
            ..Self::empty(Direction::Ingress, Phase::Connect)
        }
    }

    /// May `peer` exchange uninspected bytes with that port?
    #[must_use]
    pub fn ingress_opaque(
        target: impl Into<Arc<str>>,
        port: impl Into<Arc<str>>,
        peer: &Peer,
        source_ip: IpAddr,
    ) -> Self {
        Self::ingress_connect(target, port, peer, source_ip).opaque()
    }

    /// May `peer` send this request to that port?
    #[must_use]
    pub fn ingress_request(
        target: impl Into<Arc<str>>,
        port: impl Into<Arc<str>>,
        peer: &Peer,
        source_ip: IpAddr,
        method: &str,
        path: &CanonicalPath,
    ) -> Self {
        Self::ingress_connect(target, port, peer, source_ip).request(method, path)
    }

    /// The same pair, asked for uninspected bytes.
    #[must_use]
    pub fn opaque(&self) -> Self {
        Self { phase: Phase::Opaque, method: None, path: None, ..self.clone() }
    }

    /// The same pair, asked for one request. Shares the strings of the connection.
    #[must_use]
    pub fn request(&self, method: &str, path: &CanonicalPath) -> Self {
        Self { phase: Phase::Request, method: Some(method.into()), path: Some(path.path().into()), ..self.clone() }
    }

    /// The same pair, asked whether it may talk at all.
    #[must_use]
    pub fn connect(&self) -> Self {
        Self { phase: Phase::Connect, method: None, path: None, ..self.clone() }
    }

    fn empty(direction: Direction, phase: Phase) -> Self {
        Self {
            direction,
            phase,
            source: None,
            target: None,
            port: None,
            peer: None,
            peer_ca: None,
            src_ip: None,
            dest_host: None,
            dest_port: None,
            method: None,
            path: None,
        }
    }

    /// Which way the bytes go.
    #[must_use]
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// What is asked.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The workload whose policy decides: source of egress, target of ingress.
    #[must_use]
    pub fn workload(&self) -> &str {
        let workload = match self.direction {
            Direction::Egress => self.source.as_deref(),
            Direction::Ingress => self.target.as_deref(),
        };
        workload.unwrap_or_default()
    }

    /// JSON names of the text fields, in the order of [`Input::texts`].
    pub(crate) const TEXTS: [&'static str; 9] =
        ["source", "target", "port", "peer", "peer_ca", "src_ip", "dest_host", "method", "path"];

    /// The text fields. `dest_port` is a number and has its own accessor.
    pub(crate) fn texts(&self) -> [Option<&Arc<str>>; 9] {
        [
            self.source.as_ref(),
            self.target.as_ref(),
            self.port.as_ref(),
            self.peer.as_ref(),
            self.peer_ca.as_ref(),
            self.src_ip.as_ref(),
            self.dest_host.as_ref(),
            self.method.as_ref(),
            self.path.as_ref(),
        ]
    }

    /// Port name of an ingress input.
    #[must_use]
    pub fn port(&self) -> Option<&str> {
        self.port.as_deref()
    }

    /// The peer's SPIFFE ID.
    #[must_use]
    pub fn peer(&self) -> Option<&str> {
        self.peer.as_deref()
    }

    /// Name of the CA that verified the peer; [`OWN_CA`] for our own.
    #[must_use]
    pub fn peer_ca(&self) -> Option<&str> {
        self.peer_ca.as_deref()
    }

    /// Source address of an ingress input.
    #[must_use]
    pub fn src_ip(&self) -> Option<&str> {
        self.src_ip.as_deref()
    }

    /// Destination host of an egress input.
    #[must_use]
    pub fn dest_host(&self) -> Option<&str> {
        self.dest_host.as_deref()
    }

    /// Destination port of an egress input.
    #[must_use]
    pub fn dest_port(&self) -> Option<u16> {
        self.dest_port
    }

    /// Method of a request.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// Canonical path of a request.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }
}

/// Why a JSON text is not an input.
#[derive(Debug, Error)]
pub enum InputError {
    /// A field that this direction or phase needs is missing.
    #[error("field {0:?} is missing")]
    Missing(&'static str),
    /// A field that belongs to the other direction or another phase.
    #[error("field {0:?} does not belong to this direction or phase")]
    Unexpected(&'static str),
    /// `dest_host` is not a host.
    #[error("dest_host: {0}")]
    Host(HostError),
    /// `path` is not a path, or has a query.
    #[error("path: {0}")]
    Path(PathError),
    /// `path` has a query, which no decision looks at.
    #[error("path: a query is never matched, leave it out")]
    Query,
    /// `src_ip` is not an address.
    #[error("src_ip is not an IP address")]
    Address,
    /// `peer` is not a canonical SPIFFE ID.
    #[error("peer: {0}")]
    Peer(nova_proto::ids::InvalidId),
    /// `dest_port` is 0.
    #[error("dest_port is 0")]
    Port,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawInput {
    direction: Direction,
    phase: Phase,
    source: Option<Arc<str>>,
    target: Option<Arc<str>>,
    port: Option<Arc<str>>,
    peer: Option<Arc<str>>,
    peer_ca: Option<Arc<str>>,
    src_ip: Option<Arc<str>>,
    dest_host: Option<Arc<str>>,
    dest_port: Option<u16>,
    method: Option<Arc<str>>,
    path: Option<Arc<str>>,
}

impl TryFrom<RawInput> for Input {
    type Error = InputError;

    fn try_from(raw: RawInput) -> Result<Self, InputError> {
        raw.check_fields()?;
        let dest_host = raw.dest_host.as_deref().map(Host::parse).transpose().map_err(InputError::Host)?;
        if raw.dest_port == Some(0) {
            return Err(InputError::Port);
        }
        if let Some(peer) = raw.peer.as_deref().filter(|peer| !peer.is_empty()) {
            SpiffeId::new(peer).map_err(InputError::Peer)?;
        }
        let src_ip: Option<IpAddr> =
            raw.src_ip.as_deref().map(str::parse).transpose().map_err(|_| InputError::Address)?;
        let path = raw.path.as_deref().map(checked_path).transpose()?;
        Ok(Self {
            direction: raw.direction,
            phase: raw.phase,
            source: raw.source,
            target: raw.target,
            port: raw.port,
            peer: raw.peer,
            peer_ca: raw.peer_ca,
            src_ip: src_ip.map(|ip| ip.to_canonical().to_string().into()),
            dest_host: dest_host.map(|host| host.shared()),
            dest_port: raw.dest_port,
            method: raw.method,
            path,
        })
    }
}

impl RawInput {
    fn check_fields(&self) -> Result<(), InputError> {
        let egress = self.direction == Direction::Egress;
        let request = self.phase == Phase::Request;
        for (name, present, wanted) in [
            ("source", self.source.is_some(), egress),
            ("dest_host", self.dest_host.is_some(), egress),
            ("dest_port", self.dest_port.is_some(), egress),
            ("target", self.target.is_some(), !egress),
            ("port", self.port.is_some(), !egress),
            ("src_ip", self.src_ip.is_some(), !egress),
            ("method", self.method.is_some(), request),
            ("path", self.path.is_some(), request),
        ] {
            match (present, wanted) {
                (false, true) => return Err(InputError::Missing(name)),
                (true, false) => return Err(InputError::Unexpected(name)),
                _ => {}
            }
        }
        match (egress, self.peer.is_some(), self.peer_ca.is_some()) {
            (true, true, _) => Err(InputError::Unexpected("peer")),
            (true, _, true) => Err(InputError::Unexpected("peer_ca")),
            _ => Ok(()),
        }
    }
}

fn checked_path(text: &str) -> Result<Arc<str>, InputError> {
    if text == "*" {
        return Ok(text.into());
    }
    let path = CanonicalPath::parse(text.as_bytes()).map_err(InputError::Path)?;
    if path.path() != path.path_and_query() {
        return Err(InputError::Query);
    }
    Ok(path.path().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Input, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn inputs_that_no_supervisor_writes_are_refused() {
        for bad in [
            r#"{}"#,
            r#"{"direction":"sideways","phase":"connect"}"#,
            r#"{"direction":"egress","phase":"connect","source":"x","dest_host":"h"}"#,
            r#"{"direction":"egress","phase":"connect","source":"x","dest_host":"h","dest_port":0}"#,
            r#"{"direction":"egress","phase":"connect","source":"x","dest_host":"h h","dest_port":1}"#,
            r#"{"direction":"egress","phase":"connect","source":"x","dest_host":"h","dest_port":1,"peer":"spiffe://a/b"}"#,
            r#"{"direction":"egress","phase":"connect","source":"x","dest_host":"h","dest_port":1,"method":"GET"}"#,
            r#"{"direction":"egress","phase":"request","source":"x","dest_host":"h","dest_port":1,"method":"GET","path":"/a?b"}"#,
            r#"{"direction":"egress","phase":"request","source":"x","dest_host":"h","dest_port":1,"method":"GET","path":"/../b"}"#,
            r#"{"direction":"ingress","phase":"connect","target":"x","port":"p","src_ip":"bogus"}"#,
            r#"{"direction":"ingress","phase":"connect","target":"x","port":"p","src_ip":"1.1.1.1","peer":"spiffe://a/../b"}"#,
            r#"{"direction":"ingress","phase":"connect","target":"x","port":"p","src_ip":"1.1.1.1","extra":1}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_json_form_is_stable_and_reads_back() {
        let peer = Peer::Own(SpiffeId::new("spiffe://dev.invalid/t/t/w/x").expect("valid"));
        let path = CanonicalPath::parse(b"/v1/orders/42?secret=1").expect("valid");
        let input = Input::ingress_request("service-a", "https", &peer, [10, 64, 3, 21].into(), "GET", &path);
        let text = serde_json::to_string(&input).expect("serialises");
        assert_eq!(
            text,
            r#"{"direction":"ingress","phase":"request","target":"service-a","port":"https","peer":"spiffe://dev.invalid/t/t/w/x","peer_ca":"spiffe","src_ip":"10.64.3.21","method":"GET","path":"/v1/orders/42"}"#
        );
        assert_eq!(read(&text).expect("reads back"), input);
        let host = Host::parse("API.stripe.com.").expect("valid");
        assert_eq!(
            serde_json::to_string(&Input::egress_connect("x", &host, 443)).expect("serialises"),
            r#"{"direction":"egress","phase":"connect","source":"x","dest_host":"api.stripe.com","dest_port":443}"#
        );
    }
}
