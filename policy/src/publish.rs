//! From rules and workloads to a signed bundle, in one call.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::bundle::{self, Claims, SignError, SigningKey};
use crate::compile::{self, Options, SourceText, samples};
use crate::data::NodeData;
use crate::engine::{VECTORS_FILE, WASM_ENTRY_POINT, WASM_FILE};
use crate::report::Report;
use crate::rules::PemLoader;

/// The static Rego of every bundle.
pub const REGO: &str = include_str!("../rego/authz.rego");
/// The same Rego, compiled by OPA: `cargo xtask policy-wasm`.
pub const WASM: &[u8] = include_bytes!("../rego/policy.wasm");
/// Its name in a bundle.
const REGO_FILE: &str = "nova/authz.rego";

/// What the nodes decide with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Evaluation {
    /// The Rego itself, in regorus. All threads share the data.
    #[default]
    Rego,
    /// What OPA compiled it to. Faster and steadier; every thread holds its own copy of the data.
    Wasm,
}

/// Whether a file of this name has a meaning in a bundle.
#[must_use]
pub fn is_part_of_bundle(name: &str) -> bool {
    let base = name.rsplit('/').next().unwrap_or(name);
    let ours = [".manifest", ".signatures.json", VECTORS_FILE, WASM_FILE];
    ours.contains(&name) || base == "data.json" || base.ends_with(".rego")
}

/// How to sign a bundle.
pub struct Publish<'a> {
    /// The key.
    pub key: &'a SigningKey,
    /// Its id at the verifiers.
    pub key_id: &'a str,
    /// Greater than that of every bundle published before.
    pub serial: u64,
    /// Now, in Unix seconds.
    pub now: u64,
    /// How long the bundle is good, in seconds.
    pub expires_in: u64,
}

/// Why nothing was published.
#[derive(Debug, Error)]
pub enum PublishError {
    /// The files have mistakes.
    #[error("{0}")]
    Mistakes(Report),
    /// Building or signing failed.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// The data could not be written as JSON.
    #[error("the data could not be written as JSON")]
    Json(#[from] serde_json::Error),
}

/// Compiles, bundles and signs.
///
/// # Errors
/// The mistakes of the files, or a failure to sign.
pub fn publish(
    rules: SourceText<'_>,
    workloads: SourceText<'_>,
    options: &Options,
    load: PemLoader<'_>,
    how: &Publish<'_>,
) -> Result<Vec<u8>, PublishError> {
    let data = compile::compile_texts(rules, workloads, options, load).map_err(PublishError::Mistakes)?;
    bundle_of(&data, how)
}

/// Bundles and signs compiled data. The scope of the bundle is the data's node.
///
/// # Errors
/// When signing fails.
pub fn bundle_of(data: &NodeData, how: &Publish<'_>) -> Result<Vec<u8>, PublishError> {
    bundle_for(data, Evaluation::default(), how)
}

/// Bundles and signs compiled data for a chosen way to evaluate it.
///
/// # Errors
/// When signing fails.
pub fn bundle_for(data: &NodeData, evaluation: Evaluation, how: &Publish<'_>) -> Result<Vec<u8>, PublishError> {
    let expires = how.now.saturating_add(how.expires_in);
    let mut manifest = serde_json::json!({
        "revision": format!("{}@{}", data.node, how.serial),
        "roots": ["nova"],
        "rego_version": 1,
        "metadata": { "serial": how.serial, "expires": expires, "node": data.node },
    });
    let mut files = BTreeMap::from([
        ("data.json".to_owned(), serde_json::to_vec(&serde_json::json!({ "nova": data }))?),
        (REGO_FILE.to_owned(), REGO.as_bytes().to_vec()),
        (VECTORS_FILE.to_owned(), serde_json::to_vec(&samples(data))?),
    ]);
    if evaluation == Evaluation::Wasm {
        // Named exactly as the entry of the archive: OPA compares the two as texts.
        manifest["wasm"] = serde_json::json!([{ "entrypoint": WASM_ENTRY_POINT, "module": WASM_FILE }]);
        files.insert(WASM_FILE.to_owned(), WASM.to_vec());
    }
    files.insert(".manifest".to_owned(), serde_json::to_vec(&manifest)?);
    let claims = Claims { key_id: how.key_id, scope: &data.node, issued_at: how.now, expires: Some(expires) };
    Ok(bundle::build(&files, how.key, &claims)?)
}
