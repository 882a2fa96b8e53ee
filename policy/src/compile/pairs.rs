//! What two rules of one pair may not contradict each other in.

use std::collections::BTreeMap;

use super::resolve::Resolved;
use crate::report::{Problem, Report};
use crate::rules::{Destination, HostPattern, Rule};

/// Something that the rules of one pair must agree in: what it is called, and how it shows where a rule has it.
struct Shared {
    what: &'static str,
    remedy: &'static str,
    of: fn(&Rule) -> Option<String>,
}

const SHARED: [Shared; 5] = [
    Shared { what: "credential", remedy: "use one credential per pair", of: |rule| rule.credential.clone() },
    Shared {
        what: "tls",
        remedy: "use one tls mode per destination",
        of: |rule| rule.http.as_ref().map(|_| format!("{:?} {}", rule.tls, rule.intercept)),
    },
    Shared { what: "ca", remedy: "use one CA per destination", of: |rule| rule.http.as_ref().map(|_| ca(rule)) },
    Shared { what: "via", remedy: "use one parent proxy per destination", of: via },
    Shared {
        what: "kind of requests",
        remedy: "use http or grpc for all rules of a destination",
        of: |rule| rule.http.as_ref().map(|_| rule.grpc.to_string()),
    },
];

/// Notes rules of one (source, external destination) that name different credentials, or another TLS mode, CA or proxy.
/// Each is held against the first that has the thing, so many rules of one pair take no more time than many pairs.
pub(super) fn check(file: &str, resolved: &[Resolved<'_>], report: &mut Report) {
    let mut first: BTreeMap<(&str, &str, u16), [Option<&Rule>; SHARED.len()]> = BTreeMap::new();
    for current in resolved {
        let Destination::External { host, port, .. } = &current.rule.to else { continue };
        let name = match host {
            HostPattern::Exact(host) => host.as_str(),
            HostPattern::Suffix(suffix) => suffix.as_str(),
        };
        for source in &current.sources {
            let firsts = first.entry((source.workload.as_str(), name, *port)).or_default();
            for (shared, first) in SHARED.iter().zip(firsts) {
                let Some(value) = (shared.of)(current.rule) else { continue };
                match first {
                    None => *first = Some(current.rule),
                    Some(other) if (shared.of)(other).as_ref() == Some(&value) => {}
                    Some(other) => clash(file, current.rule, other, shared, report),
                }
            }
        }
    }
}

fn clash(file: &str, current: &Rule, other: &Rule, shared: &Shared, report: &mut Report) {
    report.push(Problem {
        file: file.to_owned(),
        line: current.at.line,
        column: current.at.column,
        subject: format!("rule {}", current.id),
        message: format!(
            "rule {} (line {}) has the same source and destination with another {}",
            other.id, other.at.line, shared.what
        ),
        remedy: shared.remedy.to_owned(),
    });
}

fn ca(rule: &Rule) -> String {
    match &rule.to {
        Destination::External { ca: Some(ca), .. } => ca.clone(),
        _ => String::new(),
    }
}

/// Every rule has an answer here: one that goes directly contradicts one that must not.
fn via(rule: &Rule) -> Option<String> {
    match &rule.to {
        Destination::External { via, .. } => Some(via.clone().unwrap_or_default()),
        _ => None,
    }
}
