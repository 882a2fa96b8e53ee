//! Builds and signs a bundle.

use std::collections::BTreeMap;

use aws_lc_rs::digest;
use jsonwebtoken::Header;
use serde::Serialize;
use thiserror::Error;

use super::canonical::Json;
use super::layout::{SIGNATURES, SignedFile, is_structured};
use super::{MAX_COMPRESSED, MAX_ENTRIES, MAX_UNPACKED, SigningKey, archive};

/// Everything in a tar starts at a multiple of this.
const BLOCK: usize = 512;

/// What the token says beside the files.
#[derive(Debug, Clone, Default)]
pub struct Claims<'a> {
    /// Id of the signing key, for the token's header.
    pub key_id: &'a str,
    /// Node the bundle is for; empty for none.
    pub scope: &'a str,
    /// When it was signed, in Unix seconds.
    pub issued_at: u64,
    /// When it expires, in Unix seconds.
    pub expires: Option<u64>,
}

/// Why a bundle cannot be made.
#[derive(Debug, Error)]
pub enum SignError {
    /// A file that must be JSON is not.
    #[error("{0} is not strict JSON: {1}")]
    Json(String, #[source] super::canonical::JsonError),
    /// Every verifier would refuse it.
    #[error(
        "the bundle is larger than {0}, which no node accepts: narrow selectors, or place fewer workloads on the node"
    )]
    TooLarge(&'static str),
    /// The signature could not be made.
    #[error("the bundle could not be signed")]
    Sign(#[source] jsonwebtoken::errors::Error),
    /// Packing failed.
    #[error("the bundle could not be packed")]
    Pack(#[source] std::io::Error),
}

#[derive(Serialize)]
struct Payload<'a> {
    files: Vec<SignedFile>,
    iat: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    exp: Option<u64>,
    #[serde(skip_serializing_if = "str::is_empty")]
    scope: &'a str,
    /// Older verifiers look here and not into the header.
    keyid: &'a str,
}

/// Signs `files` and packs them with the signature into a bundle.
///
/// # Errors
/// When a JSON file is not strict JSON, or signing fails.
pub fn build(files: &BTreeMap<String, Vec<u8>>, key: &SigningKey, claims: &Claims<'_>) -> Result<Vec<u8>, SignError> {
    let mut listed = Vec::new();
    for (name, content) in files {
        let bytes = hashed_bytes(name, content).map_err(|error| SignError::Json(name.clone(), error))?;
        let hash = hex::encode(digest::digest(&digest::SHA256, &bytes));
        listed.push(SignedFile { name: name.clone(), hash, algorithm: "SHA-256".to_owned() });
    }
    let payload = Payload {
        files: listed,
        iat: claims.issued_at,
        exp: claims.expires,
        scope: claims.scope,
        keyid: claims.key_id,
    };
    let mut header = Header::new(key.algorithm);
    header.kid = Some(claims.key_id.to_owned());
    let token = jsonwebtoken::encode(&header, &payload, &key.key).map_err(SignError::Sign)?;
    let mut all = files.clone();
    all.insert(SIGNATURES.to_owned(), serde_json::json!({ "signatures": [token] }).to_string().into_bytes());
    check_size(&all)?;
    let bundle = archive::pack(&all).map_err(SignError::Pack)?;
    if bundle.len() > MAX_COMPRESSED {
        return Err(SignError::TooLarge("16 MiB compressed"));
    }
    Ok(bundle)
}

/// The limits of verifiers, on the archive of these files.
fn check_size(files: &BTreeMap<String, Vec<u8>>) -> Result<(), SignError> {
    let padded = |content: &Vec<u8>| content.len().next_multiple_of(BLOCK) + BLOCK;
    if files.values().map(padded).sum::<usize>() + 2 * BLOCK > MAX_UNPACKED {
        return Err(SignError::TooLarge("64 MiB unpacked"));
    }
    if files.len() > MAX_ENTRIES {
        return Err(SignError::TooLarge("4096 entries"));
    }
    Ok(())
}

/// The bytes whose hash is signed: structured files in canonical form, everything else as it is.
pub(super) fn hashed_bytes(name: &str, content: &[u8]) -> Result<Vec<u8>, super::canonical::JsonError> {
    if is_structured(name) {
        Json::parse(content).map(|json| json.to_canonical().into_bytes())
    } else {
        Ok(content.to_vec())
    }
}
