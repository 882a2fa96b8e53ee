//! How a value is written in each place.

use std::fmt::Write as _;

use bytes::Bytes;
use http::HeaderValue;
use nova_policy::data::BodyKind;
use zeroize::Zeroizing;

use super::fault::Fault;

/// The value as it stands in a body of this kind.
pub(super) fn in_body(kind: BodyKind, value: &[u8]) -> Zeroizing<Vec<u8>> {
    match kind {
        BodyKind::Text => Zeroizing::new(value.to_vec()),
        BodyKind::Form => in_query(value),
        BodyKind::Json => in_json(value),
    }
}

/// A header value that is never indexed by HPACK, hidden from `Debug`, and wiped when the last of its copies goes.
pub(super) fn secret_value(scheme: &[u8], text: &[u8]) -> Result<HeaderValue, Fault> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(scheme.len() + text.len()));
    bytes.extend_from_slice(scheme);
    bytes.extend_from_slice(text);
    let mut value = HeaderValue::from_maybe_shared(Bytes::from_owner(bytes)).map_err(|_| Fault::Form)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Everything but the unreserved characters of RFC 3986 is escaped.
pub(super) fn in_query(value: &[u8]) -> Zeroizing<Vec<u8>> {
    // Every byte may become three, and a buffer that grows would leave copies behind.
    let mut text = Zeroizing::new(String::with_capacity(value.len() * 3));
    for &byte in value {
        escape(byte, &mut text);
    }
    Zeroizing::new(std::mem::take(&mut *text).into_bytes())
}

pub(super) fn escape(byte: u8, text: &mut String) {
    match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => text.push(char::from(byte)),
        // Writing to a string cannot fail.
        _ => _ = write!(text, "%{byte:02X}"),
    }
}

/// The inside of a JSON string. A value has no control characters, so two need an escape.
fn in_json(value: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut text = Zeroizing::new(Vec::with_capacity(value.len() * 2));
    for &byte in value {
        if matches!(byte, b'"' | b'\\') {
            text.push(b'\\');
        }
        text.push(byte);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: D9c (F-EH05)
    #[test]
    fn a_value_ends_no_string_of_its_place() {
        let value = br#"a"b\c&d=e f%"#;
        let json = String::from_utf8(in_body(BodyKind::Json, value).to_vec()).expect("text");
        let read: String = serde_json::from_str(&format!("\"{json}\"")).expect("one string");
        assert_eq!(read.as_bytes(), value);
        assert_eq!(&**in_body(BodyKind::Form, value), b"a%22b%5Cc%26d%3De%20f%25");
        assert_eq!(&**in_body(BodyKind::Text, value), value);
    }
}
