//! Reads `credentials`: what may be injected, how, and to which hosts. Values are never in a rules file.

use std::collections::{BTreeMap, BTreeSet};

use super::HostPattern;
use super::names::{host_pattern, name};
use crate::data::{BodyKind, CredentialEntry, CredentialForm, Places};
use crate::yaml::{Map, Node, Reader};

/// Keys of a credential.
pub(super) const KEYS: [&str; 9] =
    ["name", "form", "header", "parameter", "body", "region", "service", "hosts", "owner"];
/// Forms of a credential.
pub(super) const FORMS: [&str; 6] = ["header", "bearer", "basic", "query", "sigv4", "placeholder"];
/// Most credentials of a file, and most hosts of a credential.
const MAX_CREDENTIALS: usize = 1_000;
const MAX_HOSTS: usize = 64;
/// Kinds of bodies in which a placeholder may stand.
pub(super) const BODIES: [(&str, BodyKind); 3] =
    [("json", BodyKind::Json), ("form", BodyKind::Form), ("text", BodyKind::Text)];

pub(super) fn read(reader: &mut Reader<'_>, node: &Node) -> BTreeMap<String, CredentialEntry> {
    let mut all = BTreeMap::new();
    for node in reader.list(node, "credentials", MAX_CREDENTIALS) {
        reader.subject = String::new();
        let Some((name, entry)) = credential(reader, node) else { continue };
        if all.contains_key(&name) {
            reader.fail(node.at, format!("credential {name:?} is there twice"), "rename one");
        }
        all.insert(name, entry);
    }
    reader.subject = String::new();
    all
}

fn credential(reader: &mut Reader<'_>, node: &Node) -> Option<(String, CredentialEntry)> {
    let map = reader.any_map(node, "the credential")?;
    let name = reader.need(&map, "name", "stripe-live").and_then(|node| name(reader, node, "the name"));
    if let Some(name) = &name {
        reader.subject = format!("credential {name}");
    }
    let map = reader.map(node, "the credential", &KEYS)?;
    let form = form(reader, &map);
    let hosts = hosts(reader, &map);
    let owner = reader.need(&map, "owner", "security").and_then(|node| super::names::name(reader, node, "the owner"));
    Some((name?, CredentialEntry { form: form?, hosts: hosts?, owner: owner? }))
}

fn form(reader: &mut Reader<'_>, map: &Map<'_>) -> Option<CredentialForm> {
    let node = reader.need(map, "form", "bearer")?;
    let words = FORMS.map(|form| (form, form));
    let form = reader.choice(node, "form", &words)?;
    let own: &[&str] = match form {
        "header" => &["header"],
        "query" => &["parameter"],
        "sigv4" => &["region", "service"],
        "placeholder" => &["header", "parameter", "body"],
        _ => &[],
    };
    for key in ["header", "parameter", "body", "region", "service"] {
        if let Some(node) = map.get(key).filter(|_| !own.contains(&key)) {
            reader.fail(node.at, format!("{key} does not belong to form {form}"), "remove it");
        }
    }
    if form == "placeholder" {
        return places(reader, map, node).map(CredentialForm::Placeholder);
    }
    let mut word = |key: &str, example: &str, parse: fn(&str) -> Result<String, &'static str>| {
        let node = reader.need(map, key, example)?;
        reader.parsed(node, key, "write one plain word", parse)
    };
    Some(match form {
        "header" => CredentialForm::Header { header: word("header", "x-api-key", header)? },
        "query" => CredentialForm::Query { parameter: word("parameter", "key", plain_word)? },
        "sigv4" => CredentialForm::Sigv4 {
            region: word("region", "eu-west-1", plain_word)?,
            service: word("service", "s3", plain_word)?,
        },
        "bearer" => CredentialForm::Bearer,
        _ => CredentialForm::Basic,
    })
}

/// Where a placeholder is replaced: one place at least.
fn places(reader: &mut Reader<'_>, map: &Map<'_>, form: &Node) -> Option<Places> {
    if ["header", "parameter", "body"].iter().all(|key| map.get(key).is_none()) {
        let remedy = "add header: authorization, parameter: key or body: [json]";
        reader.fail(form.at, "the placeholder may stand nowhere", remedy);
        return None;
    }
    let mut places = Places::default();
    if let Some(node) = map.get("header") {
        places.header = Some(reader.parsed(node, "header", "write one plain word", header)?);
    }
    if let Some(node) = map.get("parameter") {
        places.parameter = Some(reader.parsed(node, "parameter", "write one plain word", plain_word)?);
    }
    if let Some(node) = map.get("body") {
        let kinds = reader.list(node, "body", BODIES.len());
        if kinds.is_empty() {
            reader.fail(node.at, "body lists no kind", "write one or more of json, form and text");
        }
        places.body = kinds.iter().map(|kind| reader.choice(kind, "body", &BODIES)).collect::<Option<_>>()?;
    }
    Some(places)
}

fn hosts(reader: &mut Reader<'_>, map: &Map<'_>) -> Option<Vec<String>> {
    let list = reader.need(map, "hosts", "[api.stripe.com]")?;
    let mut all = BTreeSet::new();
    for node in reader.list(list, "hosts", MAX_HOSTS) {
        let exact = |text: &str| match host_pattern(text)? {
            HostPattern::Exact(host) => Ok(host.to_string()),
            HostPattern::Suffix(_) => Err("a wildcard would show the credential to hosts nobody listed".to_owned()),
        };
        all.insert(reader.parsed(node, "host", "write every host that may see it, by its whole name", exact)?);
    }
    if list.value.is_empty_list() {
        reader.fail(list.at, "hosts is empty: the credential can go nowhere", "list the hosts that may see it");
    }
    (!all.is_empty()).then(|| all.into_iter().collect())
}

fn header(text: &str) -> Result<String, &'static str> {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    match (1..=64).contains(&text.len()) && text.bytes().all(good) {
        false => Err("1 to 64 of a-z, 0-9 and '-'"),
        true if !CredentialForm::may_be_header(text) => {
            Err("this field frames or routes messages, or belongs to the supervisor")
        }
        true => Ok(text.to_owned()),
    }
}

fn plain_word(text: &str) -> Result<String, &'static str> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let fits = (1..=64).contains(&text.len()) && text.bytes().all(good);
    if fits { Ok(text.to_owned()) } else { Err("1 to 64 of letters, digits, '-', '_' and '.'") }
}
