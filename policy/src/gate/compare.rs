//! Pairs, destinations and the order of rules.

use std::collections::{BTreeMap, BTreeSet};

use super::cover::{Matcher, covers, shown};
use super::flat::{At, Flat, Key, Names, Pair, Target};
use super::grant::{Grant, join};
use super::in_use::InUse;
use super::risk::{Found, Kind};

/// Above this many rules of one workload that changed places, it is not worked out which of them matter.
const MAX_ORDER: usize = 2000;

type Pairs = BTreeMap<Key, Pair>;

/// What the pairs of the next bundle grant beyond those of the live one, and what is gone.
pub(super) fn pairs(live: &Flat, next: &Flat, in_use: Option<&InUse>, found: &mut Found) {
    let names = live.names.joined(&next.names);
    let none = Pairs::new();
    for (scope, pairs) in &next.scopes {
        let before = live.scopes.get(scope).unwrap_or(&none);
        let patterns = patterns(before);
        for (key, pair) in pairs {
            let shown = shown(scope, key, &pair.matcher, &names);
            let known = covering(before, &patterns, key, &pair.matcher);
            if known.is_empty() {
                new_pair(scope, &shown, pair, &names, found);
            } else {
                wider_pair(&shown, &pair.rules, &known, found);
                audit(&shown, before.get(key), pair, found);
            }
        }
    }
    for (scope, pairs) in &live.scopes {
        let after = next.scopes.get(scope).unwrap_or(&none);
        let patterns = patterns(after);
        for (key, pair) in pairs {
            let left = covering(after, &patterns, key, &pair.matcher);
            let shown = shown(scope, key, &pair.matcher, &names);
            if in_use.is_none_or(|in_use| in_use.names(&shown)) {
                removed(&shown, &pair.rules, &left, found);
            }
        }
    }
}

fn patterns(pairs: &Pairs) -> Vec<(&Key, &Pair)> {
    pairs.iter().filter(|(_, pair)| pair.matcher.is_pattern()).collect()
}

/// The rules of all pairs that contain this one.
fn covering<'p>(pairs: &'p Pairs, patterns: &[(&'p Key, &'p Pair)], key: &Key, matcher: &Matcher) -> Vec<&'p Grant> {
    let same = pairs.get(key).map(|pair| &pair.rules).into_iter().flatten();
    let wider = patterns.iter().filter(|(own, pair)| *own != key && covers((own, &pair.matcher), (key, matcher)));
    same.chain(wider.flat_map(|(_, pair)| &pair.rules)).collect()
}

fn new_pair(scope: &At, shown: &str, pair: &Pair, names: &Names, found: &mut Found) {
    let outside = matches!(pair.matcher, Matcher::Destination { .. } | Matcher::Suffix { .. } | Matcher::Range { .. });
    let egress = scope.get(1).is_some_and(|direction| direction == "egress");
    let http = match &pair.matcher {
        Matcher::Destination { host, port } if egress => names.is_http(&names.destination(&format!("{host}:{port}"))),
        _ if egress => None,
        _ => names.is_http(&scope[2..].join(":")),
    };
    for rule in &pair.rules {
        let mut add = |kind, after: String| found.add(kind, shown, &rule.id, "(no such pair)", after);
        if let Some(kind) = pair.matcher.risk() {
            add(kind, shown.to_owned());
        }
        if !rule.credential.is_empty() {
            let kind = if egress && outside { Kind::NewExternalCredential } else { Kind::CredentialChanged };
            add(kind, rule.credential.clone());
        }
        match http {
            Some(false) => add(Kind::NewTcpPeer, rule.methods_text()),
            None if rule.l4 => add(Kind::NewTcpPeer, rule.methods_text()),
            _ if rule.l4 => add(Kind::WildcardPath, rule.methods_text()),
            _ => {}
        }
        let wild: Vec<_> = rule.paths.iter().filter(|path| path.is_wildcard()).collect();
        if !wild.is_empty() && !rule.l4 {
            add(Kind::WildcardPath, join(wild));
        }
        if rule.audit {
            add(Kind::NewAuditPair, "audit mode".to_owned());
        }
        if rule.extras() {
            add(Kind::UnknownDifference, rule.rest_text());
        }
    }
}

/// Each rule must be contained in what the rules of the live pair grant together.
fn wider_pair(shown: &str, rules: &[Grant], known: &[&Grant], found: &mut Found) {
    let any_l4 = known.iter().any(|live| live.l4);
    for rule in rules {
        let same = known.iter().find(|live| live.id == rule.id);
        let credentials: BTreeSet<&str> = known.iter().map(|live| live.credential.as_str()).collect();
        let swapped = same.is_some_and(|live| live.credential != rule.credential);
        if swapped || (!rule.credential.is_empty() && !credentials.contains(rule.credential.as_str())) {
            let before = same.map_or_else(|| join(&credentials), |live| live.credential.clone());
            found.add(Kind::CredentialChanged, shown, &rule.id, or_none(&before), or_none(&rule.credential));
        }
        if rule.l4 && !any_l4 {
            let before = join(known.iter().flat_map(|live| &live.paths).map(ToString::to_string));
            found.add(
                Kind::HttpBlockDropped,
                shown,
                &rule.id,
                before,
                "no http block: every method and path, and opaque bytes",
            );
        }
        if !rule.l4 && !any_l4 {
            methods(shown, rule, known, found);
            paths(shown, rule, known, found);
        }
        if known.iter().all(|live| live.rest != rule.rest) {
            let before = same.or(known.first()).map(|live| live.rest_text()).unwrap_or_default();
            found.add(Kind::UnknownDifference, shown, &rule.id, or_none(&before), or_none(&rule.rest_text()));
        }
    }
}

fn methods(shown: &str, rule: &Grant, known: &[&Grant], found: &mut Found) {
    let new: Vec<&str> =
        rule.writes().into_iter().filter(|name| !known.iter().any(|live| live.has_method(name))).collect();
    if !new.is_empty() {
        let before: BTreeSet<&String> = known.iter().flat_map(|live| &live.methods).collect();
        found.add(Kind::NewWriteMethod, shown, &rule.id, join(before), rule.methods_text());
    }
}

fn paths(shown: &str, rule: &Grant, known: &[&Grant], found: &mut Found) {
    let new = rule.paths.iter().filter(|path| path.is_wildcard() && !known.iter().any(|live| live.covers_path(path)));
    let new: Vec<_> = new.collect();
    if !new.is_empty() {
        let before = join(known.iter().flat_map(|live| &live.paths).map(ToString::to_string));
        found.add(Kind::WildcardPath, shown, &rule.id, before, join(new));
    }
}

/// A pair lets would-be denials pass only while all its rules are in audit mode.
fn audit(shown: &str, before: Option<&Pair>, after: &Pair, found: &mut Found) {
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
    let all = |rules: &[Grant]| rules.iter().all(|rule| rule.audit);
    if all(&before.rules) != all(&after.rules) {
        let kind = if all(&after.rules) { Kind::AuditOn } else { Kind::AuditOff };
        found.add(kind, shown, "", text(all(&before.rules)), text(all(&after.rules)));
    }
}

/// Rules whose grant is no longer there under any id. One that was only narrowed is still there.
fn removed(shown: &str, rules: &[Grant], left: &[&Grant], found: &mut Found) {
    for rule in rules {
        let narrowed = left.iter().any(|next| next.id == rule.id && (!rule.l4 || next.l4));
        let taken_over = if rule.l4 {
            left.iter().any(|next| next.l4)
        } else {
            rule.methods.iter().all(|name| left.iter().any(|next| next.has_method(name)))
                && rule.paths.iter().all(|path| left.iter().any(|next| next.covers_path(path)))
                && !left.is_empty()
        };
        if !narrowed && !taken_over {
            let paths = if rule.l4 { String::new() } else { format!(" {}", join(&rule.paths)) };
            let after =
                if left.is_empty() { "(no such pair)".to_owned() } else { join(left.iter().map(|next| &next.id)) };
            found.add(Kind::RuleRemoved, shown, &rule.id, format!("{}{paths}", rule.methods_text()), after);
        }
    }
}

/// What granted rules lead to: TLS, CA, identity and port of a destination that was there before; private ranges always.
pub(super) fn targets(live: &Flat, next: &Flat, found: &mut Found) {
    let names = live.names.joined(&next.names);
    for ((source, destination), target) in &next.targets {
        let shown = format!("{source} -> {}", names.destination(destination));
        let before = live.targets.get(&(source.clone(), destination.clone()));
        ranges(&shown, before, target, found);
        match before {
            Some(before) => members(&shown, before, target, found),
            None => {
                for name in target.members.keys().filter(|name| kind_of(name) == Kind::UnknownDifference) {
                    found.add(
                        Kind::UnknownDifference,
                        &shown,
                        "",
                        "(no such pair)",
                        format!("{name}: {}", join(&target.members[name])),
                    );
                }
            }
        }
    }
}

fn ranges(shown: &str, before: Option<&Target>, after: &Target, found: &mut Found) {
    let known = before.map(|target| target.addresses.as_slice()).unwrap_or_default();
    let new: Vec<_> = after.addresses.iter().filter(|range| !known.iter().any(|own| own.contains(*range))).collect();
    if !new.is_empty() {
        found.add(Kind::WiderRange, shown, "", or_none(&join(known)), join(new));
    }
}

fn members(shown: &str, before: &Target, after: &Target, found: &mut Found) {
    let none = BTreeSet::new();
    let all: BTreeSet<&String> = before.members.keys().chain(after.members.keys()).collect();
    for name in all {
        let (was, is) = (before.members.get(name).unwrap_or(&none), after.members.get(name).unwrap_or(&none));
        // A value that only some rules had may go; one that comes, or a member that goes altogether, is a change.
        if is.is_subset(was) && is.is_empty() == was.is_empty() {
            continue;
        }
        let text = |values: &BTreeSet<String>| format!("{name}: {}", or_none(&join(values)));
        found.add(kind_of(name), shown, "", text(was), text(is));
    }
}

fn kind_of(member: &str) -> Kind {
    match member {
        "tls" | "intercept" => Kind::TlsChanged,
        "via" => Kind::RouteChanged,
        "ca" => Kind::CaChanged,
        "spiffe_id" | "workload" => Kind::IdentityChanged,
        "port_name" | "mode" | "protocol" | "grpc" | "port" => Kind::PortChanged,
        // Part of what names the destination, or the list of its other names, which are pairs of their own.
        "kind" | "host" | "cidr" | "aliases" => Kind::PortChanged,
        _ => Kind::UnknownDifference,
    }
}

/// The lowest rank wins: rules of one place that carry different things must not swap.
pub(super) fn order(live: &Flat, next: &Flat, found: &mut Found) {
    for (scope, pairs) in &next.scopes {
        let Some(before) = live.scopes.get(scope) else { continue };
        let (before, after) = (ranked(before), ranked(pairs));
        let mut common: Vec<(&Grant, &Grant)> =
            after.iter().filter_map(|(id, rule)| Some((*before.get(id)?, *rule))).collect();
        common.sort_by_key(|(live, _)| live.rank);
        if common.is_sorted_by_key(|(_, next)| next.rank) {
            continue;
        }
        let place = scope[2..].join(":");
        if common.len() > MAX_ORDER {
            found.add(Kind::RuleOrder, place, "", format!("{} rules", common.len()), "in another order");
            continue;
        }
        for (index, (_, first)) in common.iter().enumerate() {
            let later = common[index + 1..].iter();
            for (_, second) in
                later.filter(|(_, second)| second.rank < first.rank && second.carries() != first.carries())
            {
                let (was, is) = (format!("{} first", first.id), format!("{} first", second.id));
                found.add(Kind::RuleOrder, &place, &second.id, was, is);
            }
        }
    }
}

fn ranked(pairs: &Pairs) -> BTreeMap<&str, &Grant> {
    pairs.values().flat_map(|pair| &pair.rules).map(|rule| (rule.id.as_str(), rule)).collect()
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "(none)".to_owned() } else { text.to_owned() }
}
