//! Writes the data of nodes.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::entry::{rule_entry, sort, workload_entry};
use super::resolve::Resolved;
use crate::data::{
    DnsSuffix, EgressCidr, EgressTarget, ExternalPeers, IcmpRange, IngressCidr, IngressPort, NodeData, PrefixEntry,
    RuleEntry, SCHEMA, SuffixEntry,
};
use crate::rules::{Destination, HostPattern, PeerPattern, Rule, RuleSet, Source, UriPattern};
use crate::workloads::{Endpoint, Port, Table};

/// The data of `nodes`. Every rule is visited once, however many nodes there are.
pub(super) fn data(
    rules: &RuleSet,
    resolved: &[Resolved<'_>],
    table: &Table,
    nodes: &[&str],
) -> BTreeMap<String, NodeData> {
    let mut all: Vec<NodeData> = nodes.iter().map(|node| empty(rules, table, node)).collect();
    let homes = homes(table, nodes, &mut all);
    let homes = |workload: &Endpoint| homes.get(workload.workload.as_str()).map(Vec::as_slice).unwrap_or_default();
    for resolved in resolved {
        let entry = rule_entry(resolved.rule, resolved.rank);
        for source in &resolved.sources {
            for node in homes(source) {
                let Some(data) = all.get_mut(*node) else { continue };
                egress(data, resolved, source, &entry);
                credential(data, rules, resolved.rule);
            }
        }
        for (target, port) in &resolved.targets {
            for node in homes(target) {
                let Some(data) = all.get_mut(*node) else { continue };
                ingress(data, resolved, target, port, &entry);
            }
        }
    }
    for data in &mut all {
        sort(data);
    }
    all.into_iter().map(|data| (data.node.clone(), data)).collect()
}

fn empty(rules: &RuleSet, table: &Table, node: &str) -> NodeData {
    let encode = |der: &Vec<u8>| STANDARD.encode(der);
    let cas = rules.external_cas.iter();
    NodeData {
        schema: SCHEMA,
        node: node.to_owned(),
        trust_domain: table.trust_domain.clone(),
        external_cas: cas.map(|ca| (ca.name.clone(), ca.certificates.iter().map(encode).collect())).collect(),
        ..NodeData::default()
    }
}

/// Notes every workload at its nodes, and returns where each one lives.
fn homes<'a>(table: &'a Table, nodes: &[&str], all: &mut [NodeData]) -> BTreeMap<&'a str, Vec<usize>> {
    let numbers: BTreeMap<&str, usize> = nodes.iter().enumerate().map(|(index, node)| (*node, index)).collect();
    let mut homes: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for endpoint in &table.endpoints {
        let here: Vec<usize> = match endpoint.node.as_deref() {
            Some(node) => numbers.get(node).copied().into_iter().collect(),
            // The file is for one node: whichever is asked for.
            None => (0..nodes.len()).collect(),
        };
        for node in here {
            let Some(data) = all.get_mut(node) else { continue };
            if data.workloads.insert(endpoint.workload.to_string(), workload_entry(endpoint)).is_none() {
                homes.entry(endpoint.workload.as_str()).or_default().push(node);
            }
        }
    }
    homes
}

fn credential(data: &mut NodeData, rules: &RuleSet, rule: &Rule) {
    let declared = rule.credential.as_ref().and_then(|name| rules.credentials.get_key_value(name));
    if let Some((name, entry)) = declared.filter(|(name, _)| !data.credentials.contains_key(*name)) {
        data.credentials.insert(name.clone(), entry.clone());
    }
}

fn egress(data: &mut NodeData, resolved: &Resolved<'_>, source: &Endpoint, entry: &RuleEntry) {
    let source = source.workload.as_str();
    let egress = data.egress.entry(source.to_owned()).or_default();
    let mut targets = Vec::new();
    let rules = vec![entry.clone()];
    let mut exact = |host: &str, port: u16| {
        add(egress.exact.entry(format!("{host}:{port}")).or_default(), entry);
    };
    match &resolved.rule.to {
        Destination::Workload { .. } | Destination::Labels { .. } => {
            for (target, port) in &resolved.targets {
                for name in target.names() {
                    exact(&name, port.port);
                }
                targets.push(workload_target(resolved.rule, target, port));
            }
        }
        Destination::External { host, port, .. } => {
            match host {
                HostPattern::Exact(host) => exact(host.as_str(), *port),
                HostPattern::Suffix(suffix) => {
                    egress.suffix.push(SuffixEntry { suffix: suffix.clone(), port: *port, rules });
                }
            }
            targets.extend(external_target(resolved.rule));
        }
        Destination::Cidr { cidr, port } => {
            egress.cidr.push(EgressCidr { cidr: *cidr, port: *port, rules });
            targets.push(EgressTarget::Cidr { cidr: *cidr, port: *port });
        }
        // A ping is no connection: the rule leads to nothing that could be dialled.
        Destination::Icmp { cidr } => egress.icmp.push(IcmpRange { cidr: *cidr, rules }),
    }
    let rules = data.targets.entry(source.to_owned()).or_default();
    rules.insert(entry.id.clone(), targets);
}

fn workload_target(rule: &Rule, target: &Endpoint, port: &Port) -> EgressTarget {
    let [host, aliases @ ..] = target.names();
    EgressTarget::Workload {
        workload: target.workload.to_string(),
        host,
        aliases: aliases.into(),
        spiffe_id: target.spiffe_id.clone(),
        port: port.port,
        port_name: port.name.to_string(),
        mode: port.mode,
        protocol: port.protocol,
        intercept: rule.intercept,
    }
}

fn external_target(rule: &Rule) -> Option<EgressTarget> {
    let Destination::External { host, port, ca, addresses, via } = &rule.to else { return None };
    Some(EgressTarget::External {
        host: match host {
            HostPattern::Exact(host) => host.to_string(),
            HostPattern::Suffix(suffix) => format!("*{suffix}"),
        },
        port: *port,
        tls: rule.tls,
        ca: ca.clone(),
        addresses: addresses.clone(),
        intercept: rule.intercept,
        grpc: rule.grpc,
        via: via.clone(),
    })
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
        Source::External { ca, name } => peer(ingress.external.entry(ca.clone()).or_default(), name, entry),
        Source::Anyone => match (&resolved.rule.jwt, resolved.rule.cidr) {
            (Some(jwt), _) => add(ingress.jwt.entry(jwt.issuer.clone()).or_default(), entry),
            (None, Some(cidr)) => ingress.cidr.push(IngressCidr { cidr, rules: vec![entry.clone()] }),
            (None, None) => {}
        },
    }
}

fn peer(peers: &mut ExternalPeers, name: &PeerPattern, entry: &RuleEntry) {
    let rules = || vec![entry.clone()];
    match name {
        PeerPattern::Uri(UriPattern::Exact(id)) => add(peers.exact.entry(id.to_string()).or_default(), entry),
        PeerPattern::Uri(UriPattern::Prefix(prefix)) => {
            peers.prefix.push(PrefixEntry { prefix: prefix.clone(), rules: rules() });
        }
        PeerPattern::Dns(HostPattern::Exact(host)) => add(peers.dns.entry(host.to_string()).or_default(), entry),
        PeerPattern::Dns(HostPattern::Suffix(suffix)) => {
            peers.dns_suffix.push(DnsSuffix { suffix: suffix.clone(), rules: rules() });
        }
        PeerPattern::CommonName(name) => add(peers.cn.entry(name.clone()).or_default(), entry),
    }
}

fn add(rules: &mut Vec<RuleEntry>, entry: &RuleEntry) {
    // Two selectors of one rule may meet at one key.
    if rules.last().is_none_or(|last| last.rank != entry.rank) {
        rules.push(entry.clone());
    }
}
