//! What the audit log says is in use: recorded calls are decided again, on both bundles.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use thiserror::Error;

use super::flat::Names;
use super::risk::{Found, Kind};
use crate::bundle::VerifiedBundle;
use crate::engine::{Evaluator, Policy};
use crate::input::{Direction, Input, Phase};

/// Most different calls that are decided again.
pub(super) const MAX_CALLS: usize = 200_000;

/// Pairs and calls that must go on working.
#[derive(Debug, Clone, Default)]
pub struct InUse {
    pairs: BTreeSet<String>,
    calls: BTreeMap<String, Input>,
}

/// Why a file is no list of what is in use.
#[derive(Debug, Error)]
pub enum InUseError {
    /// A line is neither an audit line nor a pair.
    #[error("line {0}: neither an audit line (JSON) nor a pair such as \"x -> service-a:https\"")]
    Line(usize),
    /// More than can be decided again.
    #[error("more than {MAX_CALLS} different calls; give a shorter piece of the audit log")]
    TooMany,
}

#[derive(Deserialize)]
struct Line {
    verdict: String,
    input: Option<Input>,
}

impl InUse {
    /// Reads audit lines, and pairs as the gate prints them, one a line.
    ///
    /// # Errors
    /// At the first line that is neither.
    pub fn parse(text: &str) -> Result<Self, InUseError> {
        let mut all = Self::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            if line.contains(" -> ") && !line.starts_with('{') {
                all.pairs.insert(line.to_owned());
                continue;
            }
            let line: Line = serde_json::from_str(line).map_err(|_| InUseError::Line(index + 1))?;
            let Some(input) = line.input.filter(|_| line.verdict == "allow" || line.verdict == "would_deny") else {
                continue;
            };
            all.calls.entry(serde_json::to_string(&input).unwrap_or_default()).or_insert(input);
            if all.calls.len() > MAX_CALLS {
                return Err(InUseError::TooMany);
            }
        }
        Ok(all)
    }

    /// Whether the list has this pair by its name, with or without the port.
    pub(super) fn names(&self, pair: &str) -> bool {
        let without_port = pair.rsplit_once(':').map_or(pair, |(pair, _)| pair);
        self.pairs.contains(pair) || self.pairs.contains(without_port)
    }

    /// Calls that the live bundle allows and the next one denies.
    pub(super) fn lost(&self, live: &VerifiedBundle, next: &Policy, names: &Names, found: &mut Found) {
        // A live bundle of another layout cannot be asked: what was recorded as allowed then counts as allowed.
        let live = Policy::load(live.clone()).ok();
        let (mut before, mut after) = (Evaluator::new(), Evaluator::new());
        for input in self.calls.values() {
            let was = live.as_ref().map(|live| before.decide(live, input));
            let is = after.decide(next, input);
            if is.allow || was.as_ref().is_some_and(|was| !was.allow) {
                continue;
            }
            let rule = was.as_ref().map(|was| was.rule_id.to_string()).unwrap_or_default();
            found.add(
                Kind::RuleRemoved,
                pair(input, names),
                &rule,
                asked(input),
                format!("deny ({})", is.reason.as_str()),
            );
        }
    }
}

fn pair(input: &Input, names: &Names) -> String {
    match input.direction() {
        Direction::Egress => {
            let (host, port) = (input.dest_host().unwrap_or_default(), input.dest_port().unwrap_or_default());
            format!("{} -> {}", input.workload(), names.destination(&format!("{host}:{port}")))
        }
        Direction::Ingress => {
            let peer = input.peer().map(|peer| names.identity(peer));
            let peer = peer.or_else(|| input.src_ip().map(str::to_owned)).unwrap_or_default();
            format!("{peer} -> {}:{}", input.workload(), input.port().unwrap_or_default())
        }
    }
}

/// Without the path: it would make a risk of every call.
fn asked(input: &Input) -> String {
    match input.phase() {
        Phase::Request => format!("in use: {}", input.method().unwrap_or_default()),
        Phase::Opaque => "in use: opaque bytes".to_owned(),
        Phase::Connect => "in use: connect".to_owned(),
    }
}
