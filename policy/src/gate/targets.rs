//! What granted rules lead to: TLS, CA, route, identity and port of a destination, and private ranges behind a name.

use std::collections::{BTreeMap, BTreeSet};

use super::flat::{Flat, NAMING, Target};
use super::grant::join;
use super::matcher::Matcher;
use super::risk::{Found, Kind, or_none};

type Targets = BTreeMap<(String, String), Target>;

/// A destination that was there, under its own name or under a wildcard, must lead to what it led to.
pub(super) fn compare(live: &Flat, next: &Flat, found: &mut Found) {
    let names = live.names.joined(&next.names);
    for (key, target) in &next.targets {
        let shown = format!("{} -> {}", key.0, names.destination(&key.1));
        let wider = if live.targets.contains_key(key) { None } else { covering(&live.targets, key) };
        let before = live.targets.get(key).or(wider.as_ref());
        ranges(&shown, before, target, found);
        match before {
            Some(before) => members(&shown, before, target, found),
            None => unknown(&shown, target, found),
        }
    }
}

/// What the wider destinations of the same source lead to, without what names them.
fn covering(targets: &Targets, (source, destination): &(String, String)) -> Option<Target> {
    let own = matcher(destination);
    let of_source = targets.range((source.clone(), String::new())..).take_while(|((name, _), _)| name == source);
    let mut all = Target::default();
    for (_, target) in of_source.filter(|((_, wider), _)| matcher(wider).covers(&own)) {
        all.addresses.extend(&target.addresses);
        for (name, values) in target.members.iter().filter(|(name, _)| !NAMING.contains(&name.as_str())) {
            all.members.entry(name.clone()).or_default().extend(values.iter().cloned());
        }
    }
    (!all.members.is_empty()).then_some(all)
}

/// A destination as targets name it.
fn matcher(destination: &str) -> Matcher {
    let (name, port) = destination.rsplit_once(':').unwrap_or((destination, ""));
    let (port, network) = (port.to_owned(), name.parse::<ipnet::IpNet>());
    match (name.strip_prefix('*'), network) {
        (Some(suffix), _) => Matcher::Suffix { suffix: suffix.to_owned(), port },
        (None, Ok(range)) => Matcher::Range { range, port: Some(port) },
        (None, Err(_)) => Matcher::Destination { host: name.to_owned(), port },
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
    // What is covered by a wider destination has a name of its own.
    let names_it = |name: &String| NAMING.contains(&name.as_str()) && !before.members.contains_key(name);
    for name in all.into_iter().filter(|name| !names_it(name)) {
        let (was, is) = (before.members.get(name).unwrap_or(&none), after.members.get(name).unwrap_or(&none));
        // A value that only some rules had may go; one that comes, or a member that goes altogether, is a change.
        if is.is_subset(was) && is.is_empty() == was.is_empty() {
            continue;
        }
        let text = |values: &BTreeSet<String>| format!("{name}: {}", or_none(&join(values)));
        found.add(kind_of(name), shown, "", text(was), text(is));
    }
}

/// Nobody says what a member that this build does not know does to a destination that was not there.
fn unknown(shown: &str, target: &Target, found: &mut Found) {
    for (name, values) in target.members.iter().filter(|(name, _)| kind_of(name) == Kind::UnknownDifference) {
        found.add(Kind::UnknownDifference, shown, "", "(no such pair)", format!("{name}: {}", join(values)));
    }
}

/// The risk that a changed member of a target is.
pub(super) fn kind_of(member: &str) -> Kind {
    match member {
        "tls" | "intercept" => Kind::TlsChanged,
        "via" => Kind::RouteChanged,
        "ca" => Kind::CaChanged,
        "spiffe_id" | "workload" => Kind::IdentityChanged,
        "port_name" | "mode" | "protocol" | "grpc" => Kind::PortChanged,
        // What names the destination, or the list of its other names, which are pairs of their own.
        name if NAMING.contains(&name) => Kind::PortChanged,
        _ => Kind::UnknownDifference,
    }
}
