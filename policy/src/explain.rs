//! Why a decision came out as it did: the verdict, then for every rule of the workload which test failed.

mod ways;

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use self::ways::{Way, Ways};
use crate::data::NodeData;
use crate::decision::Decision;
use crate::engine::Policy;
use crate::input::{Direction, Input, Phase, Token};
use crate::judge;
use crate::path::has_escaped_slash;

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
    let decision = judge::verdict(&candidates, input);
    let mut rules: Vec<Considered> = ways::all(data, input).values().map(|ways| finish(ways, input)).collect();
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
        if !self.decision.credential.is_empty() {
            write!(f, " credential={}", self.decision.credential)?;
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
    if input.path().is_some_and(has_escaped_slash) {
        let wanted = "a rule with encoded_slash: true".to_owned();
        let (got, ok) = (format!("encoded_slash: {}", rule.encoded_slash), rule.slash_ok(input.path()));
        tests.push(Test { test: "encoded_slash", wanted, got, ok });
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
        (Reason::EscapedSlash, _) => {
            "a rule of the pair must have an http block with `encoded_slash: true`; all others refuse %2F in paths"
                .to_owned()
        }
        (Reason::NeedsOpaqueGrant, _) => "uninspected bytes need a rule of the pair without an http block".to_owned(),
        _ => String::new(),
    }
}
