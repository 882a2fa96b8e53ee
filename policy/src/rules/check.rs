//! What a rule may not say, whatever the workloads are.

use ipnet::IpNet;

use super::{Destination, ExternalCa, HostPattern, Rule, Source, UriPattern};
use crate::data::UpstreamTls;
use crate::yaml::Reader;

/// Ranges no rule may open: they reach the machine itself, its metadata service, or everybody at once.
const FORBIDDEN: [(&str, &str); 9] = [
    ("0.0.0.0/8", "unspecified"),
    ("169.254.0.0/16", "link-local and metadata"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("::/128", "unspecified"),
    ("fe80::/10", "link-local"),
    ("fd00:ec2::254/128", "metadata"),
    ("ff00::/8", "multicast"),
    ("::ffff:0.0.0.0/96", "IPv4-mapped"),
];
const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1/128"];

/// Notes what is wrong with the rule as it stands.
pub(super) fn rule(reader: &mut Reader<'_>, rule: &Rule, cas: &[ExternalCa], lab: bool) {
    let from_outside = matches!(rule.from, Source::Cidr(_) | Source::External { .. });
    let to_outside = matches!(rule.to, Destination::External { .. } | Destination::Cidr { .. });
    if from_outside && to_outside {
        reader.fail(rule.at, "neither side is a workload", "name a workload in from or in to");
    }
    if let Source::External { ca, .. } = &rule.from {
        known_ca(reader, rule, ca, cas);
    }
    if let Destination::External { ca: Some(ca), .. } = &rule.to {
        known_ca(reader, rule, ca, cas);
    }
    match &rule.to {
        Destination::Cidr { cidr, .. } => range(reader, rule, cidr, lab),
        Destination::External { addresses, .. } => {
            for cidr in addresses {
                range(reader, rule, cidr, lab);
            }
        }
        _ => {}
    }
    credential(reader, rule);
}

/// An external CA must not speak for our own trust domain.
pub(crate) fn foreign_uri(uri: &UriPattern, trust_domain: &str) -> bool {
    let text = match uri {
        UriPattern::Exact(id) => id.as_str(),
        UriPattern::Prefix(prefix) => prefix,
    };
    let domain = text.strip_prefix("spiffe://").and_then(|rest| rest.split('/').next());
    domain != Some(trust_domain)
}

fn known_ca(reader: &mut Reader<'_>, rule: &Rule, ca: &str, cas: &[ExternalCa]) {
    if !cas.iter().any(|known| known.name == ca) {
        reader.fail(rule.at, format!("unknown external CA {ca:?}"), "add it under external_cas");
    }
}

fn range(reader: &mut Reader<'_>, rule: &Rule, cidr: &IpNet, lab: bool) {
    let overlaps = |text: &str| text.parse::<IpNet>().is_ok_and(|net| net.contains(cidr) || cidr.contains(&net));
    for (net, what) in FORBIDDEN {
        if overlaps(net) {
            reader.fail(
                rule.at,
                format!("destination {cidr} overlaps {net} ({what})"),
                "list smaller ranges without it",
            );
        }
    }
    if !lab && LOOPBACK.into_iter().any(overlaps) {
        reader.fail(
            rule.at,
            format!("destination {cidr} overlaps loopback"),
            "leave loopback out (only labs may, --lab)",
        );
    }
}

fn credential(reader: &mut Reader<'_>, rule: &Rule) {
    if rule.credential.is_none() {
        return;
    }
    match &rule.to {
        Destination::External { host: HostPattern::Exact(_), .. } => {}
        Destination::External { .. } => {
            reader.fail(rule.at, "a wildcard host with a credential", "name the one host that may see the credential");
        }
        _ => reader.fail(rule.at, "a credential only goes to an external host", "remove it"),
    }
    if rule.http.is_none() {
        reader.fail(rule.at, "a credential needs an http block: it is a header", "add http with methods and paths");
    } else if rule.tls != UpstreamTls::Originate {
        reader.fail(rule.at, "a credential must not leave in plaintext", "use tls: originate");
    }
}
