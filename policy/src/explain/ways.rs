//! How each rule of a workload could be reached by the pair: every list that it stands in, with the tests that lead there.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::destination;
use crate::data::{ExternalPeers, NodeData, RuleEntry};
use crate::input::{Direction, Input, OWN_CA, Phase, is_own_ca};
use crate::judge;

/// The ways one rule can be reached by the pair, collected over the lists it appears in.
pub(super) struct Ways<'d> {
    pub(super) rule: &'d RuleEntry,
    pub(super) tests: Vec<Way>,
}

/// One list entry: the tests that lead to it.
pub(super) type Way = Vec<(&'static str, String, bool)>;

/// Every rule of the workload, by rank.
pub(super) fn all<'d>(data: &'d NodeData, input: &Input) -> BTreeMap<u32, Ways<'d>> {
    let mut ways = BTreeMap::new();
    match input.direction() {
        Direction::Egress => egress_ways(data, input, &mut ways),
        Direction::Ingress => ingress_ways(data, input, &mut ways),
    }
    ways
}

fn note<'d>(ways: &mut BTreeMap<u32, Ways<'d>>, rules: &'d [RuleEntry], input: &Input, mut way: Way) {
    for rule in rules {
        let length = way.len();
        way.extend(conditions(rule, input));
        ways.entry(rule.rank).or_insert_with(|| Ways { rule, tests: Vec::new() }).tests.push(way.clone());
        way.truncate(length);
    }
}

/// What a rule asks beside the list it stands in.
fn conditions(rule: &RuleEntry, input: &Input) -> Way {
    let mut way = Way::new();
    // Where a caller comes from is the callee's affair; a workload calls from its own address.
    if let Some(range) = rule.src.filter(|_| input.direction() == Direction::Ingress) {
        way.push(("source_address", range.to_string(), judge::source_ok(rule, input)));
    }
    // A token comes with a request; a connection is let in to bring one.
    if let Some(jwt) = rule.jwt.as_ref().filter(|_| input.phase() != Phase::Connect) {
        let issued = input.token().is_some_and(|token| *token.issuer == *jwt.issuer);
        way.push(("issuer", jwt.issuer.clone(), issued));
        if !jwt.subject.is_empty() {
            way.push(("subject", jwt.subject.clone(), judge::subject_ok(rule, input)));
        }
        if !jwt.claims.is_empty() {
            let one = |(name, values): (&String, &BTreeMap<String, bool>)| {
                format!("{name}={}", values.keys().cloned().collect::<Vec<_>>().join("|"))
            };
            let wanted = jwt.claims.iter().map(one).collect::<Vec<_>>().join(", ");
            way.push(("claims", wanted, judge::claims_ok(rule, input)));
        }
    }
    if let Some(icmp) = &rule.icmp {
        let wanted = icmp.types.keys().cloned().collect::<Vec<_>>().join(", ");
        way.push(("icmp", wanted, input.icmp().is_some_and(|kind| rule.icmp_ok(kind))));
    }
    way
}

fn egress_ways<'d>(data: &'d NodeData, input: &Input, ways: &mut BTreeMap<u32, Ways<'d>>) {
    let Some(egress) = data.egress.get(input.workload()) else { return };
    let got = destination(input);
    let (host, port) = (input.dest_host().unwrap_or_default(), input.dest_port());
    let address: Option<IpAddr> = host.parse().ok();
    for (key, rules) in &egress.exact {
        note(ways, rules, input, vec![("destination", key.clone(), *key == got)]);
    }
    for entry in &egress.suffix {
        let ok = Some(entry.port) == port && host.ends_with(&entry.suffix);
        note(ways, &entry.rules, input, vec![("destination", format!("*{}:{}", entry.suffix, entry.port), ok)]);
    }
    for entry in &egress.cidr {
        let inside = address.is_some_and(|address| entry.cidr.contains(&address));
        let wanted = format!("an address in {}, port {}", entry.cidr, entry.port);
        note(ways, &entry.rules, input, vec![("destination", wanted, inside && Some(entry.port) == port)]);
    }
    for entry in &egress.icmp {
        let inside = address.is_some_and(|address| entry.cidr.contains(&address));
        note(ways, &entry.rules, input, vec![("destination", format!("an address in {}", entry.cidr), inside)]);
    }
}

fn ingress_ways<'d>(data: &'d NodeData, input: &Input, ways: &mut BTreeMap<u32, Ways<'d>>) {
    let Some(ports) = data.ingress.get(input.workload()) else { return };
    let (peer, ca) = (input.peer().unwrap_or_default(), input.peer_ca());
    let address = input.src_ip().and_then(|text| text.parse::<IpAddr>().ok());
    for (name, port) in ports {
        let same_port = ("port", name.clone(), Some(name.as_str()) == input.port());
        let own = ("peer_ca", OWN_CA.to_owned(), ca.is_some_and(is_own_ca));
        for (id, rules) in &port.peer {
            note(ways, rules, input, vec![same_port.clone(), own.clone(), ("peer", id.clone(), id == peer)]);
        }
        for (name, peers) in &port.external {
            let same_ca = ("peer_ca", name.clone(), Some(name.as_str()) == ca);
            for (test, rules) in named(peers, input) {
                note(ways, rules, input, vec![same_port.clone(), same_ca.clone(), test]);
            }
        }
        for entry in &port.cidr {
            let inside = address.is_some_and(|address| entry.cidr.contains(&address));
            let test = ("source_address", entry.cidr.to_string(), inside);
            note(ways, &entry.rules, input, vec![same_port.clone(), test]);
        }
        for rules in port.jwt.values() {
            note(ways, rules, input, vec![same_port.clone()]);
        }
    }
}

/// What is tested, what is wanted, and whether it holds.
type NameTest = (&'static str, String, bool);

/// The lists of an external CA, each with the test of its name.
fn named<'d>(peers: &'d ExternalPeers, input: &Input) -> Vec<(NameTest, &'d [RuleEntry])> {
    let peer = input.peer().unwrap_or_default();
    let any = |test: &dyn Fn(&str) -> bool| input.peer_dns().iter().any(|name| test(name));
    let mut all: Vec<(NameTest, &[RuleEntry])> = Vec::new();
    all.extend(peers.exact.iter().map(|(id, rules)| (("peer", id.clone(), id == peer), &rules[..])));
    all.extend(
        peers
            .prefix
            .iter()
            .map(|entry| (("peer", format!("{}*", entry.prefix), peer.starts_with(&entry.prefix)), &entry.rules[..])),
    );
    all.extend(peers.dns.iter().map(|(name, rules)| (("peer_dns", name.clone(), any(&|got| got == name)), &rules[..])));
    all.extend(peers.dns_suffix.iter().map(|entry| {
        (("peer_dns", format!("*{}", entry.suffix), any(&|got| got.ends_with(&entry.suffix))), &entry.rules[..])
    }));
    all.extend(
        peers
            .cn
            .iter()
            .map(|(name, rules)| (("peer_cn", name.clone(), Some(name.as_str()) == input.peer_cn()), &rules[..])),
    );
    all
}
