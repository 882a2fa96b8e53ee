//! What the file of a credential may hold.

use std::io;

use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

use crate::sys::SecretBytes;

/// Longest value in bytes: with room for signed tokens, and small beside the 64 KiB of a head.
pub(super) const MAX_VALUE: usize = 16 * 1024;

/// Why a value cannot be used. Never holds a part of it.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    /// The file cannot be read, is no file, or is exposed.
    #[error(transparent)]
    File(#[from] crate::identity::IdentityError),
    /// Nothing in it.
    #[error("the file is empty; write the secret into it")]
    Empty,
    /// Too long.
    #[error("the file has more than {MAX_VALUE} bytes")]
    TooLong,
    /// A line break, a NUL or the like: it would end the header field that it is put into.
    #[error(
        "a line break, another control character or a byte that is not UTF-8 is in it; write the secret alone, in one line \
         (printf %s), or keys of AWS as JSON with access_key_id and secret_access_key"
    )]
    Control,
    /// No memory for it.
    #[error("there is no memory for it")]
    Memory(#[source] io::Error),
}

/// The value of a credential: one line of text, keys of AWS, or JSON that is both.
pub struct Value {
    text: Option<SecretBytes>,
    keys: Option<Keys>,
}

/// What AWS signs with.
pub(super) struct Keys {
    /// Which key; no secret.
    pub(super) id: String,
    pub(super) secret: SecretBytes,
    pub(super) session: Option<SecretBytes>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawKeys {
    access_key_id: String,
    #[serde(deserialize_with = "wiped")]
    secret_access_key: Zeroizing<String>,
    #[serde(default, deserialize_with = "wiped_if_any")]
    session_token: Option<Zeroizing<String>>,
}

/// So that it is wiped as well where what comes after it is a mistake.
fn wiped<'de, D: Deserializer<'de>>(from: D) -> Result<Zeroizing<String>, D::Error> {
    String::deserialize(from).map(Zeroizing::new)
}

fn wiped_if_any<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Zeroizing<String>>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.map(Zeroizing::new))
}

impl Value {
    /// Reads the content of a file. One line feed at the end is not part of the value.
    ///
    /// # Errors
    /// [`ValueError`]
    pub fn parse(file: &[u8]) -> Result<Self, ValueError> {
        if file.len() > MAX_VALUE {
            return Err(ValueError::TooLong);
        }
        let line = file.strip_suffix(b"\n").unwrap_or(file);
        if line.is_empty() {
            return Err(ValueError::Empty);
        }
        let keys = Keys::parse(line)?;
        let text = if is_plain(line) { Some(SecretBytes::new(line).map_err(ValueError::Memory)?) } else { None };
        if text.is_none() && keys.is_none() { Err(ValueError::Control) } else { Ok(Self { text, keys }) }
    }

    /// The text, as it stands in the file.
    pub(super) fn text(&self) -> Option<&[u8]> {
        self.text.as_deref()
    }

    pub(super) fn keys(&self) -> Option<&Keys> {
        self.keys.as_ref()
    }

    pub(super) fn is_locked(&self) -> bool {
        let keys = self.keys.iter().flat_map(|keys| [Some(&keys.secret), keys.session.as_ref()]);
        keys.chain([self.text.as_ref()]).flatten().all(SecretBytes::is_locked)
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        let parts = |keys: &Keys| {
            (
                keys.id.clone(),
                Zeroizing::new(keys.secret.to_vec()),
                keys.session.as_deref().map(|session| Zeroizing::new(session.to_vec())),
            )
        };
        self.text() == other.text() && self.keys.as_ref().map(parts) == other.keys.as_ref().map(parts)
    }
}

impl Keys {
    /// `None`: these are no keys.
    fn parse(text: &[u8]) -> Result<Option<Self>, ValueError> {
        // Anything else is no object, and the parser would make copies of it to say so.
        if !text.trim_ascii_start().starts_with(b"{") {
            return Ok(None);
        }
        // The parser's error would quote what it found.
        let Ok(raw) = serde_json::from_slice::<RawKeys>(text) else { return Ok(None) };
        let secrets = [Some(&raw.secret_access_key), raw.session_token.as_ref()];
        let parts = secrets.into_iter().flatten().map(|secret| secret.as_str()).chain([raw.access_key_id.as_str()]);
        if parts.into_iter().any(|part| part.is_empty() || !is_plain(part.as_bytes())) {
            return Ok(None);
        }
        let secret = |text: &Zeroizing<String>| SecretBytes::new(text.as_bytes()).map_err(ValueError::Memory);
        Ok(Some(Self {
            id: raw.access_key_id,
            secret: secret(&raw.secret_access_key)?,
            session: raw.session_token.as_ref().map(secret).transpose()?,
        }))
    }
}

/// Text that may stand in a header field, a query and a body alike.
fn is_plain(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| !text.chars().any(char::is_control))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(file: &[u8]) -> String {
        Value::parse(file).err().map_or_else(|| "none".to_owned(), |error| error.to_string())
    }

    // covers: D9f (F-EH05)
    #[test]
    fn a_value_that_would_end_its_header_field_is_refused_and_never_quoted() {
        for bad in ["abc\r\nX-Evil: 1", "abc\r", "a\nb", "\n\n", "abc\0", "a\tb", "a\u{7f}", "a\u{85}b"] {
            let said = fault(bad.as_bytes());
            assert!(said.contains("control character"), "{bad:?}: {said}");
            assert!(!said.contains("abc") && !said.contains("Evil"), "{said}");
        }
        assert!(fault(b"a\xff").contains("UTF-8"));
        for empty in [&b""[..], b"\n"] {
            assert!(fault(empty).contains("empty"));
        }
        assert!(fault(&[b'a'; MAX_VALUE + 1]).contains("more than 16384 bytes"));
        let keys = br#"{"access_key_id": "a", "secret_access_key": "hunter2\n", "more": 1}"#;
        assert!(Value::parse(keys).is_ok_and(|value| value.keys.is_none()), "one line of JSON may be any text");
        assert!(!fault(b"{\n\"access_key_id\": \"a\", \"secret_access_key\": 12345}").contains("12345"));
    }

    #[test]
    fn one_line_feed_at_the_end_is_an_editors() {
        assert_eq!(Value::parse(b"s3cr3t\n").ok().as_ref().and_then(Value::text), Some(&b"s3cr3t"[..]));
        let keys = Value::parse(b"{\n \"access_key_id\": \"a\",\n \"secret_access_key\": \"b\"\n}\n").expect("keys");
        assert!(keys.text().is_none() && keys.keys().is_some_and(|keys| keys.id == "a" && keys.session.is_none()));
    }
}
