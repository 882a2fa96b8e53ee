//! Audit mode: a pair lets would-be denials pass only while every rule of it lets them, patterns included.

use super::compare::{Pairs, covering, patterns};
use super::cover::shown;
use super::flat::{Flat, Pair};
use super::grant::Grant;
use super::risk::{Found, Kind};

/// Audit turned on or off, rule by rule, and pairs that begin or cease to let would-be denials pass.
pub(super) fn compare(live: &Flat, next: &Flat, found: &mut Found) {
    let names = live.names.joined(&next.names);
    for (scope, pairs) in &next.scopes {
        let Some(before) = live.scopes.get(scope) else { continue };
        let (was, is) = (patterns(before), patterns(pairs));
        for (key, pair) in all(before, pairs) {
            let old = covering(before, &was, key, &pair.matcher);
            let new = covering(pairs, &is, key, &pair.matcher);
            if old.is_empty() || new.is_empty() {
                continue;
            }
            let shown = shown(scope, key, &pair.matcher, &names);
            if let Some(pair) = pairs.get(key) {
                rules(&shown, before.get(key), pair, found);
            }
            if let Some((kind, before, after)) = passage(&old, &new) {
                found.add(kind, shown, "", before, after);
            }
        }
    }
}

/// Every key of both sides once.
fn all<'p>(before: &'p Pairs, after: &'p Pairs) -> impl Iterator<Item = (&'p super::flat::Key, &'p Pair)> {
    let gone = before.iter().filter(|(key, _)| !after.contains_key(*key));
    after.iter().chain(gone)
}

fn rules(shown: &str, before: Option<&Pair>, after: &Pair, found: &mut Found) {
    let text = |on: bool| if on { "audit mode" } else { "enforced" };
    let Some(before) = before else {
        for rule in after.rules.iter().filter(|rule| rule.audit) {
            found.add(Kind::NewAuditPair, shown, &rule.id, "(covered by a wider pair)", text(true));
        }
        return;
    };
    for rule in &after.rules {
        let was = match before.rules.iter().find(|live| live.id == rule.id) {
            Some(live) => live.audit,
            // A new rule of a live pair: it counts as what the pair was.
            None if rule.audit => before.rules.iter().any(|live| live.audit),
            None => before.rules.iter().all(|live| live.audit),
        };
        if was != rule.audit {
            let kind = if rule.audit { Kind::AuditOn } else { Kind::AuditOff };
            found.add(kind, shown, &rule.id, text(was), text(rule.audit));
        }
    }
}

/// Whether would-be denials pass for all callers or for some, and the risk that it is when that changes.
fn passage(before: &[&Grant], after: &[&Grant]) -> Option<(Kind, &'static str, &'static str)> {
    let text = |passes: (bool, bool)| match passes {
        (true, _) => "would-be denials pass",
        (false, true) => "would-be denials of some callers pass",
        (false, false) => "enforced",
    };
    let (was, is) = (passes(before), passes(after));
    match is.cmp(&was) {
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some((Kind::AuditOn, text(was), text(is))),
        std::cmp::Ordering::Less => Some((Kind::AuditOff, text(was), text(is))),
    }
}

/// For all callers, and for those to whom no rule with a condition applies.
fn passes(rules: &[&Grant]) -> (bool, bool) {
    let all = rules.iter().all(|rule| rule.is_harmless());
    let some = rules.iter().any(|rule| rule.is_harmless());
    (all, some && rules.iter().all(|rule| rule.is_harmless() || rule.is_conditional()))
}
