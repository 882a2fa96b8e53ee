//! The subject of a certificate as text.

use x509_parser::asn1_rs::{Tag, ToDer};
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::x509::{AttributeTypeAndValue, RelativeDistinguishedName, X509Name};

/// Longest common name that means anything, in bytes.
const MAX_COMMON_NAME: usize = 256;
/// Longest text of a subject in bytes: it is a part of every request's head.
const MAX_SUBJECT: usize = 2048;

/// The common name, if there is exactly one and it is plain text.
pub(super) fn common_name(name: &X509Name<'_>) -> Option<String> {
    let mut all = name.iter_common_name();
    let text = all.next()?.as_str().ok()?;
    let plain = !text.is_empty() && text.len() <= MAX_COMMON_NAME && !text.chars().any(char::is_control);
    (plain && all.next().is_none()).then(|| text.to_owned())
}

/// As RFC 4514 writes it, in ASCII, the last part first; `None` when that is longer than apps should have to read.
pub(super) fn text(name: &X509Name<'_>) -> Option<String> {
    let relative = |relative: &RelativeDistinguishedName<'_>| {
        relative.iter().map(attribute).collect::<Option<Vec<_>>>().map(|all| all.join("+"))
    };
    let mut parts = name.iter_rdn().map(relative).collect::<Option<Vec<_>>>()?;
    parts.reverse();
    Some(parts.join(",")).filter(|text| text.len() <= MAX_SUBJECT)
}

/// A value that is no text, or that is of a type without a short name, is written as its DER. `None`: it has none.
fn attribute(attribute: &AttributeTypeAndValue<'_>) -> Option<String> {
    let value = attribute.attr_value();
    let der = || value.to_der_vec().ok().map(|der| format!("#{}", hex::encode(der)));
    let Ok(kind) = oid2abbrev(attribute.attr_type(), oid_registry()) else {
        return Some(format!("{}={}", attribute.attr_type(), der()?));
    };
    let text = match value.tag() {
        Tag::BmpString => utf16(value.data),
        _ => attribute.as_str().ok().map(str::to_owned),
    };
    Some(format!("{kind}={}", text.map_or_else(der, |text| Some(escaped(&text)))?))
}

fn utf16(bytes: &[u8]) -> Option<String> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let units: Vec<u16> = pairs.iter().map(|pair| u16::from_be_bytes(*pair)).collect();
    String::from_utf16(&units).ok().filter(|_| rest.is_empty())
}

/// Letters that mean something stand behind a backslash, and whatever is not printable ASCII as the bytes of its UTF-8.
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for (at, byte) in value.bytes().enumerate() {
        let is_at_an_end = at == 0 || at + 1 == value.len();
        match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => text.extend(['\\', char::from(byte)]),
            b' ' if is_at_an_end => text.push_str("\\ "),
            b'#' if at == 0 => text.push_str("\\#"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use x509_parser::prelude::FromDer;

    use super::*;

    /// One part: the type's OID in DER without its head, the tag of the value, its bytes.
    type Part<'a> = (&'a [u8], u8, &'a [u8]);

    const CN: &[u8] = &[0x55, 4, 3];
    const O: &[u8] = &[0x55, 4, 10];

    fn wrapped(tag: u8, inner: &[u8]) -> Vec<u8> {
        let length = u16::try_from(inner.len()).expect("short").to_be_bytes();
        let head: &[u8] = if inner.len() < 128 { &[tag, length[1]] } else { &[tag, 0x82, length[0], length[1]] };
        [head, inner].concat()
    }

    fn subject(relatives: &[&[Part<'_>]]) -> Option<String> {
        let one = |(oid, tag, value): &Part<'_>| wrapped(0x30, &[wrapped(6, oid), wrapped(*tag, value)].concat());
        let relative = |parts: &&[Part<'_>]| wrapped(0x31, &parts.iter().flat_map(one).collect::<Vec<_>>());
        let der = wrapped(0x30, &relatives.iter().flat_map(relative).collect::<Vec<_>>());
        text(&X509Name::from_der(&der).expect("a name").1)
    }

    fn cn(tag: u8, value: &[u8]) -> String {
        subject(&[&[(CN, tag, value)]]).expect("a subject")
    }

    // covers: C2g
    #[test]
    fn a_subject_is_written_as_rfc_4514_says_whatever_its_letters_are() {
        assert_eq!(cn(0x0c, "Zo\u{eb} \u{1f600}".as_bytes()), r"CN=Zo\C3\AB \F0\9F\98\80");
        assert_eq!(cn(0x0c, b"a\r\nb\0\x7f"), r"CN=a\0D\0Ab\00\7F");
        assert_eq!(cn(0x0c, br#" #,+"\<>;= "#), r#"CN=\ #\,\+\"\\\<\>\;=\ "#);
        assert_eq!(cn(0x0c, b"#"), r"CN=\#");
        assert_eq!(cn(0x0c, b" "), r"CN=\ ");
        assert_eq!(cn(0x13, b"plain"), "CN=plain");
        // UTF-16, and Latin letters that nobody can be sure of.
        assert_eq!(cn(0x1e, &[0, b'Z', 0, 0xeb]), r"CN=Z\C3\AB");
        assert_eq!(cn(0x1e, &[0xd8, 0]), "CN=#1e02d800");
        assert_eq!(cn(0x14, &[b'Z', 0xeb]), "CN=#14025aeb");
        assert_eq!(cn(0x04, &[1, 2]), "CN=#04020102");
    }

    // covers: C2g
    #[test]
    fn parts_come_in_reverse_and_types_without_a_name_as_numbers() {
        let private: &[u8] = &[0x2b, 6, 1, 4, 1, 0x84, 0x59, 1];
        let all = subject(&[&[(O, 0x0c, b"Partner")], &[(CN, 0x0c, b"gw"), (private, 0x0c, b"x")]]);
        assert_eq!(all.as_deref(), Some("CN=gw+1.3.6.1.4.1.601.1=#0c0178,O=Partner"));
        assert_eq!(subject(&[]).as_deref(), Some(""));
        assert_eq!(subject(&[&[(CN, 0x0c, &[b'x'; 3000])]]), None);
    }
}
