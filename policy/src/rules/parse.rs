//! Reads the rules file.

use std::collections::{BTreeMap, BTreeSet};

use nova_proto::ids::{RuleId, TenantId};

use super::{
    ExternalCa, Http, Icmp, MAX_RULES, PemLoader, Rule, RuleSet, check, credentials, destination, names, requests,
    source,
};
use crate::report::Report;
use crate::yaml::{self, Map, Node, Reader, Value};

/// Most external CAs of a file.
const MAX_CAS: usize = 64;
/// Keys of the file.
pub(super) const FILE_KEYS: [&str; 3] = ["rules", "external_cas", "credentials"];
/// Keys of an external CA.
pub(super) const CA_KEYS: [&str; 3] = ["name", "pem_file", "pem"];
/// Keys of a rule.
pub(super) const KEYS: [&str; 11] =
    ["id", "tenant", "from", "to", "http", "grpc", "icmp", "credential", "audit", "tls", "upgrade"];

/// Reads the file.
pub(super) fn file(file: &str, text: &str, lab: bool, load: PemLoader<'_>, report: &mut Report) -> RuleSet {
    let mut set = RuleSet { file: file.to_owned(), ..RuleSet::default() };
    let Some(root) = yaml::parse(file, text, report) else { return set };
    let mut reader = Reader { file, subject: String::new(), report };
    let list = match &root.value {
        Value::List(_) => &root,
        _ => {
            let Some(map) = reader.map(&root, "the file", &FILE_KEYS) else { return set };
            if let Some(cas) = map.get("external_cas") {
                set.external_cas = external_cas(&mut reader, cas, load);
            }
            if let Some(list) = map.get("credentials") {
                set.credentials = credentials::read(&mut reader, list);
            }
            let Some(list) = reader.need(&map, "rules", "[]") else { return set };
            list
        }
    };
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for node in reader.list(list, "rules", MAX_RULES) {
        if reader.report.is_full() {
            break;
        }
        reader.subject = String::new();
        let Some(rule) = rule(&mut reader, node) else { continue };
        if let Some(line) = seen.insert(rule.id.to_string(), rule.at.line) {
            reader.fail(rule.at, format!("the id is already used on line {line}"), "give every rule an id of its own");
        }
        check::rule(&mut reader, &rule, &set, lab);
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
    let from = reader.need(&map, "from", "{ workload: x }").and_then(|node| source::read(reader, node));
    let to = reader
        .need(&map, "to", "{ workload: service-a, port: https }")
        .and_then(|node| destination::read(reader, node));
    let asked = Asked::read(reader, &map)?;
    let credential = match map.get("credential") {
        Some(node) => Some(names::name(reader, node, "credential")?),
        None => None,
    };
    let audit = map.get("audit").and_then(|node| reader.flag(node, "audit")).unwrap_or(false);
    let (from, to) = (from?, to?);
    let (tls, intercept) = requests::tls(reader, &map, &to, asked.http.is_some());
    let Asked { http, grpc, icmp, upgrade } = asked;
    let source::From { source: from, cidr, jwt } = from;
    let (id, tenant, at) = (id?, tenant?, map.at);
    Some(Rule { id, tenant, from, cidr, jwt, to, http, grpc, icmp, upgrade, credential, audit, tls, intercept, at })
}

/// What a rule says about requests.
struct Asked {
    http: Option<Http>,
    grpc: bool,
    icmp: Option<Icmp>,
    upgrade: BTreeSet<String>,
}

impl Asked {
    /// `None` when a block cannot be read: a rule must never lose it and become wider.
    fn read(reader: &mut Reader<'_>, map: &Map<'_>) -> Option<Self> {
        let (http, grpc) = match (map.get("http"), map.get("grpc")) {
            (None, None) => (None, false),
            (Some(node), None) => (Some(requests::http(reader, node)?), false),
            (None, Some(node)) => (Some(requests::grpc(reader, node)?), true),
            (Some(_), Some(_)) => {
                reader.fail(map.at, "both http and grpc", "keep one: grpc is http with other words");
                return None;
            }
        };
        let icmp = match map.get("icmp") {
            Some(node) => Some(requests::icmp(reader, node)?),
            None => None,
        };
        let upgrade = match map.get("upgrade") {
            Some(node) => requests::upgrade(reader, node)?,
            None => BTreeSet::new(),
        };
        Some(Self { http, grpc, icmp, upgrade })
    }
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
    let map = reader.map(node, "the external CA", &CA_KEYS)?;
    let name = reader.need(&map, "name", "partner-ca").and_then(|node| names::ca_name(reader, node));
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
    match names::certificates(&pem) {
        Ok(certificates) => Some(ExternalCa { name: name?, certificates, at: map.at }),
        Err(why) => {
            reader.fail(at, why, "give the CA's own certificate in PEM");
            None
        }
    }
}
