//! Looks into a bundle without trusting it.

use std::collections::BTreeMap;

use aws_lc_rs::digest;
use jsonwebtoken::decode_header;
use serde::Serialize;

use super::canonical::Json;
use super::layout::{MANIFEST, SIGNATURES, check_names, is_structured, take_token};
use super::verify::{Claims, Contents, parse_json, read_contents};
use super::{BundleError, Manifest, VerifiedBundle, archive};

/// Reads a bundle without checking who made it: for looking into one by hand, never for serving.
///
/// # Errors
/// When the contents are not in order.
pub fn dangerous_unverified(bundle: &[u8]) -> Result<VerifiedBundle, BundleError> {
    let mut files = archive::unpack(bundle)?;
    check_names(&files)?;
    files.remove(SIGNATURES);
    let mut structured = BTreeMap::new();
    for (name, content) in files.iter().filter(|(name, _)| is_structured(name)) {
        structured.insert(name.clone(), parse_json(name, content)?);
    }
    let Contents { manifest, data, modules, files } = read_contents(files, structured)?;
    let expires = manifest.expires();
    let sha256 = hex::encode(digest::digest(&digest::SHA256, bundle));
    Ok(VerifiedBundle { manifest, data: Json::Object(data), modules, files, key_id: String::new(), expires, sha256 })
}

/// What a bundle says about itself, unverified: for people only.
#[derive(Debug, Clone, Serialize)]
pub struct Inspection {
    /// Manifest.
    pub manifest: Manifest,
    /// Names and sizes.
    pub files: BTreeMap<String, usize>,
    /// Key id of the token.
    pub key_id: Option<String>,
    /// Algorithm of the token.
    pub algorithm: Option<String>,
    /// Scope of the token.
    pub scope: Option<String>,
    /// Expiry of the token, in Unix seconds.
    pub expires: Option<u64>,
    /// Hash of the whole file.
    pub sha256: String,
}

/// Reads a bundle without verifying it.
///
/// # Errors
/// When it is not a bundle at all.
pub fn inspect(bundle: &[u8]) -> Result<Inspection, BundleError> {
    let mut files = archive::unpack(bundle)?;
    let sizes = files.iter().map(|(name, content)| (name.clone(), content.len())).collect();
    let manifest = files.get(MANIFEST).ok_or_else(|| BundleError::Manifest("missing".to_owned()))?;
    let manifest = Manifest::read(&parse_json(MANIFEST, manifest)?.to_canonical())?;
    let token = take_token(&mut files).ok();
    let header = token.as_ref().and_then(|token| decode_header(token).ok());
    let claims = token.and_then(|token| jsonwebtoken::dangerous::insecure_decode::<Claims>(&token).ok());
    let claims = claims.map(|token| token.claims);
    Ok(Inspection {
        manifest,
        files: sizes,
        key_id: header.as_ref().and_then(|header| header.kid.clone()),
        algorithm: header.map(|header| format!("{:?}", header.alg)),
        scope: claims.as_ref().map(|claims| claims.scope.clone()),
        expires: claims.and_then(|claims| claims.exp().ok().flatten()),
        sha256: hex::encode(digest::digest(&digest::SHA256, bundle)),
    })
}
