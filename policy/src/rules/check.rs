//! What a rule may not say, whatever the workloads are.

use ipnet::IpNet;

use super::{Destination, ExternalCa, HostPattern, Rule, RuleSet, Source, UriPattern};
use crate::data::UpstreamTls;
use crate::yaml::Reader;

/// Ranges no rule may open: they reach the machine itself, its metadata service, or everybody at once.
const FORBIDDEN: [(&str, &str); 18] = [
    ("0.0.0.0/8", "unspecified"),
    ("169.254.0.0/16", "link-local and metadata"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("168.63.129.16/32", "metadata"),
    ("100.100.100.200/32", "metadata"),
    ("192.0.0.192/32", "metadata"),
    ("::/128", "unspecified"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("fd00:ec2::254/128", "metadata"),
    ("fd20:ce::254/128", "metadata"),
    ("fd00:42::42/128", "metadata"),
    ("fd00:c1::a9fe:a9fe/128", "metadata"),
    ("ff00::/8", "multicast"),
    ("::ffff:0.0.0.0/96", "IPv4-mapped"),
    ("64:ff9b:1::/48", "local NAT64, which hides an IPv4 address"),
    ("2001::/32", "Teredo, which hides an IPv4 address"),
];
/// Ranges whose addresses carry an IPv4 address from this bit on, and reach that.
const CARRIERS: [(&str, u8); 3] = [("::/96", 96), ("64:ff9b::/96", 96), ("2002::/16", 16)];
const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1/128"];

/// Notes what is wrong with the rule as it stands.
pub(super) fn rule(reader: &mut Reader<'_>, rule: &Rule, set: &RuleSet, lab: bool) {
    let from_workload = matches!(rule.from, Source::Workload(_) | Source::Labels(_));
    let to_workload = matches!(rule.to, Destination::Workload { .. } | Destination::Labels { .. });
    if !from_workload && !to_workload {
        reader.fail(rule.at, "neither side is a workload", "name a workload in from or in to");
    }
    if !to_workload && let Some(cidr) = rule.cidr.filter(|_| from_workload) {
        let message = format!("cidr {cidr} in from is a condition of the callee's port, and there is none");
        reader.fail(rule.at, message, "remove it: a workload calls from its own address");
    }
    if let Source::External { ca, .. } = &rule.from {
        known_ca(reader, rule, ca, &set.external_cas);
    }
    if let Destination::External { ca: Some(ca), .. } = &rule.to {
        known_ca(reader, rule, ca, &set.external_cas);
    }
    match &rule.to {
        Destination::Cidr { cidr, .. } | Destination::Icmp { cidr } => range(reader, rule, cidr, lab),
        Destination::External { addresses, .. } => {
            for cidr in addresses {
                range(reader, rule, cidr, lab);
            }
        }
        _ => {}
    }
    icmp(reader, rule);
    upgrade(reader, rule);
    credential(reader, rule, set);
}

fn icmp(reader: &mut Reader<'_>, rule: &Rule) {
    match (&rule.to, &rule.icmp) {
        (Destination::Icmp { .. }, None) => {
            reader.fail(rule.at, "protocol icmp needs an icmp block", "add `icmp: { types: [echo], rate_per_s: 5 }`");
        }
        (Destination::Icmp { .. }, Some(_)) if rule.http.is_some() => {
            reader.fail(rule.at, "ICMP carries no requests", "remove http or grpc");
        }
        (Destination::Icmp { .. }, Some(_)) | (_, None) => {}
        (_, Some(_)) => reader.fail(
            rule.at,
            "an icmp block needs `to: { cidr, protocol: icmp }`",
            "write it so, or remove the block",
        ),
    }
}

fn upgrade(reader: &mut Reader<'_>, rule: &Rule) {
    if rule.upgrade.is_empty() {
        return;
    }
    let Some(http) = &rule.http else {
        let remedy = "add http, or remove upgrade: a rule without http allows everything on the connection";
        return reader.fail(rule.at, "upgrade needs an http block", remedy);
    };
    let gets = http.methods.is_empty() || http.methods.contains("GET") || http.methods.contains("*");
    if rule.grpc || !gets {
        reader.fail(rule.at, "a WebSocket opens with GET, which this rule does not allow", "add GET to the methods");
    }
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
    let reached = carried(cidr).unwrap_or(*cidr);
    let overlaps = |text: &str| text.parse::<IpNet>().is_ok_and(|net| net.contains(&reached) || reached.contains(&net));
    for (net, what) in FORBIDDEN {
        if overlaps(net) {
            reader.fail(
                rule.at,
                format!("destination {cidr} overlaps {net} ({what})"),
                "list smaller ranges without it",
            );
        }
    }
    for (net, _) in CARRIERS.into_iter().filter(|(net, _)| reached == *cidr && overlaps(net)) {
        let message = format!("destination {cidr} contains {net}, whose addresses reach any IPv4 address");
        reader.fail(rule.at, message, "list smaller ranges without it");
    }
    if !lab && LOOPBACK.into_iter().any(overlaps) {
        reader.fail(
            rule.at,
            format!("destination {cidr} overlaps loopback"),
            "leave loopback out (only labs may, --lab)",
        );
    }
}

/// The IPv4 range that the addresses of an IPv6 range carry.
fn carried(cidr: &IpNet) -> Option<IpNet> {
    let IpNet::V6(v6) = cidr else { return None };
    // `::` and `::1` are addresses of their own.
    if v6.prefix_len() >= 127 && v6.addr().to_bits() <= 1 {
        return None;
    }
    let (_, from) = CARRIERS.into_iter().find(|(net, _)| net.parse::<IpNet>().is_ok_and(|net| net.contains(cidr)))?;
    let bits = u32::try_from(v6.addr().to_bits() >> (96 - from) & u128::from(u32::MAX)).ok()?;
    let length = v6.prefix_len().saturating_sub(from).min(32);
    Some(IpNet::V4(ipnet::Ipv4Net::new(bits.into(), length).ok()?.trunc()))
}

fn credential(reader: &mut Reader<'_>, rule: &Rule, set: &RuleSet) {
    let Some(name) = &rule.credential else { return };
    let declared = set.credentials.get(name);
    if declared.is_none() {
        reader.fail(rule.at, format!("credential {name:?} is not declared"), "declare it under credentials");
    }
    match &rule.to {
        Destination::External { host: HostPattern::Exact(host), .. } => {
            let hosts = declared.map(|entry| entry.hosts.as_slice()).unwrap_or_default();
            if declared.is_some() && !hosts.iter().any(|known| known == host.as_str()) {
                reader.fail(
                    rule.at,
                    format!("credential {name:?} may not go to {host}, only to {}", hosts.join(", ")),
                    "ask its owner to add the host, or use another credential",
                );
            }
        }
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
    if !rule.upgrade.is_empty() {
        reader.fail(rule.at, "a credential and an upgrade: what follows it is not looked at", "write two rules");
    }
}
