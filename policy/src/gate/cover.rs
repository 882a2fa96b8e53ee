//! Which pairs are part of another one.

use super::flat::{Key, Names};
use super::matcher::Matcher;

/// Whether `own` covers `other`: the same entry, or a wider one of a list about the same kind of peers.
pub(super) fn covers(own: (&Key, &Matcher), other: (&Key, &Matcher)) -> bool {
    own.0 == other.0 || (family(own.0) == family(other.0) && own.1.covers(other.1))
}

/// Lists whose entries may contain each other. Peers of one CA are never those of another, and a URI is no DNS name.
fn family(key: &Key) -> (&str, &str) {
    let part = |index: usize| key.list.get(index).map(String::as_str).unwrap_or_default();
    match (part(0), part(2)) {
        ("external", "exact" | "prefix") => (part(1), "uri"),
        ("external", "dns" | "dns_suffix") => (part(1), "dns"),
        ("external", other) => (part(1), other),
        ("exact" | "suffix" | "cidr", _) => ("", ""),
        (other, _) => ("", other),
    }
}

/// A pair as people write it.
pub(super) fn shown(scope: &[String], key: &Key, matcher: &Matcher, known: &Names) -> String {
    let other = match matcher {
        Matcher::Destination { host, port } => known.destination(&format!("{host}:{port}")),
        Matcher::Suffix { suffix, port } => format!("*{suffix}:{port}"),
        Matcher::Range { range, port: Some(port) } => format!("{range}:{port}"),
        Matcher::Range { range, port: None } => range.to_string(),
        Matcher::Peer(peer) => known.identity(peer),
        Matcher::PeerPrefix(prefix) => format!("{prefix}*"),
        Matcher::PeerSuffix(suffix) => format!("*{suffix}"),
        Matcher::Other => format!("{} {}", key.list.join("/"), key.entry),
    };
    let other = match family(key) {
        ("", "") => other,
        ("", "peer") => other,
        ("", kind) => format!("{other} ({kind})"),
        (ca, "uri") => format!("{other} (CA {ca})"),
        (ca, kind) => format!("{other} (CA {ca}, {kind})"),
    };
    match scope.get(1).map(String::as_str) {
        Some("egress") => format!("{} -> {other}", scope[2]),
        _ => format!("{other} -> {}", scope[2..].join(":")),
    }
}
