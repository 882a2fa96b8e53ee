//! What an unverified token says of itself: only enough to choose a key. Sans-io, fuzzed.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Fault;

/// Longest token, in bytes; identity providers stop at about the half.
pub const MAX_TOKEN: usize = 8 * 1024;

/// What chooses the key.
#[derive(Debug, PartialEq, Eq)]
pub struct Peeked {
    /// `alg`, as it stands there.
    pub algorithm: String,
    /// `kid`, if any.
    pub key_id: Option<String>,
    /// `iss`, if any.
    pub issuer: Option<String>,
    /// `sub`, if any.
    pub subject: Option<String>,
}

/// What else a header may hold (`jku`, `jwk`, `x5u`, `x5c`) would say which key to believe, and is not ours to follow.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<IgnoredAny>,
    b64: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Claims {
    iss: Option<String>,
    sub: Option<String>,
}

impl Peeked {
    /// Reads a compact JWS.
    ///
    /// # Errors
    /// When it is none, or demands an extension.
    pub fn parse(token: &[u8]) -> Result<Self, Fault> {
        if token.len() > MAX_TOKEN {
            return Err(Fault::Oversized);
        }
        let mut parts = token.split(|byte| *byte == b'.');
        let (Some(header), Some(claims), Some(_signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Fault::Malformed);
        };
        let header: Header = json(header)?;
        if header.crit.is_some() || header.b64.is_some() {
            return Err(Fault::Critical);
        }
        let claims: Claims = json(claims)?;
        Ok(Self { algorithm: header.alg, key_id: header.kid, issuer: claims.iss, subject: claims.sub })
    }
}

fn json<T: for<'de> Deserialize<'de>>(part: &[u8]) -> Result<T, Fault> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| Fault::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| Fault::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(header: &str, claims: &str) -> Vec<u8> {
        format!("{}.{}.c2ln", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims)).into_bytes()
    }

    // covers: C6c
    #[test]
    fn what_is_no_token_and_what_demands_more_than_a_token_is_refused() {
        let good = token(r#"{"alg":"ES256"}"#, "{}");
        for bad in [
            &b""[..],
            b"a",
            b"a.b",
            b"..",
            b"a.b.c.d",
            &good[1..],
            &[&good[..], b"="].concat(),
            &token("[]", "{}"),
            &token(r#"{"alg":7}"#, "{}"),
            &token(r#"{"kid":"a"}"#, "{}"),
            &token(r#"{"alg":"ES256","alg":"none"}"#, "{}"),
            &token(r#"{"alg":"ES256"}"#, r#"{"iss":["a"]}"#),
            &token(r#"{"alg":"ES256"}"#, r#"{"iss":"a","iss":"b"}"#),
        ] {
            let fault = Peeked::parse(bad).map(|peeked| peeked.algorithm);
            let shown = String::from_utf8_lossy(bad).into_owned();
            // A last part with padding is the verifier's to refuse.
            assert!(fault == Err(Fault::Malformed) || shown.ends_with('='), "{shown}: {fault:?}");
        }
        for critical in [r#"{"alg":"ES256","crit":["b64"],"b64":false}"#, r#"{"alg":"ES256","crit":[]}"#] {
            assert_eq!(Peeked::parse(&token(critical, "{}")), Err(Fault::Critical));
        }
        assert_eq!(Peeked::parse(&vec![b'a'; MAX_TOKEN + 1]), Err(Fault::Oversized));
    }

    // covers: C6c
    #[test]
    fn key_urls_and_keys_in_a_header_are_not_read() {
        let header =
            r#"{"alg":"ES256","kid":"../../etc/passwd","jku":"http://169.254.169.254/","x5u":7,"x5c":{},"jwk":[]}"#;
        let peeked = Peeked::parse(&token(header, r#"{"iss":"i","sub":"s"}"#)).expect("readable");
        assert_eq!((peeked.algorithm.as_str(), peeked.key_id.as_deref()), ("ES256", Some("../../etc/passwd")));
        assert_eq!((peeked.issuer.as_deref(), peeked.subject.as_deref()), (Some("i"), Some("s")));
    }
}
