//! The public keys of an issuer, out of a JSON Web Key Set (RFC 7517). Sans-io, fuzzed.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use thiserror::Error;

/// Keys of one set; issuers have one or two at a time.
const MAX_KEYS: usize = 64;
/// Shortest RSA modulus, in characters of base64url: 2048 bits.
const MIN_RSA: usize = 342;

/// Why a set of keys cannot be used.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] crate::bundles::source::ReadError),
    /// Not a set of keys.
    #[error("{what} is no JSON Web Key Set: {problem}; write {{\"keys\": [...]}} with public keys")]
    Form {
        /// Where it comes from.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// Nothing in it can verify a signature.
    #[error("{what} has no key that verifies RS*, PS*, ES* or EdDSA signatures; add the issuer's public signing keys")]
    Empty {
        /// Where it comes from.
        what: String,
    },
}

/// Which keys of a set count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// `use` is absent or `sig`.
    Signatures,
    /// `use` is `jwt-svid`, in a SPIFFE bundle.
    Svids,
}

/// The keys that were found.
#[derive(Default)]
pub struct KeySet(Vec<Key>);

struct Key {
    id: Option<String>,
    algorithms: &'static [Algorithm],
    key: DecodingKey,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<serde_json::Value>,
}

impl KeySet {
    /// Reads the set of an issuer. Keys of other kinds and for other purposes are passed over.
    ///
    /// # Errors
    /// When it is none, or no key in it can be used.
    pub fn parse(what: &str, bytes: &[u8]) -> Result<Self, KeyError> {
        Self::parse_for(what, bytes, Purpose::Signatures)
    }

    pub(super) fn parse_for(what: &str, bytes: &[u8], purpose: Purpose) -> Result<Self, KeyError> {
        let form = |problem: String| KeyError::Form { what: what.to_owned(), problem };
        let document: Document = serde_json::from_slice(bytes).map_err(|error| form(error.to_string()))?;
        if document.keys.len() > MAX_KEYS {
            return Err(form(format!("more than {MAX_KEYS} keys")));
        }
        let found: Vec<Key> = document.keys.into_iter().filter_map(|value| key(value, purpose)).collect();
        if found.is_empty() { Err(KeyError::Empty { what: what.to_owned() }) } else { Ok(Self(found)) }
    }

    /// The key for a token: the one of its id, or, for a token without one, the only one that fits.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        let mut fitting = self.0.iter().filter(|key| key.algorithms.contains(&algorithm));
        match id {
            Some(id) => fitting.find(|key| key.id.as_deref() == Some(id)).map(|key| &key.key),
            None => {
                let (first, more) = (fitting.next()?, fitting.next());
                more.is_none().then_some(&first.key)
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn key(value: serde_json::Value, purpose: Purpose) -> Option<Key> {
    let jwk: Jwk = serde_json::from_value(value).ok()?;
    let wanted = match (&jwk.common.public_key_use, purpose) {
        (None | Some(PublicKeyUse::Signature), Purpose::Signatures) => true,
        (Some(PublicKeyUse::Other(usage)), Purpose::Svids) => usage == "jwt-svid",
        _ => false,
    };
    let algorithms = wanted.then(|| algorithms(&jwk)).flatten()?;
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    Some(Key { id: jwk.common.key_id, algorithms, key })
}

/// What a key of this kind can verify: the one that it says, or all of its family. A shared key verifies nothing here.
fn algorithms(jwk: &Jwk) -> Option<&'static [Algorithm]> {
    let family: &[Algorithm] = match &jwk.algorithm {
        AlgorithmParameters::RSA(key) if key.n.len() >= MIN_RSA => &[
            Algorithm::RS256,
            Algorithm::RS384,
            Algorithm::RS512,
            Algorithm::PS256,
            Algorithm::PS384,
            Algorithm::PS512,
        ],
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => &[Algorithm::ES256],
            EllipticCurve::P384 => &[Algorithm::ES384],
            _ => return None,
        },
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => &[Algorithm::EdDSA],
        _ => return None,
    };
    let Some(said) = &jwk.common.key_algorithm else { return Some(family) };
    let at = family.iter().position(|algorithm| same(*algorithm, *said))?;
    family.get(at..=at)
}

fn same(algorithm: Algorithm, said: KeyAlgorithm) -> bool {
    format!("{algorithm:?}") == format!("{said:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: &str = "WKn-ZIGevcwGIyyrzFoZNBdaq9_TsqzGl96oc0CWuis";
    const Y: &str = "y77t-RvAHRKTsSGdIYUfweuOvwrvDD-Q3Hv5J0fSKbE";

    fn ec(more: &str) -> String {
        format!(r#"{{"kty":"EC","crv":"P-256","x":"{X}","y":"{Y}"{more}}}"#)
    }

    fn set(keys: &[String]) -> Result<KeySet, KeyError> {
        KeySet::parse("keys.json", format!(r#"{{"keys":[{}]}}"#, keys.join(",")).as_bytes())
    }

    // covers: C6a
    #[test]
    fn keys_that_are_shared_short_or_for_something_else_are_passed_over() {
        let useless = [
            r#"{"kty":"oct","k":"c2VjcmV0","kid":"a"}"#.to_owned(),
            r#"{"kty":"RSA","n":"AQAB","e":"AQAB","kid":"a"}"#.to_owned(),
            r#"{"kty":"EC","crv":"secp256k1","x":"AA","y":"AA","kid":"a"}"#.to_owned(),
            r#"{"kty":"future","kid":"a"}"#.to_owned(),
            "7".to_owned(),
            ec(r#","use":"enc","kid":"a""#),
            ec(r#","use":"jwt-svid","kid":"a""#),
            ec(r#","alg":"ES384","kid":"a""#),
            ec(r#","alg":"HS256","kid":"a""#),
        ];
        for key in &useless {
            assert!(matches!(set(std::slice::from_ref(key)), Err(KeyError::Empty { .. })), "{key}");
        }
        let mut all = useless.to_vec();
        all.push(ec(r#","kid":"b""#));
        let found = set(&all).expect("one key");
        assert!(found.find(Some("b"), Algorithm::ES256).is_some());
        assert!(found.find(Some("a"), Algorithm::ES256).is_none());
    }

    // covers: C6a
    #[test]
    fn what_is_no_set_is_refused_with_what_to_do() {
        for bad in ["", "[]", "{}", r#"{"keys":{}}"#, r#"{"keys":[]}"#, "\u{0}"] {
            let error = KeySet::parse("keys.json", bad.as_bytes()).err().expect("refused").to_string();
            assert!(error.contains("keys.json"), "{error}");
        }
        let many = vec![ec(""); MAX_KEYS + 1];
        assert!(matches!(set(&many), Err(KeyError::Form { .. })));
    }

    // covers: C6d
    #[test]
    fn a_key_is_found_by_its_id_and_algorithm_and_never_guessed() {
        let found = set(&[ec(r#","kid":"a""#), ec(r#","kid":"b""#)]).expect("two keys");
        assert!(found.find(Some("a"), Algorithm::ES256).is_some());
        for (id, algorithm) in [
            (Some("c"), Algorithm::ES256),
            (Some("../a"), Algorithm::ES256),
            (Some("a"), Algorithm::RS256),
            (Some("a"), Algorithm::HS256),
            (None, Algorithm::ES256),
        ] {
            assert!(found.find(id, algorithm).is_none(), "{id:?} {algorithm:?}");
        }
        assert!(set(&[ec("")]).expect("one key").find(None, Algorithm::ES256).is_some());
    }
}
