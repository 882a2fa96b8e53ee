//! One rule as the engines read it, and the order of the lists it stands in.

use crate::data::{IcmpEntry, NodeData, PortEntry, RuleEntry, TokenEntry, WorkloadEntry};
use crate::rules::{Destination, Rule, Source};
use crate::workloads::{Endpoint, Port};

/// What a rule with a parent proxy needs of the supervisor.
const VIA: &str = "via";

pub(super) fn rule_entry(rule: &Rule, rank: u32) -> RuleEntry {
    let mut entry = RuleEntry {
        id: rule.id.to_string(),
        rank,
        audit: rule.audit,
        credential: rule.credential.clone().unwrap_or_default(),
        // Where the range is the only condition it is the key of the list instead.
        src: rule.cidr.filter(|_| rule.jwt.is_some() || !matches!(rule.from, Source::Anyone)),
        jwt: rule.jwt.as_ref().map(|jwt| TokenEntry {
            issuer: jwt.issuer.clone(),
            subject: jwt.subject.clone().unwrap_or_default(),
            claims: jwt.claims.iter().map(|(name, values)| (name.clone(), marked(values))).collect(),
        }),
        upgrade: marked(&rule.upgrade),
        icmp: rule.icmp.as_ref().map(|icmp| IcmpEntry { types: marked(&icmp.types), rate_per_s: icmp.rate_per_s }),
        ..RuleEntry::default()
    };
    if let Destination::External { via: Some(_), .. } = &rule.to {
        entry.needs.push(VIA.to_owned());
    }
    match &rule.http {
        None => entry.l4 = true,
        Some(http) => {
            entry.encoded_slash = http.encoded_slash;
            if http.methods.is_empty() {
                entry.methods.insert("*".to_owned(), true);
            }
            entry.methods.extend(http.methods.iter().map(|method| (method.clone(), true)));
            for path in &http.paths {
                entry.add_path(path);
            }
        }
    }
    entry
}

pub(super) fn workload_entry(endpoint: &Endpoint) -> WorkloadEntry {
    let port = |port: &Port| PortEntry { port: port.port, mode: port.mode, protocol: port.protocol };
    WorkloadEntry {
        tenant: endpoint.tenant.to_string(),
        spiffe_id: endpoint.spiffe_id.clone(),
        labels: endpoint.labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        ports: endpoint.ports.iter().map(|spec| (spec.name.to_string(), port(spec))).collect(),
    }
}

fn marked(names: &std::collections::BTreeSet<String>) -> std::collections::BTreeMap<String, bool> {
    names.iter().map(|name| (name.clone(), true)).collect()
}

/// Puts the lists into the order of their keys, with one entry per key. Rules of one key stay in the order of rank.
pub(super) fn sort(data: &mut NodeData) {
    for egress in data.egress.values_mut() {
        merge(&mut egress.suffix, |entry| (entry.suffix.clone(), entry.port), |entry| &mut entry.rules);
        merge(&mut egress.cidr, |entry| (entry.cidr, entry.port), |entry| &mut entry.rules);
        merge(&mut egress.icmp, |entry| entry.cidr, |entry| &mut entry.rules);
    }
    for port in data.ingress.values_mut().flat_map(|ports| ports.values_mut()) {
        merge(&mut port.cidr, |entry| entry.cidr, |entry| &mut entry.rules);
        for peers in port.external.values_mut() {
            merge(&mut peers.prefix, |entry| entry.prefix.clone(), |entry| &mut entry.rules);
            merge(&mut peers.dns_suffix, |entry| entry.suffix.clone(), |entry| &mut entry.rules);
        }
    }
}

fn merge<T, K: Ord>(list: &mut Vec<T>, key: impl Fn(&T) -> K, rules: impl Fn(&mut T) -> &mut Vec<RuleEntry>) {
    list.sort_by_cached_key(&key);
    list.dedup_by(|later, first| {
        if key(later) != key(first) {
            return false;
        }
        rules(first).append(rules(later));
        true
    });
}
