//! Today's `allowed_callers` maps as rules. They know callee and caller and nothing else, so the rules are as wide: the
//! whole port, no `http` block. Narrowing them is the next step, by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use nova_proto::ids::{PortName, RuleId, SpiffeId, TenantId, WorkloadId};
use serde::Deserialize;
use thiserror::Error;

use crate::rules::MAX_RULES;

/// Callee to its callers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Callers(BTreeMap<String, Vec<String>>);

/// The file is not such a map.
#[derive(Debug, Error)]
#[error("not a map of callees to lists of callers: write {{\"callee\": [\"caller\"]}}")]
pub struct NotCallers(#[from] serde_json::Error);

#[derive(Deserialize)]
#[serde(untagged)]
enum File {
    Wrapped { allowed_callers: BTreeMap<String, Vec<String>> },
    Bare(BTreeMap<String, Vec<String>>),
}

impl Callers {
    /// Reads the map, alone or under `allowed_callers`.
    ///
    /// # Errors
    /// When the text is no such map.
    pub fn from_json(text: &str) -> Result<Self, NotCallers> {
        Ok(match serde_json::from_str(text)? {
            File::Wrapped { allowed_callers } => Self(allowed_callers),
            File::Bare(map) => Self(map),
        })
    }
}

/// The rules, as a rules file: one per pair, in the order of the names.
///
/// # Errors
/// Every name in it that cannot stand in a rule.
pub fn rules_of(callers: &Callers, tenant: &str, port: &str) -> Result<String, Vec<String>> {
    let mut mistakes = Vec::new();
    note(&mut mistakes, TenantId::new(tenant));
    note(&mut mistakes, PortName::new(port));
    let mut pairs = BTreeSet::new();
    for (callee, callers) in &callers.0 {
        let callee = note(&mut mistakes, WorkloadId::new(callee.as_str()));
        for caller in callers {
            let caller = note(&mut mistakes, workload(caller, tenant));
            pairs.extend(callee.clone().zip(caller).map(|(callee, caller)| (callee.to_string(), caller.to_string())));
        }
    }
    if pairs.len() > MAX_RULES {
        mistakes.push(format!("{} pairs, a rules file holds {MAX_RULES}", pairs.len()));
    }
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    Ok(write(&pairs, tenant, port))
}

/// A caller by its id, or by its SPIFFE ID in our layout.
fn workload(caller: &str, tenant: &str) -> Result<WorkloadId, String> {
    let Some(rest) = caller.strip_prefix("spiffe://") else {
        return WorkloadId::new(caller).map_err(|error| error.to_string());
    };
    let id = SpiffeId::new(caller).map_err(|error| error.to_string())?;
    let path = rest.strip_prefix(id.trust_domain()).unwrap_or_default();
    let name = path.strip_prefix(&format!("/t/{tenant}/w/"));
    let name = name.ok_or_else(|| format!("{caller:?} is no workload of tenant {tenant}"))?;
    WorkloadId::new(name).map_err(|error| error.to_string())
}

fn note<T, E: std::fmt::Display>(mistakes: &mut Vec<String>, value: Result<T, E>) -> Option<T> {
    value.map_err(|error| mistakes.push(error.to_string())).ok()
}

fn write(pairs: &BTreeSet<(String, String)>, tenant: &str, port: &str) -> String {
    let mut text = "# Imported from allowed_callers. Every rule opens its whole port: add http blocks.\n".to_owned();
    text += if pairs.is_empty() { "rules: []\n" } else { "rules:\n" };
    let mut used = BTreeSet::new();
    for (index, (callee, caller)) in pairs.iter().enumerate() {
        let wanted = format!("{caller}-to-{callee}");
        // Two long names may not fit into an id, and `a-to` and `b` may spell what `a` and `to-b` do.
        let id = match RuleId::new(wanted.as_str()) {
            Ok(id) if used.insert(wanted) => id.to_string(),
            _ => format!("imported-{index}"),
        };
        let _ = writeln!(
            text,
            "  - {{ id: {id}, tenant: {tenant:?}, from: {{ workload: {caller:?} }}, to: {{ workload: {callee:?}, port: {port:?} }} }}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{CASE_WORKLOADS, data};

    // covers: B1f
    #[test]
    fn names_that_are_no_workloads_are_all_reported() {
        assert!(Callers::from_json("[]").is_err() && Callers::from_json("{\"a\": \"b\"}").is_err());
        let callers = Callers::from_json(r#"{"Service": ["x"], "service-a": ["x y", "spiffe://n/t/u/w/x", "*"]}"#);
        let mistakes = rules_of(&callers.expect("a map"), "t", "https").expect_err("bad names");
        assert_eq!(mistakes.len(), 4, "{mistakes:?}");
    }

    // covers: B1f
    #[test]
    fn a_map_becomes_rules_that_compile_to_the_same_pairs() {
        let map = r#"{"allowed_callers": {"service-a": ["x", "spiffe://n/t/t/w/x", "new"], "new": ["service-a"]}}"#;
        let rules = rules_of(&Callers::from_json(map).expect("a map"), "t", "https").expect("rules");
        let one = data(&rules, CASE_WORKLOADS, "node-1").expect("they compile");
        let peers: Vec<_> = one.ingress["service-a"]["https"].peer.keys().collect();
        assert_eq!(peers, ["spiffe://n/t/t/w/new", "spiffe://n/t/t/w/x"]);
        assert!(one.egress["service-a"].exact.contains_key("new.t.nova:443"));
        assert_eq!(rules.matches("id: ").count(), 3, "{rules}");
    }

    // covers: B1f
    #[test]
    fn ids_stay_unique_whatever_the_names_spell() {
        let long = "a".repeat(60);
        let map = format!(r#"{{"b-to-c": ["a"], "c": ["a-to-b", "{long}"]}}"#);
        let rules = rules_of(&Callers::from_json(&map).expect("a map"), "t", "https").expect("rules");
        assert!(
            rules.contains("id: a-to-b-to-c,")
                && rules.contains("id: imported-1,")
                && rules.contains("id: imported-2,"),
            "{rules}"
        );
    }
}
