//! The same decision without an engine, from the typed data. `explain` prints its steps, the compiler computes the
//! expectations of a bundle's self-test with it, and a property test holds it against the engine.

use std::net::IpAddr;

use crate::data::{ExternalPeers, NodeData, RuleEntry};
use crate::decision::{Decision, DecisionReason};
use crate::input::{Direction, Input, Phase, is_own_ca};
use crate::path::has_escaped_slash;

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
    let mut usable = candidates.iter().filter(|rule| able(rule, input));
    match input.phase() {
        Phase::Connect if usable.next().is_some() => {
            Decision { allow: true, ..Decision::deny(DecisionReason::Connect) }
        }
        Phase::Connect => Decision::deny(DecisionReason::NoGrant),
        _ if candidates.is_empty() => Decision::deny(DecisionReason::NoGrant),
        Phase::Opaque => match usable.find(|rule| rule.l4) {
            Some(rule) => granted(rule),
            None => Decision::deny(DecisionReason::NeedsOpaqueGrant),
        },
        Phase::Request => match usable.find(|rule| request_ok(rule, input)) {
            Some(rule) => granted(rule),
            None if !slash_ok(candidates, input) => Decision::deny(DecisionReason::EscapedSlash),
            None => missed(candidates, input),
        },
    }
}

fn egress<'d>(data: &'d NodeData, input: &Input) -> Option<Vec<&'d RuleEntry>> {
    let egress = data.egress.get(input.workload())?;
    let host = input.dest_host()?;
    let address: Option<IpAddr> = host.parse().ok();
    if let Some(kind) = input.icmp() {
        let address = address?;
        let ranges = egress.icmp.iter().filter(|entry| entry.cidr.contains(&address));
        return Some(ranges.flat_map(|entry| &entry.rules).filter(|rule| rule.icmp_ok(kind)).collect());
    }
    let port = input.dest_port()?;
    let mut rules: Vec<&RuleEntry> = egress.exact.get(&format!("{host}:{port}")).into_iter().flatten().collect();
    let suffixes = egress.suffix.iter().filter(|entry| entry.port == port && host.ends_with(&entry.suffix));
    rules.extend(suffixes.flat_map(|entry| &entry.rules));
    if let Some(address) = address {
        let ranges = egress.cidr.iter().filter(|entry| entry.port == port && entry.cidr.contains(&address));
        rules.extend(ranges.flat_map(|entry| &entry.rules));
    }
    Some(rules)
}

fn ingress<'d>(data: &'d NodeData, input: &Input) -> Option<Vec<&'d RuleEntry>> {
    let mut rules = from_anywhere(data, input)?;
    rules.retain(|rule| source_ok(rule, input));
    Some(rules)
}

/// Whether the answer to an input of ingress is another one for callers from elsewhere.
pub(crate) fn looks_at_source(data: &NodeData, input: &Input) -> bool {
    let port = || data.ingress.get(input.workload())?.get(input.port()?);
    let has_ranges = port().is_some_and(|port| !port.cidr.is_empty());
    has_ranges || from_anywhere(data, input).is_some_and(|rules| rules.iter().any(|rule| rule.src.is_some()))
}

/// The rules of the pair, also those that want their caller to come from elsewhere.
fn from_anywhere<'d>(data: &'d NodeData, input: &Input) -> Option<Vec<&'d RuleEntry>> {
    let port = data.ingress.get(input.workload())?.get(input.port()?)?;
    let mut rules: Vec<&RuleEntry> = Vec::new();
    if let (Some(peer), Some(ca)) = (input.peer(), input.peer_ca())
        && is_own_ca(ca)
    {
        rules.extend(port.peer.get(peer).into_iter().flatten());
    }
    if let Some(external) = input.peer_ca().and_then(|ca| port.external.get(ca)) {
        named(external, input, &mut rules);
    }
    if let Some(address) = input.src_ip().and_then(|text| text.parse::<IpAddr>().ok()) {
        let ranges = port.cidr.iter().filter(|entry| entry.cidr.contains(&address));
        rules.extend(ranges.flat_map(|entry| &entry.rules));
    }
    match (input.phase(), input.token()) {
        (Phase::Connect, _) => rules.extend(port.jwt.values().flatten()),
        (Phase::Request, Some(token)) => {
            let issued = port.jwt.get(&*token.issuer).into_iter().flatten();
            rules.extend(issued.filter(|rule| subject_ok(rule, input) && claims_ok(rule, input)));
        }
        _ => {}
    }
    Some(rules)
}

/// The rules of an external CA for the names of this peer.
fn named<'d>(peers: &'d ExternalPeers, input: &Input, rules: &mut Vec<&'d RuleEntry>) {
    if let Some(peer) = input.peer() {
        rules.extend(peers.exact.get(peer).into_iter().flatten());
        let prefixes = peers.prefix.iter().filter(|entry| peer.starts_with(&entry.prefix));
        rules.extend(prefixes.flat_map(|entry| &entry.rules));
    }
    for name in input.peer_dns() {
        rules.extend(peers.dns.get(&**name).into_iter().flatten());
        let families = peers.dns_suffix.iter().filter(|entry| name.ends_with(&entry.suffix));
        rules.extend(families.flat_map(|entry| &entry.rules));
    }
    if let Some(name) = input.peer_cn() {
        rules.extend(peers.cn.get(name).into_iter().flatten());
    }
}

/// Whether the caller comes from where the rule also wants it to come from.
pub(crate) fn source_ok(rule: &RuleEntry, input: &Input) -> bool {
    let Some(range) = rule.src else { return true };
    input.src_ip().and_then(|text| text.parse::<IpAddr>().ok()).is_some_and(|address| range.contains(&address))
}

/// Whether the token speaks of whom the rule wants.
pub(crate) fn subject_ok(rule: &RuleEntry, input: &Input) -> bool {
    let wanted = rule.jwt.as_ref().map_or("", |jwt| jwt.subject.as_str());
    wanted.is_empty() || input.token().and_then(|token| token.subject.as_deref()) == Some(wanted)
}

/// Whether every claim the rule asks for has one of the values it wants.
pub(crate) fn claims_ok(rule: &RuleEntry, input: &Input) -> bool {
    let Some(jwt) = &rule.jwt else { return true };
    jwt.claims.iter().all(|(name, wanted)| {
        let got = input.token().map(|token| token.claim(name)).unwrap_or_default();
        got.iter().any(|value| wanted.get(&**value).copied().unwrap_or(false))
    })
}

/// Whether the asking supervisor can do what the rule needs.
pub(crate) fn able(rule: &RuleEntry, input: &Input) -> bool {
    rule.needs.iter().all(|need| input.can().iter().any(|can| **can == **need))
}

/// Whether the request may change the protocol as it asks, if it asks.
pub(crate) fn upgrade_ok(rule: &RuleEntry, input: &Input) -> bool {
    rule.l4 || input.upgrade().is_none_or(|protocol| rule.upgrade.get(protocol).copied().unwrap_or(false))
}

/// Whether the path has no escaped slash, or some rule of the pair accepts one.
fn slash_ok(candidates: &[&RuleEntry], input: &Input) -> bool {
    candidates.iter().any(|rule| rule.slash_ok(input.path()))
}

pub(crate) fn request_ok(rule: &RuleEntry, input: &Input) -> bool {
    let path = input.path();
    rule.method_ok(input.method()) && rule.slash_ok(path) && rule.path_ok(path) && upgrade_ok(rule, input)
}

/// What an engine's answer comes to where the path has an escaped slash. The Rego of a bundle may be older than these paths
/// and know nothing of them; its rules never meant them, and none of them says that it accepts one.
pub(crate) fn held_to_slash(decision: Decision, data: &NodeData, input: &Input) -> Decision {
    use DecisionReason as Reason;
    let is_asked = input.path().is_some_and(has_escaped_slash);
    if !is_asked || matches!(decision.reason, Reason::NoGrant | Reason::EngineError) {
        return decision;
    }
    let accepts = |rule: &&RuleEntry| decision.reason != Reason::Rule || *rule.id == *decision.rule_id;
    let rules = candidates(data, input);
    match rules.iter().filter(|rule| rule.encoded_slash).any(accepts) {
        true => decision,
        false => Decision::deny(Reason::EscapedSlash),
    }
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

/// No rule matched: let it through only when the whole pair is in audit mode and could grant, no credential is at stake,
/// and the request does not turn into uninspected bytes.
fn missed(candidates: &[&RuleEntry], input: &Input) -> Decision {
    let harmless = |rule: &&RuleEntry| rule.audit && rule.credential.is_empty() && able(rule, input);
    let audit = input.upgrade().is_none() && candidates.iter().all(harmless);
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
