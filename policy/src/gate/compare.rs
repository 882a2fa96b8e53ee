//! Pairs: what the next bundle grants beyond the live one, and what is gone.

use std::collections::{BTreeMap, BTreeSet};

use super::cover::{covers, shown};
use super::flat::{At, Flat, Key, Names, Pair};
use super::grant::{Grant, join};
use super::in_use::InUse;
use super::matcher::Matcher;
use super::risk::{Found, Kind, or_none};

pub(super) type Pairs = BTreeMap<Key, Pair>;

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

pub(super) fn patterns(pairs: &Pairs) -> Vec<(&Key, &Pair)> {
    pairs.iter().filter(|(_, pair)| pair.matcher.is_pattern()).collect()
}

/// The rules of all pairs that contain this one.
pub(super) fn covering<'p>(
    pairs: &'p Pairs,
    patterns: &[(&'p Key, &'p Pair)],
    key: &Key,
    matcher: &Matcher,
) -> Vec<&'p Grant> {
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
        for (kind, text) in rule.extras() {
            add(kind, text);
        }
    }
}

/// Each rule must be contained in what the rules of the live pair grant together, under conditions that are no looser.
fn wider_pair(shown: &str, rules: &[Grant], known: &[&Grant], found: &mut Found) {
    for rule in rules {
        credential(shown, rule, known, found);
        let open: Vec<&Grant> = known.iter().copied().filter(|live| live.is_as_open_as(rule)).collect();
        let more = wider(rule, if open.is_empty() { known } else { &open });
        if more.is_empty() && !open.is_empty() {
            continue;
        }
        // The same requests under a condition that is gone: then the condition is what changed.
        let same = known.iter().find(|live| live.id == rule.id && wider(rule, &[live]).is_empty());
        let stricter = same.or_else(|| known.iter().find(|live| wider(rule, &[live]).is_empty()));
        let nearest = stricter.or_else(|| known.first().filter(|_| open.is_empty()));
        for (kind, before, after) in nearest.into_iter().flat_map(|live| live.opened_by(rule)) {
            found.add(kind, shown, &rule.id, before, after);
        }
        for (kind, before, after) in more.into_iter().filter(|_| stricter.is_none()) {
            found.add(kind, shown, &rule.id, before, after);
        }
    }
}

fn credential(shown: &str, rule: &Grant, known: &[&Grant], found: &mut Found) {
    let same = known.iter().find(|live| live.id == rule.id);
    let credentials: BTreeSet<&str> = known.iter().map(|live| live.credential.as_str()).collect();
    let swapped = same.is_some_and(|live| live.credential != rule.credential);
    if swapped || (!rule.credential.is_empty() && !credentials.contains(rule.credential.as_str())) {
        let before = same.map_or_else(|| join(&credentials), |live| live.credential.clone());
        found.add(Kind::CredentialChanged, shown, &rule.id, or_none(&before), or_none(&rule.credential));
    }
}

/// What a rule grants beyond all of `known`, whatever their conditions are.
fn wider(rule: &Grant, known: &[&Grant]) -> Vec<(Kind, String, String)> {
    if known.iter().any(|live| live.l4) {
        return Vec::new();
    }
    let paths = || join(known.iter().flat_map(|live| &live.paths).map(ToString::to_string));
    if rule.l4 {
        let all = "no http block: every method and path, and opaque bytes".to_owned();
        return vec![(Kind::HttpBlockDropped, paths(), all)];
    }
    let mut more = Vec::new();
    let (old, new): (Vec<&str>, Vec<&str>) =
        rule.writes().into_iter().partition(|name| known.iter().any(|live| live.has_method(name)));
    if !new.is_empty() {
        let before: BTreeSet<&String> = known.iter().flat_map(|live| &live.methods).collect();
        more.push((Kind::NewWriteMethod, join(before), rule.methods_text()));
    }
    // A wildcard for one method is none for another that writes: each must have been there for that path.
    let covered = |path| {
        known.iter().any(|live| live.covers_path(path))
            && old.iter().all(|name| known.iter().any(|live| live.has_method(name) && live.covers_path(path)))
    };
    let wild: Vec<_> = rule.paths.iter().filter(|path| path.is_wildcard() && !covered(path)).collect();
    if !wild.is_empty() {
        more.push((Kind::WildcardPath, paths(), join(wild)));
    }
    more
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
