//! Which rule wins: what a request carries that both bundles let through. The lowest rank wins, so a rule that comes, goes,
//! widens or moves changes what other rules' requests carry, also under another name and across overlapping patterns.
//!
//! Both bundles are asked about the same requests: for every destination, one for each combination of what its rules tell
//! apart.

use std::collections::BTreeSet;

use super::compare::{covering, patterns};
use super::cover::shown;
use super::flat::{Flat, Key};
use super::grant::{Grant, Leads, join};
use super::pattern::Path;
use super::risk::{Found, Kind, or_none};
use super::targets::kind_of;
use crate::path::has_escaped_slash;

/// More patterns than this for one destination are not asked about one by one.
const MAX_PATTERNS: usize = 128;
/// A method that only a rule for all methods has.
const OTHER: &str = "NOVA-SAMPLE";

/// What a granted request carries.
type Carried<'g> = (&'g str, &'g Leads);

/// One request, or bytes that nobody looks at.
struct Asked<'a> {
    request: Option<(&'a str, &'a Path)>,
    upgrade: bool,
    /// Asked by a supervisor that can do what rules need.
    able: bool,
}

/// What requests carry that both bundles let through.
pub(super) fn compare(live: &Flat, next: &Flat, found: &mut Found) {
    let names = live.names.joined(&next.names);
    for (scope, after) in next.scopes.iter().filter(|(scope, _)| scope[1] == "egress") {
        let Some(before) = live.scopes.get(scope) else { continue };
        let (was, is) = (patterns(before), patterns(after));
        let keys: BTreeSet<&Key> = before.keys().chain(after.keys()).collect();
        for key in keys {
            let Some(pair) = after.get(key).or_else(|| before.get(key)) else { continue };
            let old = ranked(covering(before, &was, key, &pair.matcher));
            let new = ranked(covering(after, &is, key, &pair.matcher));
            let all: BTreeSet<Carried<'_>> = old.iter().chain(&new).map(|rule| carried(rule)).collect();
            if !old.is_empty() && !new.is_empty() && all.len() > 1 {
                destination(&shown(scope, key, &pair.matcher, &names), &old, &new, found);
            }
        }
    }
}

fn ranked(mut rules: Vec<&Grant>) -> Vec<&Grant> {
    rules.sort_by_key(|rule| rule.rank);
    rules
}

fn carried(rule: &Grant) -> Carried<'_> {
    (&rule.credential, &rule.leads)
}

fn destination(shown: &str, old: &[&Grant], new: &[&Grant], found: &mut Found) {
    let patterns: BTreeSet<&Path> = old.iter().chain(new).flat_map(|rule| &rule.paths).collect();
    if patterns.len() > MAX_PATTERNS {
        let content =
            |rules: &[&Grant]| rules.iter().map(|rule| Grant { rank: 0, ..(*rule).clone() }).collect::<Vec<_>>();
        if content(old) != content(new) {
            let text = format!("one of {} patterns", patterns.len());
            found.add(Kind::RuleOrder, shown, "", text, "too many rules carry different things to compare them");
        }
        return;
    }
    let paths: BTreeSet<String> =
        patterns.iter().flat_map(|one| patterns.iter().flat_map(|two| one.shared(two))).collect();
    let paths: Vec<Path> = paths.into_iter().map(Path::Exact).collect();
    let methods = old.iter().chain(new).flat_map(|rule| &rule.methods).map(String::as_str);
    let methods: BTreeSet<&str> = methods.filter(|name| *name != "*").chain([OTHER]).collect();
    let requests = paths.iter().flat_map(|path| methods.iter().map(move |method| Some((*method, path))));
    for request in requests.chain([None]) {
        for (upgrade, able) in [(false, false), (false, true), (true, false), (true, true)] {
            compared(shown, &Asked { request, upgrade, able }, old, new, found);
        }
    }
}

fn compared(shown: &str, asked: &Asked<'_>, old: &[&Grant], new: &[&Grant], found: &mut Found) {
    let winner = |rules: &[&'_ Grant]| rules.iter().position(|rule| asked.matches(rule));
    let (Some(was), Some(is)) = (winner(old), winner(new)) else { return };
    let (was, is) = (old[was], new[is]);
    if carried(was) == carried(is) {
        return;
    }
    // Both could be had before and after: then they have only swapped places.
    let offers = |rules: &[&Grant], wanted: &Grant| {
        rules.iter().any(|rule| asked.matches(rule) && carried(rule) == carried(wanted))
    };
    if offers(old, is) && offers(new, was) {
        found.add(Kind::RuleOrder, shown, &is.id, format!("{} first", was.id), format!("{} first", is.id));
        return;
    }
    if was.credential != is.credential {
        found.add(Kind::CredentialChanged, shown, &is.id, or_none(&was.credential), or_none(&is.credential));
    }
    leads(shown, &was.leads, &is.leads, found);
}

fn leads(shown: &str, was: &Leads, is: &Leads, found: &mut Found) {
    let new: Vec<_> =
        is.addresses.iter().filter(|range| !was.addresses.iter().any(|own| own.contains(*range))).collect();
    if !new.is_empty() {
        found.add(Kind::WiderRange, shown, "", or_none(&join(&was.addresses)), join(new));
    }
    let names: BTreeSet<&String> = was.members.keys().chain(is.members.keys()).collect();
    for name in names.into_iter().filter(|name| was.members.get(*name) != is.members.get(*name)) {
        let text = |side: &Leads| format!("{name}: {}", or_none(side.members.get(name).map_or("", String::as_str)));
        found.add(kind_of(name), shown, "", text(was), text(is));
    }
}

impl Asked<'_> {
    fn matches(&self, rule: &Grant) -> bool {
        let able = self.able || !rule.rest.contains_key("needs");
        let upgrade = !self.upgrade || rule.l4 || rule.rest.contains_key("upgrade");
        let request = match self.request {
            Some((method, path)) => {
                let escaped = matches!(path, Path::Exact(text) if has_escaped_slash(text));
                rule.has_method(method) && rule.covers_path(path) && (!escaped || rule.accepts_slash())
            }
            None => rule.l4,
        };
        able && upgrade && request
    }
}
