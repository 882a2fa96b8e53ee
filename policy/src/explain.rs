//! Why a decision came out as it did: the verdict, then for every rule of the workload which test failed.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;

use crate::data::{ExternalPeers, NodeData, RuleEntry};
use crate::decision::Decision;
use crate::engine::Policy;
use crate::input::{Direction, Input, OWN_CA, Phase, Token};
use crate::judge;

/// Stands for a field the input does not have.
const NOTHING: &str = "(none)";
/// Most rules listed.
const MAX_RULES: usize = 50;

/// The steps of one decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// What was asked.
    pub input: Input,
    /// Revision of the bundle it was decided with.
    pub revision: String,
    /// Serial of that bundle.
    pub serial: u64,
    /// The verdict.
    pub decision: Decision,
    /// Rules of the workload, candidates first.
    pub rules: Vec<Considered>,
    /// Rules left out for length.
    pub omitted: usize,
    /// What would have allowed it, for people; empty when it was allowed.
    pub hint: String,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Considered {
    /// Its id.
    pub rule: String,
    /// It belongs to this pair: the tests of the pair all passed.
    pub candidate: bool,
    /// All tests passed.
    pub matches: bool,
    /// It is in audit mode.
    pub audit: bool,
    /// The tests in order.
    pub tests: Vec<Test>,
    #[serde(skip)]
    rank: u32,
}

/// One test of one rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Test {
    /// What is compared.
    pub test: &'static str,
    /// What the rule wants.
    pub wanted: String,
    /// What the input has.
    pub got: String,
    /// Whether it passed.
    pub ok: bool,
}

/// Explains a decision natively from the policy's data.
#[must_use]
pub fn explain(policy: &Policy, input: &Input) -> Explanation {
    let data = policy.data();
    let candidates = judge::candidates(data, input);
    let decision = judge::verdict(&candidates, input).without_credentials();
    let mut rules = considered(data, input);
    rules.sort_by_key(|rule| (!rule.candidate, rule.rank));
    let omitted = rules.len().saturating_sub(MAX_RULES);
    rules.truncate(MAX_RULES);
    let hint = if decision.allow { String::new() } else { hint(data, input, &decision) };
    Explanation {
        input: input.clone(),
        revision: policy.revision().to_owned(),
        serial: policy.serial(),
        decision,
        rules,
        omitted,
        hint,
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match (self.decision.allow, self.decision.would_deny) {
            (true, true) => "ALLOW (audit mode: would deny)",
            (true, false) => "ALLOW",
            (false, _) => "DENY",
        };
        write!(f, "{verdict}  reason={}", self.decision.reason.as_str())?;
        if !self.decision.rule_id.is_empty() {
            write!(f, " rule={}", self.decision.rule_id)?;
        }
        writeln!(f, " revision={}", self.revision)?;
        if self.rules.is_empty() {
            writeln!(f, "no rule speaks of this workload in this direction")?;
        }
        for rule in &self.rules {
            let standing = match (rule.candidate, rule.matches) {
                (_, true) => "matches",
                (true, false) => "candidate",
                (false, false) => "other pair",
            };
            writeln!(f, "rule {} ({standing}{})", rule.rule, if rule.audit { ", audit" } else { "" })?;
            for test in &rule.tests {
                let mark = if test.ok { "ok  " } else { "FAIL" };
                writeln!(f, "  {mark} {:<14} wanted {}  got {}", test.test, test.wanted, test.got)?;
            }
        }
        if self.omitted > 0 {
            writeln!(f, "and {} more rules of other pairs", self.omitted)?;
        }
        if !self.hint.is_empty() {
            writeln!(f, "{}", self.hint)?;
        }
        Ok(())
    }
}

/// The ways one rule can be reached by the pair, collected over the lists it appears in.
struct Ways<'d> {
    rule: &'d RuleEntry,
    tests: Vec<Way>,
}

/// One list entry: the tests that lead to it.
type Way = Vec<(&'static str, String, bool)>;

fn considered(data: &NodeData, input: &Input) -> Vec<Considered> {
    let mut ways: BTreeMap<u32, Ways<'_>> = BTreeMap::new();
    match input.direction() {
        Direction::Egress => egress_ways(data, input, &mut ways),
        Direction::Ingress => ingress_ways(data, input, &mut ways),
    }
    ways.into_values().map(|ways| finish(&ways, input)).collect()
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
        let own = ("peer_ca", OWN_CA.to_owned(), ca.is_some_and(judge::is_own_ca));
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

/// Shows the way that passed, or else the one that came closest, and adds the tests of the request.
fn finish(ways: &Ways<'_>, input: &Input) -> Considered {
    let rule = ways.rule;
    let passed = |way: &&Way| way.iter().filter(|(_, _, ok)| *ok).count();
    let best = ways.tests.iter().find(|way| way.iter().all(|(_, _, ok)| *ok));
    let candidate = best.is_some();
    let shown = best.or_else(|| ways.tests.iter().max_by_key(passed)).cloned().unwrap_or_default();
    let mut tests: Vec<Test> =
        shown.into_iter().map(|(test, wanted, ok)| Test { test, wanted, got: got(test, input), ok }).collect();
    match input.phase() {
        Phase::Connect => {}
        Phase::Opaque => tests.push(Test {
            test: "opaque",
            wanted: "a rule without an http block".to_owned(),
            got: if rule.l4 { "no http block" } else { "an http block" }.to_owned(),
            ok: rule.l4,
        }),
        Phase::Request if rule.l4 => {}
        Phase::Request => tests.extend([
            Test {
                test: "method",
                wanted: rule.methods.keys().cloned().collect::<Vec<_>>().join(", "),
                got: got("method", input),
                ok: rule.method_ok(input.method()),
            },
            Test { test: "path", wanted: rule.paths_text(), got: got("path", input), ok: rule.path_ok(input.path()) },
        ]),
    }
    if input.upgrade().is_some() && !rule.l4 {
        let wanted = rule.upgrade.keys().cloned().collect::<Vec<_>>().join(", ");
        let (got, ok) = (got("upgrade", input), judge::upgrade_ok(rule, input));
        tests.push(Test { test: "upgrade", wanted, got, ok });
    }
    if !rule.needs.is_empty() {
        let (wanted, got) = (rule.needs.join(", "), got("supported", input));
        tests.push(Test { test: "supported", wanted, got, ok: judge::able(rule, input) });
    }
    let matches = tests.iter().all(|test| test.ok);
    Considered { rule: rule.id.clone(), candidate, matches, audit: rule.audit, tests, rank: rule.rank }
}

fn got(test: &str, input: &Input) -> String {
    let text = match test {
        "destination" => return destination(input),
        "peer_dns" => return listed(input.peer_dns()),
        "supported" => return listed(input.can()),
        "claims" => return input.token().map_or_else(|| NOTHING.to_owned(), claims),
        "issuer" => input.token().map(|token| &*token.issuer),
        "subject" => input.token().and_then(|token| token.subject.as_deref()),
        "peer_cn" => input.peer_cn(),
        "icmp" => input.icmp(),
        "upgrade" => input.upgrade(),
        "port" => input.port(),
        "peer" => input.peer(),
        "peer_ca" => input.peer_ca(),
        "source_address" => input.src_ip(),
        "method" => input.method(),
        "path" => input.path(),
        _ => None,
    };
    text.unwrap_or(NOTHING).to_owned()
}

fn listed(names: &[Arc<str>]) -> String {
    if names.is_empty() { NOTHING.to_owned() } else { names.join(", ") }
}

fn claims(token: &Token) -> String {
    let one = |(name, values): (&Arc<str>, &Vec<Arc<str>>)| format!("{name}={}", values.join("|"));
    token.claims.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn destination(input: &Input) -> String {
    let host = input.dest_host().unwrap_or(NOTHING);
    input.dest_port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn hint(data: &NodeData, input: &Input, decision: &Decision) -> String {
    use crate::decision::DecisionReason as Reason;
    let workload = input.workload();
    if !data.workloads.contains_key(workload) {
        return format!("workload {workload:?} is not in this bundle: was it compiled for this node?");
    }
    match (decision.reason, input.direction()) {
        (Reason::NoGrant, Direction::Egress) => {
            format!("no rule from workload {workload} to {}: add one", destination(input))
        }
        (Reason::NoGrant, Direction::Ingress) => {
            let who = input.peer().or(input.src_ip()).unwrap_or("this caller");
            format!("no rule from {who} to port {} of {workload}: add one", input.port().unwrap_or("(none)"))
        }
        (Reason::L7Mismatch, _) => format!(
            "a rule of the pair must list {} {}",
            input.method().unwrap_or("the method"),
            input.path().unwrap_or("the path")
        ),
        (Reason::NeedsOpaqueGrant, _) => "uninspected bytes need a rule of the pair without an http block".to_owned(),
        (Reason::CredentialUnavailable, _) => {
            format!(
                "rule {} injects credential {}, which this node cannot provide",
                decision.rule_id, decision.credential
            )
        }
        _ => String::new(),
    }
}
