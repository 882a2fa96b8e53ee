//! Compiled data as a table: lists of rules by pair, what granted rules lead to, and every other value by its path.

use std::collections::{BTreeMap, BTreeSet};

use super::grant::{Grant, Leads};
use super::matcher::Matcher;
use crate::bundle::canonical::Json;

/// Members of a target that name the destination; its other names are pairs of their own.
pub(super) const NAMING: [&str; 5] = ["kind", "host", "cidr", "port", "aliases"];

/// A place in the data.
pub(super) type At = Vec<String>;

/// Everything that two bundles can differ in.
#[derive(Default)]
pub(super) struct Flat {
    pub(super) node: String,
    /// By the place that the rules are for (`egress/x`, `ingress/service-a/https`), then by pair.
    pub(super) scopes: BTreeMap<At, BTreeMap<Key, Pair>>,
    /// By source and destination.
    pub(super) targets: BTreeMap<(String, String), Target>,
    /// By source and rule: every destination that the rule leads to, and what is there.
    leads: BTreeMap<(String, String), BTreeMap<String, Leads>>,
    /// Everything else.
    pub(super) leaves: BTreeMap<At, Json>,
    pub(super) names: Names,
}

/// A pair within its scope: the list it stands in, and what the list's entry says.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) list: At,
    pub(super) entry: String,
}

impl Key {
    /// The destination as `targets` name it.
    fn destination(&self, matcher: &Matcher) -> Option<String> {
        match matcher {
            Matcher::Destination { .. } => Some(self.entry.clone()),
            Matcher::Suffix { suffix, port } => Some(format!("*{suffix}:{port}")),
            Matcher::Range { range, port: Some(port) } => Some(format!("{range}:{port}")),
            _ => None,
        }
    }
}

pub(super) struct Pair {
    pub(super) matcher: Matcher,
    pub(super) rules: Vec<Grant>,
}

/// What the rules of one source and destination lead to: every value that each member has in any of them.
#[derive(Default)]
pub(super) struct Target {
    pub(super) members: BTreeMap<String, BTreeSet<String>>,
    /// Ranges that the name may resolve to.
    pub(super) addresses: Vec<ipnet::IpNet>,
}

/// Names that people know, for what the data knows by address or identity.
#[derive(Default, Clone)]
pub(super) struct Names {
    /// `host:port` to `workload:port name`.
    destinations: BTreeMap<String, String>,
    /// SPIFFE ID to workload.
    identities: BTreeMap<String, String>,
    /// `workload:port name` of ports that carry bytes nobody looks at, or that are looked into.
    http: BTreeMap<String, bool>,
}

impl Names {
    pub(super) fn destination(&self, host_port: &str) -> String {
        self.destinations.get(host_port).cloned().unwrap_or_else(|| host_port.to_owned())
    }

    pub(super) fn identity(&self, id: &str) -> String {
        self.identities.get(id).cloned().unwrap_or_else(|| id.to_owned())
    }

    /// Whether requests on this port are looked into; none when the bundle does not say.
    pub(super) fn is_http(&self, port: &str) -> Option<bool> {
        self.http.get(port).copied()
    }

    /// What either side knows; the second one wins.
    pub(super) fn joined(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.destinations.extend(other.destinations.clone());
        all.identities.extend(other.identities.clone());
        all.http.extend(other.http.clone());
        all
    }
}

/// Flattens the data document of a bundle.
pub(super) fn flatten(data: &Json) -> Flat {
    let mut flat = Flat::default();
    walk(&mut Vec::new(), data, &mut flat);
    if let Some(Json::String(node)) = flat.leaves.remove(&at(&["nova", "node"])) {
        flat.node = node;
    }
    flat.read_names();
    flat.join_leads();
    flat
}

pub(super) fn at(parts: &[&str]) -> At {
    parts.iter().map(|part| (*part).to_owned()).collect()
}

fn walk(path: &mut At, value: &Json, flat: &mut Flat) {
    match value {
        Json::Object(members) => {
            for (name, value) in members {
                path.push(name.clone());
                walk(path, value, flat);
                path.pop();
            }
            // An empty table among rules grants nothing; anywhere else it may mean something.
            let rules = matches!(path.get(1).map(String::as_str), Some("egress" | "ingress" | "targets"));
            if members.is_empty() && !rules && path.len() > 2 {
                flat.leaves.insert(path.clone(), value.clone());
            }
        }
        Json::Array(items) if scope(path).is_some() => list(path, items, flat),
        Json::Array(items) if path.len() == 4 && path[..2] == at(&["nova", "targets"]) => {
            for item in items {
                target(item, flat, path);
            }
        }
        _ => {
            flat.leaves.insert(path.clone(), value.clone());
        }
    }
}

/// Where the rules of a path belong: `nova/egress/<source>` or `nova/ingress/<target>/<port>`, and the rest of the path.
fn scope(path: &[String]) -> Option<(&[String], &[String])> {
    let length = match path {
        [root, table, ..] if root == "nova" && table == "egress" => 3,
        [root, table, ..] if root == "nova" && table == "ingress" => 4,
        _ => return None,
    };
    path.split_at_checked(length)
}

/// A list below a scope: rules of one pair, or entries that each have rules. Anything else is a leaf.
fn list(path: &At, items: &[Json], flat: &mut Flat) {
    let Some((scope, list)) = scope(path) else { return };
    for item in items {
        let Json::Object(members) = item else {
            flat.leaves.insert(path.clone(), Json::Array(items.to_vec()));
            return;
        };
        let (key, matcher, rules) = match members.get("rules") {
            Some(Json::Array(rules)) => {
                let mut entry = members.clone();
                entry.remove("rules");
                let matcher = Matcher::of_entry(scope, list, &entry);
                let key = Key { list: list.to_vec(), entry: Json::Object(entry).to_canonical() };
                (key, matcher, rules.as_slice())
            }
            _ => {
                let (entry, list) = list.split_last().map_or(("", list), |(entry, list)| (entry.as_str(), list));
                let key = Key { list: list.to_vec(), entry: entry.to_owned() };
                (key, Matcher::of_key(scope, list, entry), std::slice::from_ref(item))
            }
        };
        let pairs = flat.scopes.entry(scope.to_vec()).or_default();
        let pair = pairs.entry(key).or_insert_with(|| Pair { matcher, rules: Vec::new() });
        pair.rules.extend(rules.iter().map(|rule| match rule {
            Json::Object(members) => Grant::read(members),
            other => Grant { rest: BTreeMap::from([("?".to_owned(), other.to_canonical())]), ..Grant::default() },
        }));
    }
}

/// One item of `nova/targets/<source>/<rule>`.
fn target(item: &Json, flat: &mut Flat, path: &At) {
    let (Json::Object(members), [_, _, source, rule]) = (item, path.as_slice()) else {
        flat.leaves.insert(path.clone(), item.clone());
        return;
    };
    let text = |name: &str| members.get(name).map(Json::to_plain).unwrap_or_default();
    let destination = match text("kind").as_str() {
        "workload" | "external" => format!("{}:{}", text("host"), text("port")),
        "cidr" => format!("{}:{}", text("cidr"), text("port")),
        _ => item.to_canonical(),
    };
    let mut destinations = vec![destination.clone()];
    if text("kind") == "workload" {
        let port = format!("{}:{}", text("workload"), text("port_name"));
        if let Some(Json::Array(aliases)) = members.get("aliases") {
            destinations.extend(aliases.iter().map(|alias| format!("{}:{}", alias.to_plain(), text("port"))));
        }
        for name in &destinations {
            flat.names.destinations.insert(name.clone(), port.clone());
        }
        flat.names.identities.insert(text("spiffe_id"), text("workload"));
        flat.names.http.insert(port, looks_into(&text("mode"), &text("protocol")));
    }
    let mut leads = Leads::default();
    for (name, value) in members {
        match value {
            Json::Array(ranges) if name == "addresses" => {
                let parsed: Option<Vec<ipnet::IpNet>> =
                    ranges.iter().map(|range| range.to_plain().parse().ok()).collect();
                match parsed {
                    Some(ranges) => leads.addresses = ranges,
                    None => {
                        leads.members.insert(name.clone(), value.to_canonical());
                    }
                }
            }
            _ => {
                leads.members.insert(name.clone(), value.to_plain());
            }
        }
    }
    let target = flat.targets.entry((source.clone(), destination)).or_default();
    target.addresses.extend(&leads.addresses);
    for (name, value) in &leads.members {
        target.members.entry(name.clone()).or_default().insert(value.clone());
    }
    leads.members.retain(|name, _| !NAMING.contains(&name.as_str()));
    leads.addresses.sort();
    let rule = flat.leads.entry((source.clone(), rule.clone())).or_default();
    rule.extend(destinations.into_iter().map(|destination| (destination, leads.clone())));
}

impl Flat {
    /// Tells every rule of a destination what it leads to there.
    fn join_leads(&mut self) {
        for (scope, pairs) in &mut self.scopes {
            let [_, _, source] = scope.as_slice() else { continue };
            for (key, pair) in pairs.iter_mut() {
                let Some(destination) = key.destination(&pair.matcher) else { continue };
                for rule in &mut pair.rules {
                    let known = self.leads.get(&(source.clone(), rule.id.clone()));
                    rule.leads = known.and_then(|all| all.get(&destination)).cloned().unwrap_or_default();
                }
            }
        }
    }

    /// Identities and ports of the node's own workloads.
    fn read_names(&mut self) {
        let mut ports: BTreeMap<(String, String), [String; 2]> = BTreeMap::new();
        for (path, value) in &self.leaves {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            match path.as_slice() {
                ["nova", "workloads", workload, "spiffe_id"] => {
                    self.names.identities.insert(value.to_plain(), (*workload).to_owned());
                }
                ["nova", "workloads", workload, "ports", port, member @ ("mode" | "protocol")] => {
                    let entry = ports.entry(((*workload).to_owned(), (*port).to_owned())).or_default();
                    entry[usize::from(*member == "protocol")] = value.to_plain();
                }
                _ => {}
            }
        }
        for ((workload, port), [mode, protocol]) in ports {
            self.names.http.insert(format!("{workload}:{port}"), looks_into(&mode, &protocol));
        }
    }
}

fn looks_into(mode: &str, protocol: &str) -> bool {
    mode != "tcp" && matches!(protocol, "http" | "grpc")
}
