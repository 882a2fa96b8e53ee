//! What two rules of one pair may not contradict each other in.

use std::collections::BTreeMap;

use super::resolve::Resolved;
use crate::report::{Problem, Report};
use crate::rules::{Destination, HostPattern};

/// Notes rules of one (source, external destination) that name different credentials, or another TLS mode or CA.
pub(super) fn check(file: &str, resolved: &[Resolved<'_>], report: &mut Report) {
    let mut first: BTreeMap<(&str, &str, u16), Vec<&Resolved<'_>>> = BTreeMap::new();
    for current in resolved {
        let Destination::External { host, port, .. } = &current.rule.to else { continue };
        let name = match host {
            HostPattern::Exact(host) => host.as_str(),
            HostPattern::Suffix(suffix) => suffix.as_str(),
        };
        for source in &current.sources {
            let pair = first.entry((source.workload.as_str(), name, *port)).or_default();
            for other in pair.iter() {
                clash(file, current, other, report);
            }
            pair.push(current);
        }
    }
}

fn clash(file: &str, current: &Resolved<'_>, other: &Resolved<'_>, report: &mut Report) {
    let mut fail = |what: &str, remedy: &str| {
        report.push(Problem {
            file: file.to_owned(),
            line: current.rule.at.line,
            column: current.rule.at.column,
            subject: format!("rule {}", current.rule.id),
            message: format!(
                "rule {} (line {}) has the same source and destination with another {what}",
                other.rule.id, other.rule.at.line
            ),
            remedy: remedy.to_owned(),
        });
    };
    let credentials = (&current.rule.credential, &other.rule.credential);
    if matches!(credentials, (Some(a), Some(b)) if a != b) {
        fail("credential", "use one credential per pair");
    }
    let both_http = current.rule.http.is_some() && other.rule.http.is_some();
    if both_http && current.rule.tls != other.rule.tls {
        fail("tls", "use one tls mode per destination");
    }
    let ca = |resolved: &Resolved<'_>| match &resolved.rule.to {
        Destination::External { ca, .. } => ca.clone(),
        _ => None,
    };
    if both_http && ca(current) != ca(other) {
        fail("ca", "use one CA per destination");
    }
}
