//! What an app writes where a credential belongs: `nova_credential_<name>`, in letters that no encoding of a header, a URL, a
//! form or JSON changes. The name goes on as far as its letters do.
//!
//! A placeholder is no secret. It is refused wherever it is not replaced, because a call that was meant to carry a credential
//! would only fail elsewhere, and because whoever tries it at other hosts is worth a line in the log.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use memchr::memmem;
use zeroize::Zeroizing;

/// How every placeholder starts.
pub const PREFIX: &str = "nova_credential_";
/// Made once: every field of every request of a guest is searched.
static FINDER: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(PREFIX));

/// The name in the first placeholder of `text`; empty when nothing follows the prefix.
#[must_use]
pub fn first_name(text: &[u8]) -> Option<&str> {
    let start = FINDER.find(text)? + PREFIX.len();
    let is_letter = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    let len = text[start..].iter().take_while(|byte| is_letter(byte)).count();
    std::str::from_utf8(&text[start..start + len]).ok()
}

/// Why a text is not filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unfilled {
    /// A placeholder of another credential than the one that may be here.
    Foreign,
    /// It would be longer than it may become.
    TooLong,
}

/// `text` with every placeholder of `name` replaced by `value`, at most `most` bytes; `None` when there is no placeholder at all.
/// A placeholder is short and a value may be long, so the length is known before there is memory for it.
pub(super) fn replaced(
    text: &[u8],
    name: &str,
    value: &[u8],
    most: usize,
) -> Result<Option<Zeroizing<Vec<u8>>>, Unfilled> {
    let whole = PREFIX.len() + name.len();
    let mut count = 0;
    for at in FINDER.find_iter(text) {
        if first_name(&text[at..]) != Some(name) {
            return Err(Unfilled::Foreign);
        }
        count += 1;
    }
    if count == 0 {
        return Ok(None);
    }
    let length = text.len() - count * whole + count * value.len();
    if length > most {
        return Err(Unfilled::TooLong);
    }
    // One allocation: a buffer that grows would leave copies of the value behind.
    let mut filled = Zeroizing::new(Vec::with_capacity(length));
    let mut rest = text;
    while let Some(at) = FINDER.find(rest) {
        filled.extend_from_slice(&rest[..at]);
        filled.extend_from_slice(value);
        rest = &rest[at + whole..];
    }
    filled.extend_from_slice(rest);
    Ok(Some(filled))
}

/// The placeholder in a head, if there is one: in a field, in Basic credentials, or in the target, escaped or not. The name is
/// that of the first.
#[must_use]
pub fn is_in_head(head: &Parts) -> Option<String> {
    in_headers(&head.headers).or_else(|| {
        let target = head.uri.path_and_query().map_or("", |target| target.as_str());
        found(target.as_bytes()).or_else(|| target.contains('%').then(|| found(&unescaped(target.as_bytes())))?)
    })
}

/// The same of fields alone.
#[must_use]
pub fn in_headers(headers: &HeaderMap) -> Option<String> {
    headers.iter().find_map(|(name, value)| in_field(name, value))
}

fn in_field(name: &HeaderName, value: &HeaderValue) -> Option<String> {
    found(value.as_bytes()).or_else(|| found(&basic(name, value)?))
}

fn found(text: &[u8]) -> Option<String> {
    first_name(text).map(str::to_owned)
}

/// What stands in `Authorization: Basic`, decoded.
pub(super) fn basic(name: &HeaderName, value: &HeaderValue) -> Option<Vec<u8>> {
    let (scheme, encoded) = value.as_bytes().split_at_checked("Basic ".len())?;
    let is_basic = name == header::AUTHORIZATION && scheme.eq_ignore_ascii_case(b"Basic ");
    is_basic.then(|| STANDARD.decode(encoded.trim_ascii()).ok()).flatten()
}

/// Escapes decoded once; what is no escape stays.
pub(super) fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let escape = after.get(..2).filter(|_| byte == b'%').and_then(|digits| hex::decode(digits).ok());
        rest = if escape.is_some() { &after[2..] } else { after };
        bytes.push(escape.map_or(byte, |escape| escape[0]));
    }
    bytes
}

/// Looks for a placeholder in a body that passes in pieces.
#[derive(Debug, Default, Clone)]
pub struct Watch {
    /// The end of what has passed, as far as a placeholder could have begun in it.
    end: Vec<u8>,
}

impl Watch {
    /// Whether the placeholder is in what has passed, with `piece` at its end. The rest of a placeholder may have passed.
    #[must_use]
    pub fn sees(&mut self, piece: &[u8]) -> bool {
        let most = PREFIX.len() - 1;
        let seam = &piece[..piece.len().min(most)];
        self.end.extend_from_slice(seam);
        if FINDER.find(&self.end).is_some() || FINDER.find(piece).is_some() {
            return true;
        }
        if piece.len() > most {
            self.end.clear();
            self.end.extend_from_slice(&piece[piece.len() - most..]);
        } else {
            let surplus = self.end.len().saturating_sub(most);
            self.end.drain(..surplus);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(text: &str) -> Result<Option<String>, Unfilled> {
        replaced(text.as_bytes(), "key", b"S3CRET", 1024)
            .map(|filled| filled.map(|text| String::from_utf8_lossy(&text).into_owned()))
    }

    // covers: D9c (F-EH04)
    #[test]
    fn only_whole_placeholders_of_its_own_name_are_replaced() {
        assert_eq!(all("a nova_credential_key, nova_credential_key"), Ok(Some("a S3CRET, S3CRET".to_owned())));
        assert_eq!(all("nova_credential_key/x"), Ok(Some("S3CRET/x".to_owned())));
        assert_eq!(all("nothing here"), Ok(None));
        for foreign in [
            "nova_credential_",
            "nova_credential_keys",
            "nova_credential_key nova_credential_other",
            "nova_credential_KEY",
        ] {
            assert_eq!(all(foreign), Err(Unfilled::Foreign), "{foreign}");
        }
    }

    // covers: D9c, A12b
    #[test]
    fn what_would_be_longer_than_it_may_become_is_not_filled() {
        let text = "nova_credential_key x ".repeat(100);
        let becomes = 100 * (7 + " x ".len());
        let fill =
            |most| replaced(text.as_bytes(), "key", b"1234567", most).map(|filled| filled.map(|filled| filled.len()));
        assert_eq!(fill(becomes), Ok(Some(becomes)));
        assert_eq!(fill(becomes - 1), Err(Unfilled::TooLong));
        assert_eq!(replaced(b"nothing to fill", "key", b"1234567", 0), Ok(None), "it is as long as it was");
    }

    proptest! {
        // covers: D15c
        #[test]
        fn fuzz_smoke_a_body_is_watched_the_same_however_it_is_cut(
            before in "[nova_credtil ]{0,40}", has in any::<bool>(), after in "[nova_credtil ]{0,40}", cuts in prop::collection::vec(0..80usize, 0..6),
        ) {
            let text = format!("{before}{}{after}", if has { PREFIX } else { "" });
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).chain([0, text.len()]).collect();
            cuts.sort_unstable();
            let mut watch = Watch::default();
            let seen = cuts.windows(2).any(|cut| watch.sees(&text.as_bytes()[cut[0]..cut[1]]));
            prop_assert_eq!(seen, text.contains(PREFIX));
        }

        // covers: D15c
        #[test]
        fn fuzz_smoke_what_is_filled_holds_no_placeholder_and_everything_else(text in "([a-z_ -]|nova_credential_(key)?){0,12}") {
            let once = replaced(text.as_bytes(), "key", b"\x01", 1024);
            if let Ok(Some(filled)) = once {
                let shown = String::from_utf8_lossy(&filled).replace('\u{1}', "nova_credential_key");
                prop_assert_eq!(shown, text);
                prop_assert!(first_name(&filled).is_none());
            }
        }
    }
}
