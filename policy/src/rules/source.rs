//! Reads `from`: who calls.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use nova_proto::ids::{SpiffeId, WorkloadId};

use super::names::{ca_name, cidr, host_pattern};
use super::{PeerPattern, Source, Token, UriPattern};
use crate::workloads;
use crate::yaml::{Map, Node, Reader, Value};

/// Keys of `from`.
pub(super) const KEYS: [&str; 8] = ["workload", "labels", "cidr", "external_ca", "uri", "dns", "cn", "jwt"];
/// Keys of `jwt`.
pub(super) const JWT_KEYS: [&str; 3] = ["issuer", "subject", "claims"];
/// Most claims of a rule, and most values of a claim.
const MAX_CLAIMS: usize = 16;
const MAX_VALUES: usize = 64;

/// `from` with its extra conditions.
pub(super) struct From {
    pub(super) source: Source,
    pub(super) cidr: Option<IpNet>,
    pub(super) jwt: Option<Token>,
}

/// `None` when a part cannot be read: a rule must never lose a condition and become wider.
pub(super) fn read(reader: &mut Reader<'_>, node: &Node) -> Option<From> {
    let map = reader.map(node, "from", &KEYS)?;
    for key in ["uri", "dns", "cn"] {
        if let Some(node) = map.get(key).filter(|_| map.get("external_ca").is_none()) {
            let message = format!("{key} without external_ca");
            reader.fail(node.at, message, "add external_ca, or name a workload instead");
        }
    }
    let cidr = match map.get("cidr") {
        Some(node) => Some(cidr(reader, node)?),
        None => None,
    };
    let jwt = match map.get("jwt") {
        Some(node) => Some(token(reader, node)?),
        None => None,
    };
    let source = match (map.get("workload"), map.get("labels"), map.get("external_ca"), &jwt) {
        (Some(node), None, None, None) => workload(reader, node).map(Source::Workload),
        (None, Some(node), None, None) => workloads::read_labels(reader, node).map(Source::Labels),
        (None, None, Some(node), None) => external(reader, &map, node),
        (None, None, None, _) if cidr.is_some() || jwt.is_some() => Some(Source::Anyone),
        _ => {
            let remedy = "write one of workload, labels, external_ca or jwt, or a cidr; a cidr may stand beside each";
            reader.fail(map.at, "from must have exactly one kind", remedy);
            None
        }
    }?;
    Some(From { source, cidr, jwt })
}

/// The id of a workload.
pub(super) fn workload(reader: &mut Reader<'_>, node: &Node) -> Option<WorkloadId> {
    reader.parsed(node, "workload", "write the id of a workload", |text| WorkloadId::new(text))
}

fn external(reader: &mut Reader<'_>, map: &Map<'_>, node: &Node) -> Option<Source> {
    let ca = ca_name(reader, node);
    let name = match (map.get("uri"), map.get("dns"), map.get("cn")) {
        (Some(node), None, None) => {
            let remedy = "write spiffe://<domain>/<path>, or end it in /*";
            reader.parsed(node, "uri", remedy, uri_pattern).map(PeerPattern::Uri)
        }
        (None, Some(node), None) => {
            let remedy = "write a DNS name, or *. and a name with at least two labels";
            reader.parsed(node, "dns", remedy, host_pattern).map(PeerPattern::Dns)
        }
        (None, None, Some(node)) => {
            reader.parsed(node, "cn", "write the whole common name", common_name).map(PeerPattern::CommonName)
        }
        (None, None, None) => {
            let remedy = "add `uri: spiffe://partner/*`, or dns or cn";
            reader.fail(map.at, "external_ca needs a name: key \"uri\" is missing", remedy);
            None
        }
        _ => {
            reader.fail(map.at, "external_ca has more than one of uri, dns and cn", "keep one, or write two rules");
            None
        }
    };
    Some(Source::External { ca: ca?, name: name? })
}

fn token(reader: &mut Reader<'_>, node: &Node) -> Option<Token> {
    let map = reader.map(node, "jwt", &JWT_KEYS)?;
    let issuer = reader
        .need(&map, "issuer", "https://issuer.example")
        .and_then(|node| reader.parsed(node, "issuer", "write the token's iss as it is", plain_text));
    let subject = match map.get("subject") {
        Some(node) => Some(reader.parsed(node, "subject", "write the token's sub as it is", plain_text)?),
        None => None,
    };
    let claims = match map.get("claims") {
        Some(node) => claims(reader, node)?,
        None => BTreeMap::new(),
    };
    if subject.is_none() && claims.is_empty() {
        reader.fail(map.at, "an issuer alone lets everybody in whom it knows", "add a subject or claims");
        return None;
    }
    Some(Token { issuer: issuer?, subject, claims })
}

fn claims(reader: &mut Reader<'_>, node: &Node) -> Option<BTreeMap<String, BTreeSet<String>>> {
    let map = reader.any_map(node, "claims")?;
    let mut all = BTreeMap::new();
    for (name, at, node) in map.iter() {
        let values: &[Node] = match &node.value {
            Value::List(_) => reader.list(node, "the claim", MAX_VALUES),
            _ => std::slice::from_ref(node),
        };
        let mut wanted = BTreeSet::new();
        for node in values {
            wanted.insert(reader.parsed(node, "the claim", "write its value as text", plain_text)?);
        }
        if plain_text(name).is_err() || wanted.is_empty() || all.len() == MAX_CLAIMS {
            let remedy = format!("write up to {MAX_CLAIMS} claims, `role: admin` or `role: [admin, ops]`");
            reader.fail(at, "a claim without values, without a plain name, or one too many", remedy);
            return None;
        }
        all.insert(name.to_owned(), wanted);
    }
    Some(all)
}

/// Printable ASCII without wildcards that nobody would expand.
fn plain_text(text: &str) -> Result<String, &'static str> {
    let good = (1..=256).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if text.contains('*') {
        return Err("'*' is not expanded here: only whole values are compared");
    }
    if good { Ok(text.to_owned()) } else { Err("1 to 256 printable ASCII characters without spaces") }
}

/// Common names are free text without an owner, so only a whole one names anybody.
fn common_name(text: &str) -> Result<String, &'static str> {
    if text.contains('*') {
        return Err("common names are compared whole: '*' is not allowed");
    }
    let printable = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    let good = (1..=64).contains(&text.len()) && text.bytes().all(printable) && text.trim() == text;
    if good { Ok(text.to_owned()) } else { Err("1 to 64 printable ASCII characters, no space at either end") }
}

fn uri_pattern(text: &str) -> Result<UriPattern, String> {
    let prefix = match text.strip_suffix('*') {
        Some(prefix) => prefix,
        None if text.ends_with('/') => text,
        None => return SpiffeId::new(text).map(UriPattern::Exact).map_err(|error| error.to_string()),
    };
    if !prefix.ends_with('/') {
        return Err("a prefix must end in '/', else it covers names of others".to_owned());
    }
    match SpiffeId::new(format!("{prefix}x")) {
        Ok(_) => Ok(UriPattern::Prefix(prefix.to_owned())),
        Err(_) => Err("not the start of a SPIFFE ID: spiffe://<domain>/, no empty or dot segment".to_owned()),
    }
}
