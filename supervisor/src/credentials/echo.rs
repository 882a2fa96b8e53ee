//! Answers that say a secret back. A destination that repeats a field of its request in a field of its answer would show the app
//! its credential.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use memchr::memmem;
use zeroize::Zeroizing;

use super::{Held, fill};

/// Shorter values stand in answers by chance.
const SHORTEST: usize = 8;

impl Held {
    /// Whether a field says the value, as it is or as it is written in a query or in Basic credentials.
    #[must_use]
    pub fn is_said_by(&self, fields: &HeaderMap) -> bool {
        if fields.is_empty() {
            return false;
        }
        let spellings = self.spellings();
        let finders: Vec<_> = spellings.iter().map(|spelling| memmem::Finder::new(&**spelling)).collect();
        fields.values().any(|field| finders.iter().any(|finder| finder.find(field.as_bytes()).is_some()))
    }

    fn spellings(&self) -> Vec<Zeroizing<Vec<u8>>> {
        let keys = self.value.keys().into_iter();
        let of_keys = keys.flat_map(|keys| [Some(&*keys.secret), keys.session.as_deref()]).flatten();
        let text = self.value.text().filter(|_| self.value.keys().is_none());
        let mut spellings = Vec::new();
        for value in text.into_iter().chain(of_keys).filter(|value| value.len() >= SHORTEST) {
            let escaped = fill::in_query(value);
            if *escaped != value {
                spellings.push(escaped);
            }
            spellings.push(Zeroizing::new(value.to_vec()));
            spellings.push(Zeroizing::new(STANDARD.encode(value).into_bytes()));
        }
        spellings
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn says(file: &str, field: &str) -> bool {
        let fields = HeaderMap::from_iter([
            (http::header::CONTENT_TYPE, HeaderValue::from_static("text/plain")),
            (http::header::LOCATION, HeaderValue::from_str(field).expect("a field")),
        ]);
        Held::parse("key", file.as_bytes()).expect("a value").is_said_by(&fields)
    }

    // covers: D9o
    #[test]
    fn a_value_is_found_in_every_spelling_in_which_it_is_sent() {
        for field in
            ["s3cr3t & more", "Bearer s3cr3t & more", "/v1?key=s3cr3t%20%26%20more&a=b", "Basic czNjcjN0ICYgbW9yZQ=="]
        {
            assert!(says("s3cr3t & more\n", field), "{field}");
        }
        let keys = r#"{"access_key_id": "AKIDEXAMPLE", "secret_access_key": "wJalrXUtn/FEMI", "session_token": "sess-99ab17"}"#;
        assert!(says(keys, "token sess-99ab17") && says(keys, "a wJalrXUtn/FEMI"));
        assert!(!says(keys, "Credential=AKIDEXAMPLE/20150830"), "which key it is, is no secret");
    }

    // covers: D9o
    #[test]
    fn what_is_no_secret_or_too_short_to_be_told_from_chance_passes() {
        for field in ["s3cr3t", "another value", ""] {
            assert!(!says("s3cr3t & more", field), "{field}");
        }
        assert!(!says("short", "in short"));
        assert!(!Held::parse("key", b"s3cr3t & more").expect("a value").is_said_by(&HeaderMap::new()));
    }
}
