//! Everything that is not a rule: identities, labels and ports of workloads, CAs, definitions of credentials, the layout.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::flat::{Flat, at};
use super::grant::join;
use super::risk::{Found, Kind};
use crate::bundle::canonical::Json;

pub(super) fn compare(live: &Flat, next: &Flat, found: &mut Found) {
    let paths: BTreeSet<_> = live.leaves.keys().chain(next.leaves.keys()).collect();
    for path in paths {
        let (before, after) = (live.leaves.get(path), next.leaves.get(path));
        if before == after {
            continue;
        }
        let parts: Vec<&str> = path.iter().map(String::as_str).collect();
        match parts.as_slice() {
            ["nova", "external_cas", name] => certificates(name, before, after, found),
            ["nova", "workloads", name, member @ ..] => workload(live, next, name, member, (before, after), found),
            ["nova", "credentials", name, ..] => {
                // A definition that nothing names grants nothing, and what names it is a risk of its own.
                let both = [live, next].iter().all(|side| has(side, &["nova", "credentials", name]));
                if both {
                    note(Kind::CredentialDefinition, &parts[2..], before, after, found);
                }
            }
            ["nova", "schema"] => note(Kind::SchemaChanged, &parts, before, after, found),
            ["nova", "trust_domain"] => note(Kind::IdentityChanged, &parts, before, after, found),
            _ => note(Kind::UnknownDifference, &parts, before, after, found),
        }
    }
    identities(live, next, found);
}

fn note(kind: Kind, path: &[&str], before: Option<&Json>, after: Option<&Json>, found: &mut Found) {
    found.difference(kind, &path.join("/"), "", before.map(Json::to_plain), after.map(Json::to_plain));
}

fn workload(
    live: &Flat,
    next: &Flat,
    name: &str,
    member: &[&str],
    (before, after): (Option<&Json>, Option<&Json>),
    found: &mut Found,
) {
    let both = [live, next].iter().all(|side| has(side, &["nova", "workloads", name]));
    let kind = match member {
        // A workload that comes brings all its members, and one that goes takes them: its pairs tell what that means.
        ["tenant" | "spiffe_id"] | ["labels" | "ports", ..] if !both => return,
        ["tenant" | "spiffe_id"] => Kind::IdentityChanged,
        ["labels", ..] => Kind::LabelsChanged,
        // A port that comes or goes has no peers until a pair says so.
        ["ports", port, ..]
            if ![live, next].iter().all(|side| has(side, &["nova", "workloads", name, "ports", port])) =>
        {
            return;
        }
        ["ports", ..] => Kind::PortChanged,
        _ => Kind::UnknownDifference,
    };
    let path: Vec<&str> = std::iter::once(name).chain(member.iter().copied()).collect();
    note(kind, &path, before, after, found);
}

fn has(side: &Flat, prefix: &[&str]) -> bool {
    let prefix = at(prefix);
    side.leaves.range(prefix.clone()..).next().is_some_and(|(path, _)| path.starts_with(&prefix))
}

/// A CA may lose certificates, or go; what it had before it trusts no more than before.
fn certificates(name: &str, before: Option<&Json>, after: Option<&Json>, found: &mut Found) {
    let (was, is) = (fingerprints(before), fingerprints(after));
    if !is.is_subset(&was) {
        let was = if was.is_empty() { "(none)".to_owned() } else { join(was) };
        found.add(Kind::CaChanged, format!("CA {name}"), "", was, join(is));
    }
}

fn fingerprints(side: Option<&Json>) -> BTreeSet<String> {
    let all = match side {
        Some(Json::Array(all)) => all.as_slice(),
        Some(other) => std::slice::from_ref(other),
        None => &[],
    };
    all.iter()
        .map(|item| STANDARD.decode(item.to_plain()).map_or_else(|_| item.to_plain(), |der| super::hash(&der)))
        .collect()
}

/// A new workload has the identity that its tenant and name give it, and nobody else has that.
fn identities(live: &Flat, next: &Flat, found: &mut Found) {
    let domain = next.leaves.get(&at(&["nova", "trust_domain"])).map(Json::to_plain).unwrap_or_default();
    let all = workloads(next);
    let mut owners: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
    for (name, (tenant, id)) in &all {
        owners.entry(id).or_default().push(name);
        let usual = format!("spiffe://{domain}/t/{tenant}/w/{name}");
        if *id != usual && !has(live, &["nova", "workloads", name]) {
            found.add(Kind::IdentityChanged, name.clone(), "", format!("usually {usual}"), id.clone());
        }
    }
    let before = workloads(live);
    for (id, owners) in owners.into_iter().filter(|(_, owners)| owners.len() > 1) {
        if owners.iter().any(|name| before.get(*name).is_none_or(|(_, was)| was != id)) {
            found.add(Kind::IdentityChanged, join(owners), "", "one identity each", id.clone());
        }
    }
}

fn workloads(side: &Flat) -> BTreeMap<String, (String, String)> {
    let mut all: BTreeMap<String, (String, String)> = BTreeMap::new();
    for (path, value) in &side.leaves {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        match path.as_slice() {
            ["nova", "workloads", name, "tenant"] => all.entry((*name).to_owned()).or_default().0 = value.to_plain(),
            ["nova", "workloads", name, "spiffe_id"] => all.entry((*name).to_owned()).or_default().1 = value.to_plain(),
            _ => {}
        }
    }
    all
}
