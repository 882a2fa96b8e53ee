//! The subject of a certificate as text.

use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::x509::X509Name;

/// Longest common name that means anything, in bytes.
const MAX_COMMON_NAME: usize = 256;

/// The common name, if there is exactly one and it is plain text.
pub(super) fn common_name(name: &X509Name<'_>) -> Option<String> {
    let mut all = name.iter_common_name();
    let text = all.next()?.as_str().ok()?;
    let plain = !text.is_empty() && text.len() <= MAX_COMMON_NAME && !text.chars().any(char::is_control);
    (plain && all.next().is_none()).then(|| text.to_owned())
}

/// As RFC 4514 writes it, the last part first; `None` for what is not printable ASCII, or has a type without a short name.
pub(super) fn text(name: &X509Name<'_>) -> Option<String> {
    let mut parts = Vec::new();
    for relative in name.iter_rdn() {
        let mut attributes = Vec::new();
        for attribute in relative.iter() {
            let kind = oid2abbrev(attribute.attr_type(), oid_registry()).ok()?;
            attributes.push(format!("{kind}={}", escaped(attribute.as_str().ok()?)?));
        }
        parts.push(attributes.join("+"));
    }
    parts.reverse();
    Some(parts.join(","))
}

fn escaped(value: &str) -> Option<String> {
    if !value.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return None;
    }
    let mut text = String::with_capacity(value.len());
    for (at, letter) in value.char_indices() {
        let at_an_end = at == 0 || at + 1 == value.len();
        if matches!(letter, ',' | '+' | '"' | '\\' | '<' | '>' | ';')
            || (at_an_end && letter == ' ')
            || (at == 0 && letter == '#')
        {
            text.push('\\');
        }
        text.push(letter);
    }
    Some(text)
}
