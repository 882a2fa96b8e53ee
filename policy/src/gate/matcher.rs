//! The other side of a pair: which peers or destinations an entry of a list stands for.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::risk::Kind;
use crate::bundle::canonical::Json;

/// The other side of a pair, as the data's list tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Matcher {
    /// `host:port`
    Destination { host: String, port: String },
    /// `*suffix:port`
    Suffix { suffix: String, port: String },
    /// Addresses; the port is the destination's.
    Range { range: IpNet, port: Option<String> },
    /// One peer.
    Peer(String),
    /// Peers under a prefix.
    PeerPrefix(String),
    /// Peers with a name under a domain.
    PeerSuffix(String),
    /// A list or an entry that this build does not know.
    Other,
}

impl Matcher {
    /// Of a list whose name is the other side itself.
    pub(super) fn of_key(scope: &[String], list: &[String], entry: &str) -> Self {
        match names(scope, list).as_slice() {
            ["egress", "exact"] => match entry.rsplit_once(':') {
                Some((host, port)) => Self::Destination { host: host.to_owned(), port: port.to_owned() },
                None => Self::Other,
            },
            ["ingress", "peer" | "jwt"] | ["ingress", "external", _, "exact" | "dns" | "cn"] => {
                Self::Peer(entry.to_owned())
            }
            _ => Self::Other,
        }
    }

    /// Of an entry with members of its own. A member more than we know makes it unknown.
    pub(super) fn of_entry(scope: &[String], list: &[String], entry: &BTreeMap<String, Json>) -> Self {
        let members: Vec<&str> = entry.keys().map(String::as_str).collect();
        let text = |name: &str| entry.get(name).map(Json::to_plain).unwrap_or_default();
        match (names(scope, list).as_slice(), members.as_slice()) {
            (["egress", "suffix"], ["port", "suffix"]) => Self::Suffix { suffix: text("suffix"), port: text("port") },
            (["egress", "cidr"], ["cidr", "port"]) => Self::range(&text("cidr"), Some(text("port"))),
            (["ingress", "cidr"], ["cidr"]) => Self::range(&text("cidr"), None),
            (["egress", "icmp"], ["cidr"]) => Self::range(&text("cidr"), None),
            (["ingress", "external", _, "dns_suffix"], ["suffix"]) => Self::PeerSuffix(text("suffix")),
            (["ingress", "external", _, "prefix"], ["prefix"]) => Self::PeerPrefix(text("prefix")),
            _ => Self::Other,
        }
    }

    fn range(text: &str, port: Option<String>) -> Self {
        text.parse().map_or(Self::Other, |range| Self::Range { range, port })
    }

    /// Whether it stands for more than one other side.
    pub(super) fn is_pattern(&self) -> bool {
        match self {
            Self::Suffix { .. } | Self::PeerPrefix(_) | Self::PeerSuffix(_) => true,
            Self::Range { range, .. } => range.prefix_len() < range.max_prefix_len(),
            Self::Destination { .. } | Self::Peer(_) | Self::Other => false,
        }
    }

    /// The risk that such a pair is when it is new.
    pub(super) fn risk(&self) -> Option<Kind> {
        match self {
            Self::Suffix { .. } => Some(Kind::WildcardHost),
            Self::PeerPrefix(_) | Self::PeerSuffix(_) => Some(Kind::WiderPeer),
            Self::Range { .. } if self.is_pattern() => Some(Kind::WiderRange),
            Self::Other => Some(Kind::UnknownDifference),
            Self::Range { .. } | Self::Destination { .. } | Self::Peer(_) => None,
        }
    }

    /// Whether every other side of `other` is one of ours.
    pub(super) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Suffix { suffix, port }, Self::Destination { host, port: at }) => {
                port == at && host.ends_with(suffix)
            }
            (Self::Suffix { suffix, port }, Self::Suffix { suffix: inner, port: at }) => {
                port == at && inner.ends_with(suffix)
            }
            (Self::Range { range, port }, Self::Destination { host, port: at }) => {
                let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
                port.as_ref() == Some(at) && address.is_ok_and(|address| range.contains(&address))
            }
            (Self::Range { range, port }, Self::Range { range: inner, port: at }) => {
                port == at && range.contains(inner)
            }
            (Self::PeerPrefix(prefix), Self::Peer(peer) | Self::PeerPrefix(peer)) => peer.starts_with(prefix),
            (Self::PeerSuffix(suffix), Self::Peer(name) | Self::PeerSuffix(name)) => name.ends_with(suffix),
            _ => false,
        }
    }
}

/// The direction of a scope and the parts of a list, which together say what the list is of.
fn names<'a>(scope: &'a [String], list: &'a [String]) -> Vec<&'a str> {
    let direction = scope.get(1).map(String::as_str).unwrap_or_default();
    std::iter::once(direction).chain(list.iter().map(String::as_str)).collect()
}
