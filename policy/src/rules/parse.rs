//! Reads the rules file.

use std::collections::BTreeMap;

use nova_proto::ids::{RuleId, TenantId};

use super::{ExternalCa, MAX_RULES, PemLoader, Rule, RuleSet, check, parts};
use crate::report::Report;
use crate::yaml::{self, Node, Reader, Value};

/// Most external CAs of a file.
const MAX_CAS: usize = 64;
/// Keys of a rule.
const KEYS: [&str; 8] = ["id", "tenant", "from", "to", "http", "credential", "audit", "tls"];

/// Reads the file.
pub(super) fn file(file: &str, text: &str, lab: bool, load: PemLoader<'_>, report: &mut Report) -> RuleSet {
    let mut set = RuleSet { file: file.to_owned(), ..RuleSet::default() };
    let Some(root) = yaml::parse(file, text, report) else { return set };
    let mut reader = Reader { file, subject: String::new(), report };
    let list = match &root.value {
        Value::List(_) => &root,
        _ => {
            let Some(map) = reader.map(&root, "the file", &["rules", "external_cas"]) else { return set };
            if let Some(cas) = map.get("external_cas") {
                set.external_cas = external_cas(&mut reader, cas, load);
            }
            let Some(list) = reader.need(&map, "rules", "[]") else { return set };
            list
        }
    };
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for node in reader.list(list, "rules", MAX_RULES) {
        reader.subject = String::new();
        let Some(rule) = rule(&mut reader, node) else { continue };
        if let Some(line) = seen.insert(rule.id.to_string(), rule.at.line) {
            reader.fail(rule.at, format!("the id is already used on line {line}"), "give every rule an id of its own");
        }
        check::rule(&mut reader, &rule, &set.external_cas, lab);
        set.rules.push(rule);
    }
    set
}

fn rule(reader: &mut Reader<'_>, node: &Node) -> Option<Rule> {
    let map = reader.any_map(node, "the rule")?;
    // The id first, so that every later message can name the rule.
    let id = reader
        .need(&map, "id", "x-to-a")
        .and_then(|node| reader.parsed(node, "id", "use 1 to 63 of a-z, 0-9 and '-'", |text| RuleId::new(text)));
    if let Some(id) = &id {
        reader.subject = format!("rule {id}");
    }
    let map = reader.map(node, "the rule", &KEYS)?;
    let tenant = reader
        .need(&map, "tenant", "t")
        .and_then(|node| reader.parsed(node, "tenant", "rename it", |text| TenantId::new(text)));
    let from = reader.need(&map, "from", "{ workload: x }").and_then(|node| parts::source(reader, node));
    let to = reader
        .need(&map, "to", "{ workload: service-a, port: https }")
        .and_then(|node| parts::destination(reader, node));
    let http = match map.get("http") {
        Some(node) => Some(parts::http(reader, node)?),
        None => None,
    };
    let credential = map.get("credential").and_then(|node| parts::name(reader, node, "credential"));
    let audit = map.get("audit").and_then(|node| reader.flag(node, "audit")).unwrap_or(false);
    let to = to?;
    let tls = parts::tls(reader, &map, &to, http.is_some());
    Some(Rule { id: id?, tenant: tenant?, from: from?, to, http, credential, audit, tls, at: map.at })
}

fn external_cas(reader: &mut Reader<'_>, node: &Node, load: PemLoader<'_>) -> Vec<ExternalCa> {
    let mut all: Vec<ExternalCa> = Vec::new();
    for node in reader.list(node, "external_cas", MAX_CAS) {
        let Some(ca) = external_ca(reader, node, load) else { continue };
        if all.iter().any(|other| other.name == ca.name) {
            reader.fail(ca.at, format!("external CA {:?} is there twice", ca.name), "rename one");
        }
        all.push(ca);
    }
    all
}

fn external_ca(reader: &mut Reader<'_>, node: &Node, load: PemLoader<'_>) -> Option<ExternalCa> {
    let map = reader.map(node, "the external CA", &["name", "pem_file", "pem"])?;
    let name = reader.need(&map, "name", "partner-ca").and_then(|node| parts::ca_name(reader, node));
    let (at, pem) = match (map.get("pem_file"), map.get("pem")) {
        (Some(node), None) => {
            let file = reader.text(node, "pem_file", 4096)?;
            match load(file) {
                Ok(pem) => (node.at, pem),
                Err(error) => {
                    reader.fail(node.at, format!("{file}: {error}"), "name a readable PEM file, relative to the rules");
                    return None;
                }
            }
        }
        (None, Some(node)) => (node.at, reader.text(node, "pem", 256 * 1024)?.as_bytes().to_vec()),
        _ => {
            reader.fail(map.at, "an external CA needs pem_file or pem", "add `pem_file: partner.pem`");
            return None;
        }
    };
    match parts::certificates(&pem) {
        Ok(certificates) => Some(ExternalCa { name: name?, certificates, at: map.at }),
        Err(why) => {
            reader.fail(at, why, "give the CA's own certificate in PEM");
            None
        }
    }
}
