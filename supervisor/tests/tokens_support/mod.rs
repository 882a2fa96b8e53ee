//! An issuer of tokens: keys, and tokens of every kind.
#![allow(dead_code, reason = "every test binary uses its own part of this module")]

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::signature::KeyPair as _;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use nova_proto::ids::SpiffeId;
use serde_json::{Value, json};

pub(crate) const ISSUER: &str = "https://issuer.test";
pub(crate) const SERVICE_A: &str = "spiffe://nova.test/t/t/w/service-a";

pub(crate) fn service_a() -> SpiffeId {
    SpiffeId::new(SERVICE_A).expect("an ID")
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// A key of the issuer.
pub(crate) struct Key {
    id: String,
    signing: EncodingKey,
    public: Vec<u8>,
    algorithm: Algorithm,
}

impl Key {
    pub(crate) fn ec(id: &str) -> Self {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key");
        let signing = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).expect("PKCS#8");
        let point = rcgen::PublicKeyData::der_bytes(&pair).to_vec();
        Self { id: id.to_owned(), signing, public: point, algorithm: Algorithm::ES256 }
    }

    pub(crate) fn rsa(id: &str) -> Self {
        use aws_lc_rs::encoding::AsDer;
        let pair = aws_lc_rs::rsa::KeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).expect("a key");
        let pkcs8 = pair.as_der().expect("PKCS#8");
        let pem =
            format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(pkcs8.as_ref()));
        let signing = EncodingKey::from_rsa_pem(pem.as_bytes()).expect("PKCS#8");
        Self { id: id.to_owned(), signing, public: pair.public_key().as_ref().to_vec(), algorithm: Algorithm::RS256 }
    }

    /// As a JSON Web Key.
    pub(crate) fn jwk(&self) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        if self.algorithm == Algorithm::ES256 {
            let (x, y) = self.public[1..].split_at(32);
            return json!({"kty": "EC", "crv": "P-256", "kid": self.id, "x": text(x), "y": text(y)});
        }
        // PKCS#1: a sequence of modulus and exponent, here with the lengths of a 2048 bit key.
        let modulus = &self.public[9..9 + 256];
        json!({"kty": "RSA", "kid": self.id, "n": text(modulus), "e": "AQAB"})
    }

    pub(crate) fn public(&self) -> &[u8] {
        &self.public
    }

    pub(crate) fn public_pem(&self) -> String {
        format!("-----BEGIN RSA PUBLIC KEY-----\n{}\n-----END RSA PUBLIC KEY-----\n", STANDARD.encode(&self.public))
    }

    pub(crate) fn header(&self) -> Header {
        Header { kid: Some(self.id.clone()), ..Header::new(self.algorithm) }
    }
}

pub(crate) fn sign(header: &Header, claims: &Value, key: &Key) -> String {
    jsonwebtoken::encode(header, claims, &key.signing).expect("signed")
}

/// Any three parts.
pub(crate) fn compact(header: &Value, claims: &Value, signature: &[u8]) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.{}", part(header), part(claims), URL_SAFE_NO_PAD.encode(signature))
}
