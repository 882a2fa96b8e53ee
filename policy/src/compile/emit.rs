//! Writes the data of one node.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;

use super::resolve::Resolved;
use crate::data::{
    EgressCidr, EgressTarget, IngressCidr, IngressPort, NodeData, PortEntry, PrefixEntry, RuleEntry, SCHEMA, SuffixEntry,
    WorkloadEntry,
};
use crate::rules::{Destination, HostPattern, Rule, RuleSet, Source, UriPattern};
use crate::workloads::{Endpoint, Port, Table};

/// The data of `node`.
pub(super) fn data(rules: &RuleSet, resolved: &[Resolved<'_>], table: &Table, node: &str) -> NodeData {
    let mut data = NodeData {
        schema: SCHEMA,
        node: node.to_owned(),
        trust_domain: table.trust_domain.clone(),
        egress: BTreeMap::new(),
        ingress: BTreeMap::new(),
        targets: BTreeMap::new(),
        workloads: BTreeMap::new(),
        external_cas: BTreeMap::new(),
    };
    for endpoint in table.endpoints.iter().filter(|endpoint| lives_on(endpoint, node)) {
        let entry = workload_entry(endpoint);
        data.workloads.insert(endpoint.workload.to_string(), entry);
    }
    for ca in &rules.external_cas {
        let certificates = ca.certificates.iter().map(|der| STANDARD.encode(der)).collect();
        data.external_cas.insert(ca.name.clone(), certificates);
    }
    for resolved in resolved {
        let entry = rule_entry(resolved.rule, resolved.rank);
        for source in &resolved.sources {
            if data.workloads.contains_key(source.workload.as_str()) {
                egress(&mut data, resolved, source, &entry);
            }
        }
        for (target, port) in &resolved.targets {
            if data.workloads.contains_key(target.workload.as_str()) {
                ingress(&mut data, resolved, target, port, &entry);
            }
        }
    }
    data
}

fn workload_entry(endpoint: &Endpoint) -> WorkloadEntry {
    let port = |port: &Port| PortEntry { port: port.port, mode: port.mode, protocol: port.protocol };
    WorkloadEntry {
        tenant: endpoint.tenant.to_string(),
        spiffe_id: endpoint.spiffe_id.clone(),
        labels: endpoint.labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        ports: endpoint.ports.iter().map(|spec| (spec.name.to_string(), port(spec))).collect(),
    }
}

fn lives_on(endpoint: &Endpoint, node: &str) -> bool {
    endpoint.node.as_deref().is_none_or(|name| name == node)
}

fn rule_entry(rule: &Rule, rank: u32) -> RuleEntry {
    let mut entry = RuleEntry {
        id: rule.id.to_string(),
        rank,
        audit: rule.audit,
        credential: rule.credential.clone().unwrap_or_default(),
        ..RuleEntry::default()
    };
    match &rule.http {
        None => entry.l4 = true,
        Some(http) => {
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

fn egress(data: &mut NodeData, resolved: &Resolved<'_>, source: &Endpoint, entry: &RuleEntry) {
    let source = source.workload.as_str();
    let egress = data.egress.entry(source.to_owned()).or_default();
    let mut targets = Vec::new();
    let mut exact = |host: &str, port: u16| {
        add(egress.exact.entry(format!("{host}:{port}")).or_default(), entry);
    };
    match &resolved.rule.to {
        Destination::Workload { .. } | Destination::Labels { .. } => {
            for (target, port) in &resolved.targets {
                // The one alias list: full name and short name.
                exact(&target.dns_name(), port.port);
                exact(target.workload.as_str(), port.port);
                targets.push(workload_target(target, port));
            }
        }
        Destination::External { host, port, ca, addresses } => {
            let shown = match host {
                HostPattern::Exact(host) => {
                    exact(host.as_str(), *port);
                    host.to_string()
                }
                HostPattern::Suffix(suffix) => {
                    add_suffix(&mut egress.suffix, suffix, *port, entry);
                    format!("*{suffix}")
                }
            };
            let (ca, addresses) = (ca.clone(), addresses.clone());
            targets.push(EgressTarget::External { host: shown, port: *port, tls: resolved.rule.tls, ca, addresses });
        }
        Destination::Cidr { cidr, port } => {
            add_egress_cidr(&mut egress.cidr, *cidr, *port, entry);
            targets.push(EgressTarget::Cidr { cidr: *cidr, port: *port });
        }
    }
    let rules = data.targets.entry(source.to_owned()).or_default();
    rules.insert(entry.id.clone(), targets);
}

fn workload_target(target: &Endpoint, port: &Port) -> EgressTarget {
    EgressTarget::Workload {
        workload: target.workload.to_string(),
        host: target.dns_name(),
        aliases: vec![target.workload.to_string()],
        spiffe_id: target.spiffe_id.clone(),
        port: port.port,
        port_name: port.name.to_string(),
        mode: port.mode,
        protocol: port.protocol,
    }
}

fn ingress(data: &mut NodeData, resolved: &Resolved<'_>, target: &Endpoint, port: &Port, entry: &RuleEntry) {
    let ports = data.ingress.entry(target.workload.to_string()).or_default();
    let ingress: &mut IngressPort = ports.entry(port.name.to_string()).or_default();
    match &resolved.rule.from {
        Source::Workload(_) | Source::Labels(_) => {
            for source in &resolved.sources {
                add(ingress.peer.entry(source.spiffe_id.to_string()).or_default(), entry);
            }
        }
        Source::Cidr(cidr) => match ingress.cidr.iter_mut().find(|other| other.cidr == *cidr) {
            Some(other) => add(&mut other.rules, entry),
            None => ingress.cidr.push(IngressCidr { cidr: *cidr, rules: vec![entry.clone()] }),
        },
        Source::External { ca, uri } => {
            let peers = ingress.external.entry(ca.clone()).or_default();
            match uri {
                UriPattern::Exact(id) => add(peers.exact.entry(id.to_string()).or_default(), entry),
                UriPattern::Prefix(prefix) => match peers.prefix.iter_mut().find(|other| other.prefix == *prefix) {
                    Some(other) => add(&mut other.rules, entry),
                    None => peers.prefix.push(PrefixEntry { prefix: prefix.clone(), rules: vec![entry.clone()] }),
                },
            }
        }
    }
}

fn add(rules: &mut Vec<RuleEntry>, entry: &RuleEntry) {
    // Two selectors of one rule may meet at one key.
    if rules.last() != Some(entry) {
        rules.push(entry.clone());
    }
}

fn add_suffix(list: &mut Vec<SuffixEntry>, suffix: &str, port: u16, entry: &RuleEntry) {
    match list.iter_mut().find(|other| other.suffix == suffix && other.port == port) {
        Some(other) => add(&mut other.rules, entry),
        None => list.push(SuffixEntry { suffix: suffix.to_owned(), port, rules: vec![entry.clone()] }),
    }
}

fn add_egress_cidr(list: &mut Vec<EgressCidr>, cidr: IpNet, port: u16, entry: &RuleEntry) {
    match list.iter_mut().find(|other| other.cidr == cidr && other.port == port) {
        Some(other) => add(&mut other.rules, entry),
        None => list.push(EgressCidr { cidr, port, rules: vec![entry.clone()] }),
    }
}
