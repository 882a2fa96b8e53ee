//! Keys that sign and verify bundles. The algorithm always comes from the key, never from a token.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;
use thiserror::Error;

use super::BundleError;
use super::token::Token;
use crate::files;

/// Largest key file read.
const MAX_KEY_FILE: u64 = 64 * 1024;

/// Verification keys by id: `{kid: [algorithm, PEM]}`.
#[derive(Debug, Clone, Default)]
pub struct VerifyKeys(BTreeMap<String, (String, String)>);

impl VerifyKeys {
    /// Reads the JSON form `{kid: [algorithm, PEM]}`.
    ///
    /// # Errors
    /// When the text is not of that form. Keys themselves are read when they are used.
    pub fn from_json(text: &str) -> Result<Self, KeyError> {
        serde_json::from_str(text).map(Self).map_err(|error| KeyError::Form(error.to_string()))
    }

    /// The JSON form of one key.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(&self.0).unwrap_or_default()
    }

    /// Adds a key, or replaces the one of that id.
    pub fn insert(&mut self, id: impl Into<String>, algorithm: impl Into<String>, pem: impl Into<String>) {
        self.0.insert(id.into(), (algorithm.into(), pem.into()));
    }

    /// Whether there is a key of this id.
    #[must_use]
    pub fn has(&self, id: &str) -> bool {
        self.0.contains_key(id)
    }

    pub(crate) fn get(&self, id: &str) -> Result<(Algorithm, DecodingKey), BundleError> {
        let (algorithm, pem) = self.0.get(id).ok_or_else(|| BundleError::UnknownKey(id.to_owned()))?;
        let (algorithm, key) = match algorithm.as_str() {
            "ES256" => (Algorithm::ES256, DecodingKey::from_ec_pem(pem.as_bytes())),
            "EdDSA" => (Algorithm::EdDSA, DecodingKey::from_ed_pem(pem.as_bytes())),
            "RS256" => (Algorithm::RS256, DecodingKey::from_rsa_pem(pem.as_bytes())),
            other => return Err(BundleError::KeyAlgorithm(id.to_owned(), other.to_owned())),
        };
        Ok((algorithm, key.map_err(|error| BundleError::Key(id.to_owned(), error.to_string()))?))
    }
}

/// A private key that signs bundles.
pub struct SigningKey {
    pub(super) algorithm: Algorithm,
    pub(super) key: EncodingKey,
    /// What its signatures are checked with; RSA keys only sign bundles and need none.
    public: Option<DecodingKey>,
}

/// Why a key cannot be used.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("{path}: cannot be read")]
    Read {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Somebody else could read the key.
    #[error("{path}: others can read this private key (mode {mode:04o}): chmod 600 it and think about replacing it")]
    Mode {
        /// The file.
        path: String,
        /// Its permissions.
        mode: u32,
    },
    /// Not a PKCS#8 key of a kind we use.
    #[error("not a PKCS#8 PEM key for ES256, EdDSA (Ed25519) or RS256")]
    Kind,
    /// Not `{kid: [algorithm, PEM]}`.
    #[error("not of the form {{\"kid\": [\"ES256\", \"-----BEGIN PUBLIC KEY-----...\"]}}: {0}")]
    Form(String),
    /// The key could not be made.
    #[error("the key could not be made")]
    Generate,
}

impl SigningKey {
    /// Reads a PKCS#8 PEM file that only its owner can read.
    ///
    /// # Errors
    /// When the file is readable by others, or is not a key we can sign with.
    pub fn from_file(path: &Path) -> Result<Self, KeyError> {
        let shown = path.display().to_string();
        let read = |source| KeyError::Read { path: shown.clone(), source };
        // Mode and content come from one open file, so that a swap between two opens cannot help anybody.
        let file = files::open(path).map_err(|error| read(error.into()))?;
        let mode = file.metadata().map_err(read)?.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Mode { path: shown, mode });
        }
        Self::from_pem(&files::bounded(file, MAX_KEY_FILE).map_err(|error| read(error.into()))?)
    }

    /// Reads PKCS#8 PEM text.
    ///
    /// # Errors
    /// When it is not a key we can sign with.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        let candidates = [
            (Algorithm::ES256, EncodingKey::from_ec_pem(pem)),
            (Algorithm::EdDSA, EncodingKey::from_ed_pem(pem)),
            (Algorithm::RS256, EncodingKey::from_rsa_pem(pem)),
        ];
        for (algorithm, key) in candidates {
            let Ok(key) = key else { continue };
            // Signing once tells a P-384 key from a P-256 one here and not at publish time.
            if jsonwebtoken::crypto::sign(b"probe", &key, algorithm).is_ok() {
                return Ok(Self { algorithm, key, public: public_of(algorithm, pem) });
            }
        }
        Err(KeyError::Kind)
    }

    /// Signs `message`; the signature in base64url. None when it cannot be made.
    pub(crate) fn sign(&self, message: &[u8]) -> Option<String> {
        jsonwebtoken::crypto::sign(message, &self.key, self.algorithm).ok()
    }

    /// Whether this key signed a bundle. A key that cannot tell counts as the one that did.
    pub(crate) fn made(&self, token: &Token) -> bool {
        self.public.as_ref().is_none_or(|public| token.made_by(public, self.algorithm))
    }

    /// The algorithm's JOSE name.
    #[must_use]
    pub fn algorithm(&self) -> &'static str {
        match self.algorithm {
            Algorithm::ES256 => "ES256",
            Algorithm::EdDSA => "EdDSA",
            _ => "RS256",
        }
    }
}

fn public_of(algorithm: Algorithm, pem: &[u8]) -> Option<DecodingKey> {
    let private = PrivatePkcs8KeyDer::from_pem_slice(pem).ok()?;
    let private = private.secret_pkcs8_der();
    match algorithm {
        Algorithm::ES256 => {
            let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, private).ok()?;
            Some(DecodingKey::from_ec_der(pair.public_key().as_ref()))
        }
        Algorithm::EdDSA => {
            let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(private).ok()?;
            Some(DecodingKey::from_ed_der(pair.public_key().as_ref()))
        }
        _ => None,
    }
}

/// A fresh key pair as PEM texts.
pub struct KeyPair {
    /// Algorithm for the key file of verifiers.
    pub algorithm: &'static str,
    /// PKCS#8 private key.
    pub private_pem: String,
    /// Public key.
    pub public_pem: String,
}

impl KeyPair {
    /// Makes a key for ES256.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn es256() -> Result<Self, KeyError> {
        let fail = |_| KeyError::Generate;
        let private =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).map_err(fail)?;
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, private.as_ref())
            .map_err(|_| KeyError::Generate)?;
        let public = pair.public_key().as_der().map_err(fail)?;
        Ok(Self {
            algorithm: "ES256",
            private_pem: pem("PRIVATE KEY", private.as_ref()),
            public_pem: pem("PUBLIC KEY", public.as_ref()),
        })
    }

    /// Makes an Ed25519 key for EdDSA.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn eddsa() -> Result<Self, KeyError> {
        let fail = |_| KeyError::Generate;
        let pair = Ed25519KeyPair::generate().map_err(fail)?;
        let private = pair.to_pkcs8v1().map_err(fail)?;
        let public = pair.public_key().as_der().map_err(fail)?;
        Ok(Self {
            algorithm: "EdDSA",
            private_pem: pem("PRIVATE KEY", private.as_ref()),
            public_pem: pem("PUBLIC KEY", public.as_ref()),
        })
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut out = format!("-----BEGIN {label}-----\n");
    for (index, char) in text.chars().enumerate() {
        if index > 0 && index % 64 == 0 {
            out.push('\n');
        }
        out.push(char);
    }
    out.push_str(&format!("\n-----END {label}-----\n"));
    out
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    // covers: A5a
    #[test]
    fn a_key_file_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("key.pem");
        std::fs::write(&path, KeyPair::es256().expect("key").private_pem).expect("write");
        for mode in [0o644, 0o640, 0o604, 0o660] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("chmod");
            assert!(matches!(SigningKey::from_file(&path), Err(KeyError::Mode { .. })), "{mode:o}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("chmod");
        assert!(SigningKey::from_file(&path).is_ok_and(|key| key.algorithm() == "ES256"));
    }

    #[test]
    fn fresh_keys_sign_and_other_texts_do_not() {
        let eddsa = KeyPair::eddsa().expect("key");
        assert!(SigningKey::from_pem(eddsa.private_pem.as_bytes()).is_ok_and(|key| key.algorithm() == "EdDSA"));
        assert!(SigningKey::from_pem(eddsa.public_pem.as_bytes()).is_err());
        assert!(SigningKey::from_pem(b"hello").is_err());
        assert!(VerifyKeys::from_json("[]").is_err());
    }
}
