//! Reads `credentials`: what may be injected, how, and to which hosts. Values are never in a rules file.

use std::collections::{BTreeMap, BTreeSet};

use super::HostPattern;
use super::names::{host_pattern, name};
use crate::data::{CredentialEntry, CredentialForm};
use crate::yaml::{Map, Node, Reader};

/// Keys of a credential.
pub(super) const KEYS: [&str; 8] = ["name", "form", "header", "parameter", "region", "service", "hosts", "owner"];
/// Forms of a credential.
pub(super) const FORMS: [&str; 6] = ["header", "bearer", "basic", "query", "sigv4", "placeholder"];
/// Most credentials of a file, and most hosts of a credential.
const MAX_CREDENTIALS: usize = 1_000;
const MAX_HOSTS: usize = 64;
/// Fields that frame or route a message: a credential in one of them would change what the message is.
const REFUSED_HEADERS: [&str; 14] = [
    "connection",
    "content-length",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

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
        _ => &[],
    };
    for key in ["header", "parameter", "region", "service"] {
        if let Some(node) = map.get(key).filter(|_| !own.contains(&key)) {
            reader.fail(node.at, format!("{key} does not belong to form {form}"), "remove it");
        }
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
        "basic" => CredentialForm::Basic,
        _ => CredentialForm::Placeholder,
    })
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
    if all.is_empty() {
        reader.fail(list.at, "hosts is empty: the credential can go nowhere", "list the hosts that may see it");
        return None;
    }
    Some(all.into_iter().collect())
}

fn header(text: &str) -> Result<String, &'static str> {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    match (1..=64).contains(&text.len()) && text.bytes().all(good) {
        false => Err("1 to 64 of a-z, 0-9 and '-'"),
        true if REFUSED_HEADERS.contains(&text) || text.starts_with("x-nova-") => {
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
