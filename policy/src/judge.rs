//! The same decision without an engine, from the typed data. `explain` prints its steps, the compiler computes the
//! expectations of a bundle's self-test with it, and a property test holds it against the engine.

use std::net::IpAddr;

use crate::data::{NodeData, RuleEntry};
use crate::decision::{Decision, DecisionReason};
use crate::input::{Direction, Input, OWN_CA, Phase};

/// The rules of the input's pair, lowest rank first.
pub(crate) fn candidates<'d>(data: &'d NodeData, input: &Input) -> Vec<&'d RuleEntry> {
    let mut rules: Vec<&RuleEntry> = match input.direction() {
        Direction::Egress => egress(data, input).unwrap_or_default(),
        Direction::Ingress => ingress(data, input).unwrap_or_default(),
    };
    rules.sort_by_key(|rule| rule.rank);
    rules.dedup_by_key(|rule| rule.rank);
    rules
}

/// What the candidates say about the request.
pub(crate) fn verdict(candidates: &[&RuleEntry], input: &Input) -> Decision {
    if candidates.is_empty() {
        return Decision::deny(DecisionReason::NoGrant);
    }
    match input.phase() {
        Phase::Connect => Decision { allow: true, ..Decision::deny(DecisionReason::Connect) },
        Phase::Opaque => match candidates.iter().find(|rule| rule.l4) {
            Some(rule) => granted(rule),
            None => Decision::deny(DecisionReason::NeedsOpaqueGrant),
        },
        Phase::Request => match candidates.iter().find(|rule| request_ok(rule, input)) {
            Some(rule) => granted(rule),
            None => missed(candidates),
        },
    }
}

fn egress<'d>(data: &'d NodeData, input: &Input) -> Option<Vec<&'d RuleEntry>> {
    let egress = data.egress.get(input.workload())?;
    let (host, port) = (input.dest_host()?, input.dest_port()?);
    let mut rules: Vec<&RuleEntry> = egress.exact.get(&format!("{host}:{port}")).into_iter().flatten().collect();
    let suffixes = egress.suffix.iter().filter(|entry| entry.port == port && host.ends_with(&entry.suffix));
    rules.extend(suffixes.flat_map(|entry| &entry.rules));
    if let Ok(address) = host.parse::<IpAddr>() {
        let ranges = egress.cidr.iter().filter(|entry| entry.port == port && entry.cidr.contains(&address));
        rules.extend(ranges.flat_map(|entry| &entry.rules));
    }
    Some(rules)
}

fn ingress<'d>(data: &'d NodeData, input: &Input) -> Option<Vec<&'d RuleEntry>> {
    let port = data.ingress.get(input.workload())?.get(input.port()?)?;
    let mut rules: Vec<&RuleEntry> = Vec::new();
    if let (Some(peer), Some(ca)) = (input.peer(), input.peer_ca()) {
        if is_own_ca(ca) {
            rules.extend(port.peer.get(peer).into_iter().flatten());
        }
        if let Some(external) = port.external.get(ca) {
            rules.extend(external.exact.get(peer).into_iter().flatten());
            let prefixes = external.prefix.iter().filter(|entry| peer.starts_with(&entry.prefix));
            rules.extend(prefixes.flat_map(|entry| &entry.rules));
        }
    }
    if let Some(address) = input.src_ip().and_then(|text| text.parse::<IpAddr>().ok()) {
        let ranges = port.cidr.iter().filter(|entry| entry.cidr.contains(&address));
        rules.extend(ranges.flat_map(|entry| &entry.rules));
    }
    Some(rules)
}

/// Whether the peer was verified by our own trust bundle.
pub(crate) fn is_own_ca(name: &str) -> bool {
    name.is_empty() || name == OWN_CA
}

pub(crate) fn request_ok(rule: &RuleEntry, input: &Input) -> bool {
    rule.method_ok(input.method()) && rule.path_ok(input.path())
}

fn granted(rule: &RuleEntry) -> Decision {
    Decision {
        allow: true,
        would_deny: false,
        rule_id: rule.id.as_str().into(),
        credential: rule.credential.as_str().into(),
        reason: DecisionReason::Rule,
    }
}

/// No rule matched: let it through only when the whole pair is in audit mode and no credential is at stake.
fn missed(candidates: &[&RuleEntry]) -> Decision {
    let audit = candidates.iter().all(|rule| rule.audit && rule.credential.is_empty());
    match candidates.first().filter(|_| audit) {
        Some(rule) => Decision {
            allow: true,
            would_deny: true,
            rule_id: rule.id.as_str().into(),
            credential: "".into(),
            reason: DecisionReason::WouldDeny,
        },
        None => Decision::deny(DecisionReason::L7Mismatch),
    }
}
