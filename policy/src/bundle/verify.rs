//! Verifies a bundle. Nothing of it is used before everything about it is checked.

use std::collections::BTreeMap;

use aws_lc_rs::digest;
use jsonwebtoken::{Validation, decode, decode_header, errors::ErrorKind};
use serde::Deserialize;
use serde_json::Number;

use super::canonical::Json;
use super::layout::{MANIFEST, SignedFile, check_names, is_structured, take_token};
use super::{BundleError, Manifest, VerifyKeys, archive, modules, tree};

/// Clocks of signer and node may differ by this much, in seconds.
const CLOCK_SKEW: u64 = 60;

/// What a bundle is checked against.
#[derive(Debug, Clone)]
pub struct VerifyOptions<'a> {
    /// Keys we trust.
    pub keys: &'a VerifyKeys,
    /// The key that must have signed; `None` lets the token choose among `keys`.
    pub key_id: Option<&'a str>,
    /// Node id; the token must carry the same scope.
    pub scope: &'a str,
    /// Now, in Unix seconds.
    pub now: u64,
    /// How long past its expiry a bundle still counts, in seconds. 0 except when a running node keeps what it has.
    pub stale_grace: u64,
    /// The serial that is active: only a greater one is accepted.
    pub newer_than: Option<u64>,
}

/// A bundle that passed every check.
#[derive(Debug, Clone)]
pub struct VerifiedBundle {
    pub(crate) manifest: Manifest,
    pub(crate) data: Json,
    pub(crate) modules: Vec<(String, String)>,
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    pub(super) key_id: String,
    pub(super) expires: Option<u64>,
    pub(super) sha256: String,
}

impl VerifiedBundle {
    /// Its manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Id of the key that signed it.
    #[must_use]
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// When it expires, in Unix seconds: the earlier one of the token's `exp` and the manifest's `metadata.expires`.
    #[must_use]
    pub fn expires(&self) -> Option<u64> {
        self.expires
    }

    /// Hash of the whole file, hex.
    #[must_use]
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The joined data documents in canonical form.
    #[must_use]
    pub fn data_json(&self) -> String {
        self.data.to_canonical()
    }
}

/// Verifies a bundle.
///
/// # Errors
/// See [`BundleError`]; nothing of a refused bundle may be used.
pub fn verify(bundle: &[u8], options: &VerifyOptions<'_>) -> Result<VerifiedBundle, BundleError> {
    let mut files = archive::unpack(bundle)?;
    check_names(&files)?;
    let token = take_token(&mut files)?;
    let (key_id, claims) = check_token(&token, options)?;
    let structured = check_files(&files, &claims.files)?;
    let contents = read_contents(files, structured)?;
    let expires = [claims.exp()?, contents.manifest.expires()].into_iter().flatten().min();
    check_times(expires, claims.nbf()?, options)?;
    if let Some(active) = options.newer_than {
        let got = contents.manifest.serial();
        if got.is_none_or(|serial| serial <= active) {
            return Err(BundleError::OlderSerial { got, active });
        }
    }
    let sha256 = hex::encode(digest::digest(&digest::SHA256, bundle));
    let Contents { manifest, data, modules, files } = contents;
    Ok(VerifiedBundle { manifest, data: Json::Object(data), modules, files, key_id, expires, sha256 })
}

#[derive(Deserialize)]
pub(super) struct Claims {
    files: Vec<SignedFile>,
    #[serde(default)]
    pub(super) scope: String,
    #[serde(default)]
    keyid: String,
    exp: Option<Number>,
    nbf: Option<Number>,
}

impl Claims {
    pub(super) fn exp(&self) -> Result<Option<u64>, BundleError> {
        seconds("exp", self.exp.as_ref())
    }

    fn nbf(&self) -> Result<Option<u64>, BundleError> {
        seconds("nbf", self.nbf.as_ref())
    }
}

/// Times in tokens may have a fraction; it is cut off.
fn seconds(claim: &str, number: Option<&Number>) -> Result<Option<u64>, BundleError> {
    let Some(number) = number else { return Ok(None) };
    let text = number.to_string();
    let whole = text.split('.').next().unwrap_or_default();
    whole.parse().map(Some).map_err(|_| BundleError::Token(format!("{claim} is not a time")))
}

fn check_token(token: &str, options: &VerifyOptions<'_>) -> Result<(String, Claims), BundleError> {
    let bad = |error: jsonwebtoken::errors::Error| BundleError::Token(error.to_string());
    let header = decode_header(token).map_err(bad)?;
    if header.crit.is_some() {
        return Err(BundleError::Token("it has critical headers".to_owned()));
    }
    let key_id = match options.key_id {
        Some(id) => id.to_owned(),
        None => match header.kid {
            Some(id) => id,
            // The claim is read before the signature is checked only to find the key that must check it.
            None => jsonwebtoken::dangerous::insecure_decode::<Claims>(token).map_err(bad)?.claims.keyid,
        },
    };
    let (algorithm, key) = options.keys.get(&key_id)?;
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation.validate_aud = false;
    let claims = decode::<Claims>(token, &key, &validation).map_err(|error| match error.kind() {
        ErrorKind::InvalidAlgorithm => BundleError::AlgorithmMismatch,
        ErrorKind::InvalidSignature => BundleError::Signature(key_id.clone()),
        _ => bad(error),
    })?;
    let claims = claims.claims;
    if claims.scope != options.scope {
        return Err(BundleError::Scope { want: options.scope.to_owned(), got: claims.scope });
    }
    Ok((key_id, claims))
}

/// Checks every file against the signed list and returns the canonical text of the structured ones.
fn check_files(
    files: &BTreeMap<String, Vec<u8>>,
    listed: &[SignedFile],
) -> Result<BTreeMap<String, Json>, BundleError> {
    let mut open: BTreeMap<&str, &SignedFile> = BTreeMap::new();
    for file in listed {
        if open.insert(&file.name, file).is_some() {
            return Err(BundleError::Token(format!("{:?} is listed twice", file.name)));
        }
    }
    let mut structured = BTreeMap::new();
    for (name, content) in files {
        let signed = open.remove(name.as_str()).ok_or_else(|| BundleError::Unlisted(name.clone()))?;
        let algorithm = match signed.algorithm.as_str() {
            "SHA-256" => &digest::SHA256,
            "SHA-384" => &digest::SHA384,
            "SHA-512" => &digest::SHA512,
            other => return Err(BundleError::HashAlgorithm(name.clone(), other.to_owned())),
        };
        let got = if is_structured(name) {
            let json = parse_json(name, content)?;
            let got = digest::digest(algorithm, json.to_canonical().as_bytes());
            structured.insert(name.clone(), json);
            got
        } else {
            digest::digest(algorithm, content)
        };
        if !hex::decode(&signed.hash).is_ok_and(|want| want == got.as_ref()) {
            return Err(BundleError::Digest(name.clone()));
        }
    }
    match open.keys().next() {
        Some(name) => Err(BundleError::Missing((*name).to_owned())),
        None => Ok(structured),
    }
}

pub(super) struct Contents {
    pub(super) manifest: Manifest,
    pub(super) data: BTreeMap<String, Json>,
    pub(super) modules: Vec<(String, String)>,
    pub(super) files: BTreeMap<String, Vec<u8>>,
}

pub(super) fn read_contents(
    files: BTreeMap<String, Vec<u8>>,
    mut structured: BTreeMap<String, Json>,
) -> Result<Contents, BundleError> {
    let manifest = structured.remove(MANIFEST).ok_or_else(|| BundleError::Manifest("missing".to_owned()))?;
    let manifest = Manifest::read(&manifest.to_canonical())?;
    let mut data = BTreeMap::new();
    for (name, document) in structured {
        let mut path: Vec<&str> = name.split('/').collect();
        path.pop();
        tree::graft(&mut data, &path, document)?;
    }
    tree::check_roots(&data, "", &manifest)?;
    let mut texts = Vec::new();
    let mut rest = BTreeMap::new();
    for (name, content) in files {
        if name.ends_with(".rego") {
            let text = String::from_utf8(content)
                .map_err(|_| BundleError::Module(name.clone(), "it is not UTF-8".to_owned()))?;
            texts.push((name, text));
        } else if !is_structured(&name) {
            rest.insert(name, content);
        }
    }
    modules::check(&texts, &manifest)?;
    Ok(Contents { manifest, data, modules: texts, files: rest })
}

fn check_times(expires: Option<u64>, not_before: Option<u64>, options: &VerifyOptions<'_>) -> Result<(), BundleError> {
    if let Some(start) = not_before.filter(|start| *start > options.now.saturating_add(CLOCK_SKEW)) {
        return Err(BundleError::NotYetValid(start));
    }
    match expires.filter(|end| options.now >= end.saturating_add(options.stale_grace)) {
        Some(end) => Err(BundleError::Expired(end)),
        None => Ok(()),
    }
}

pub(super) fn parse_json(name: &str, content: &[u8]) -> Result<Json, BundleError> {
    Json::parse(content).map_err(|error| BundleError::Json(name.to_owned(), error.to_string()))
}
