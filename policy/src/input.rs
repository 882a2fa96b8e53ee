//! The input of a decision. Its JSON form is what the audit log records and what `replay` and `explain` read back.

mod check;
mod token;

use std::net::IpAddr;
use std::sync::Arc;

use nova_proto::ids::SpiffeId;
use serde::{Deserialize, Serialize};

pub use check::InputError;
use check::RawInput;
pub use token::Token;

use crate::host::Host;
use crate::path::CanonicalPath;

/// `peer_ca` of a peer that our own trust bundle verified. No external CA may have this name.
pub const OWN_CA: &str = "spiffe";

/// Whether a CA of this name is our own: [`OWN_CA`], or none.
pub(crate) fn is_own_ca(name: &str) -> bool {
    name.is_empty() || name == OWN_CA
}

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
    /// Verified by an external CA of the policy, with all the names of its certificate.
    Named {
        /// Name of the CA.
        ca: Arc<str>,
        /// Canonical SPIFFE ID, if there is one.
        id: Option<SpiffeId>,
        /// DNS names. A name with a wildcard names nobody and is left out, as it is no [`Host`].
        dns: Vec<Host>,
        /// The common name, if the subject has exactly one.
        cn: Option<Arc<str>>,
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
    peer_dns: Option<Arc<[Arc<str>]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_cn: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    src_ip: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jwt: Option<Arc<Token>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dest_host: Option<Host>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dest_port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upgrade: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    can: Option<Arc<[Arc<str>]>>,
}

impl Input {
    /// May `source` talk to `host`:`port` at all?
    #[must_use]
    pub fn egress_connect(source: impl Into<Arc<str>>, host: &Host, port: u16) -> Self {
        Self {
            source: Some(source.into()),
            dest_host: Some(host.clone()),
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
        let (id, peer_ca) = match peer {
            Peer::Own(id) => (Some(id), Some(OWN_CA.into())),
            Peer::External { ca, id } => (Some(id), Some(Arc::clone(ca))),
            Peer::Named { ca, id, .. } => (id.as_ref(), Some(Arc::clone(ca))),
            Peer::Anonymous => (None, None),
        };
        let (peer_dns, peer_cn) = match peer {
            Peer::Named { dns, cn, .. } => (check::names(dns.iter().map(Host::shared)), cn.clone()),
            _ => (None, None),
        };
        Self {
            target: Some(target.into()),
            port: Some(port.into()),
            peer: id.map(|id| id.as_str().into()),
            peer_ca,
            peer_dns,
            peer_cn,
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

    /// May `source` send ICMP messages of this type to `address`? The one type there is: `echo`.
    #[must_use]
    pub fn egress_icmp(source: impl Into<Arc<str>>, address: IpAddr, kind: impl Into<Arc<str>>) -> Self {
        Self {
            source: Some(source.into()),
            dest_host: Some(Host::from(address)),
            icmp: Some(kind.into()),
            ..Self::empty(Direction::Egress, Phase::Opaque)
        }
    }

    /// The same pair, asked for uninspected bytes.
    #[must_use]
    pub fn opaque(&self) -> Self {
        Self { phase: Phase::Opaque, method: None, path: None, jwt: None, upgrade: None, ..self.clone() }
    }

    /// The same pair, asked for one request. Shares the strings of the connection.
    #[must_use]
    pub fn request(&self, method: &str, path: &CanonicalPath) -> Self {
        let (method, path) = (Some(method.into()), Some(path.path().into()));
        Self { phase: Phase::Request, method, path, jwt: None, upgrade: None, ..self.clone() }
    }

    /// The same pair, asked whether it may talk at all.
    #[must_use]
    pub fn connect(&self) -> Self {
        Self { phase: Phase::Connect, method: None, path: None, jwt: None, upgrade: None, ..self.clone() }
    }

    /// The same request to a workload, with a token that was verified. Other inputs have none and stay as they are.
    #[must_use]
    pub fn with_token(self, token: Arc<Token>) -> Self {
        if self.direction == Direction::Ingress && self.phase == Phase::Request {
            return Self { jwt: Some(token), ..self };
        }
        self
    }

    /// The same request, which asks to change the protocol. Other inputs ask for none and stay as they are.
    #[must_use]
    pub fn with_upgrade(self, protocol: impl Into<Arc<str>>) -> Self {
        let protocol = Some(protocol.into()).filter(|protocol| !protocol.is_empty());
        if self.phase == Phase::Request {
            return Self { upgrade: protocol, ..self };
        }
        self
    }

    /// The same, asked by a supervisor that can do what some rules need. Without it, those rules grant nothing.
    #[must_use]
    pub fn with_abilities(self, can: impl IntoIterator<Item = Arc<str>>) -> Self {
        Self { can: check::names(can), ..self }
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
            peer_dns: None,
            peer_cn: None,
            src_ip: None,
            jwt: None,
            dest_host: None,
            dest_port: None,
            icmp: None,
            method: None,
            path: None,
            upgrade: None,
            can: None,
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
    pub(crate) const TEXTS: [&'static str; 12] = [
        "source",
        "target",
        "port",
        "peer",
        "peer_ca",
        "peer_cn",
        "src_ip",
        "dest_host",
        "icmp",
        "method",
        "path",
        "upgrade",
    ];

    /// The text fields. `dest_port` is a number and has its own accessor; see also [`Input::structures`].
    pub(crate) fn texts(&self) -> [Option<&Arc<str>>; 12] {
        [
            self.source.as_ref(),
            self.target.as_ref(),
            self.port.as_ref(),
            self.peer.as_ref(),
            self.peer_ca.as_ref(),
            self.peer_cn.as_ref(),
            self.src_ip.as_ref(),
            self.dest_host.as_ref().map(Host::text),
            self.icmp.as_ref(),
            self.method.as_ref(),
            self.path.as_ref(),
            self.upgrade.as_ref(),
        ]
    }

    /// The fields that are neither text nor number, as JSON. Few inputs have any.
    pub(crate) fn structures(&self) -> impl Iterator<Item = (&'static str, serde_json::Value)> {
        let list = |list: &Arc<[Arc<str>]>| list.iter().map(|text| serde_json::Value::from(&**text)).collect();
        let token = self.jwt.as_ref().map(|token| token.to_json());
        [("peer_dns", self.peer_dns.as_ref().map(list)), ("jwt", token), ("can", self.can.as_ref().map(list))]
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
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

    /// DNS names of the peer's certificate.
    #[must_use]
    pub fn peer_dns(&self) -> &[Arc<str>] {
        self.peer_dns.as_deref().unwrap_or_default()
    }

    /// Common name of the peer's certificate.
    #[must_use]
    pub fn peer_cn(&self) -> Option<&str> {
        self.peer_cn.as_deref()
    }

    /// The verified token of a request.
    #[must_use]
    pub fn token(&self) -> Option<&Token> {
        self.jwt.as_deref()
    }

    /// Type of an ICMP message.
    #[must_use]
    pub fn icmp(&self) -> Option<&str> {
        self.icmp.as_deref()
    }

    /// The protocol a request asks to change to.
    #[must_use]
    pub fn upgrade(&self) -> Option<&str> {
        self.upgrade.as_deref()
    }

    /// What the supervisor can do beyond the ordinary.
    #[must_use]
    pub fn can(&self) -> &[Arc<str>] {
        self.can.as_deref().unwrap_or_default()
    }

    /// Source address of an ingress input.
    #[must_use]
    pub fn src_ip(&self) -> Option<&str> {
        self.src_ip.as_deref()
    }

    /// Destination host of an egress input.
    #[must_use]
    pub fn dest_host(&self) -> Option<&str> {
        self.dest_host.as_ref().map(Host::as_str)
    }

    /// The same, parsed.
    #[must_use]
    pub fn host(&self) -> Option<&Host> {
        self.dest_host.as_ref()
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

#[cfg(test)]
mod tests;
