//! What an input that was read back must look like: exactly what a supervisor writes.

use std::net::IpAddr;
use std::sync::Arc;

use nova_proto::ids::SpiffeId;
use serde::Deserialize;
use thiserror::Error;

use super::{Direction, Input, Phase, Token, is_own_ca};
use crate::host::{Host, HostError};
use crate::path::{CanonicalPath, PathError};

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
    /// `peer_dns` has something else than host names.
    #[error("peer_dns: {0}")]
    PeerDns(HostError),
    /// `path` is not a path, or has a query.
    #[error("path: {0}")]
    Path(PathError),
    /// `path` has a query, which no decision looks at.
    #[error("path: a query is never matched, leave it out")]
    Query,
    /// `src_ip` is not an address.
    #[error("src_ip is not an IP address")]
    Address,
    /// ICMP goes to addresses.
    #[error("dest_host of an ICMP message is not an IP address")]
    IcmpAddress,
    /// `peer` is not a canonical SPIFFE ID.
    #[error("peer: {0}")]
    Peer(nova_proto::ids::InvalidId),
    /// `dest_port` is 0.
    #[error("dest_port is 0")]
    Port,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawInput {
    direction: Direction,
    phase: Phase,
    source: Option<Arc<str>>,
    target: Option<Arc<str>>,
    port: Option<Arc<str>>,
    peer: Option<Arc<str>>,
    peer_ca: Option<Arc<str>>,
    peer_dns: Option<Vec<Arc<str>>>,
    peer_cn: Option<Arc<str>>,
    src_ip: Option<Arc<str>>,
    jwt: Option<Arc<Token>>,
    dest_host: Option<Arc<str>>,
    dest_port: Option<u16>,
    icmp: Option<Arc<str>>,
    method: Option<Arc<str>>,
    path: Option<Arc<str>>,
    upgrade: Option<Arc<str>>,
    can: Option<Vec<Arc<str>>>,
}

impl TryFrom<RawInput> for Input {
    type Error = InputError;

    fn try_from(raw: RawInput) -> Result<Self, InputError> {
        raw.check_fields()?;
        let dest_host = raw.dest_host.as_deref().map(Host::parse).transpose().map_err(InputError::Host)?;
        if raw.icmp.is_some() && dest_host.as_ref().is_none_or(|host| host.address().is_none()) {
            return Err(InputError::IcmpAddress);
        }
        if raw.dest_port == Some(0) {
            return Err(InputError::Port);
        }
        if let Some(peer) = raw.peer.as_deref().filter(|peer| !peer.is_empty()) {
            SpiffeId::new(peer).map_err(InputError::Peer)?;
        }
        let peer_dns = raw.peer_dns.unwrap_or_default();
        let peer_dns: Vec<Host> =
            peer_dns.iter().map(|name| Host::parse(name)).collect::<Result<_, _>>().map_err(InputError::PeerDns)?;
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
            peer_dns: names(peer_dns.iter().map(Host::shared)),
            peer_cn: raw.peer_cn,
            src_ip: src_ip.map(|ip| ip.to_canonical().to_string().into()),
            jwt: raw.jwt,
            dest_host,
            dest_port: raw.dest_port,
            icmp: raw.icmp,
            method: raw.method,
            path,
            // As for the policy: to ask for nothing is not to ask.
            upgrade: raw.upgrade.filter(|protocol| !protocol.is_empty()),
            can: names(raw.can.unwrap_or_default()),
        })
    }
}

impl RawInput {
    fn check_fields(&self) -> Result<(), InputError> {
        let egress = self.direction == Direction::Egress;
        let request = self.phase == Phase::Request;
        let icmp = self.icmp.is_some();
        for (name, present, wanted) in [
            ("source", self.source.is_some(), egress),
            ("dest_host", self.dest_host.is_some(), egress),
            ("dest_port", self.dest_port.is_some(), egress && !icmp),
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
        // Names out of a certificate count under the external CA that verified it, so they never come without one.
        let outside = !egress && self.peer_ca.as_deref().is_some_and(|ca| !is_own_ca(ca));
        for (name, present, allowed) in [
            ("peer", self.peer.is_some(), !egress),
            ("peer_ca", self.peer_ca.is_some(), !egress),
            ("peer_dns", self.peer_dns.is_some(), outside),
            ("peer_cn", self.peer_cn.is_some(), outside),
            ("jwt", self.jwt.is_some(), !egress && request),
            ("icmp", icmp, egress && !request),
            ("upgrade", self.upgrade.is_some(), request),
        ] {
            if present && !allowed {
                return Err(InputError::Unexpected(name));
            }
        }
        Ok(())
    }
}

/// A list in its one order; `None` when it is empty.
pub(super) fn names(names: impl IntoIterator<Item = Arc<str>>) -> Option<Arc<[Arc<str>]>> {
    let sorted: std::collections::BTreeSet<Arc<str>> = names.into_iter().collect();
    (!sorted.is_empty()).then(|| sorted.into_iter().collect())
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
