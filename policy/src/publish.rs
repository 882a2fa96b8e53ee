//! From rules and workloads to a signed bundle, in one call.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::bundle::{self, Claims, SignError, SigningKey};
use crate::compile::{self, Options, SourceText, samples};
use crate::data::NodeData;
use crate::engine::VECTORS_FILE;
use crate::report::Report;
use crate::rules::PemLoader;

/// The static Rego of every bundle.
pub const REGO: &str = include_str!("../rego/authz.rego");
/// Its name in a bundle.
const REGO_FILE: &str = "nova/authz.rego";

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
    let expires = how.now.saturating_add(how.expires_in);
    let manifest = serde_json::json!({
        "revision": format!("{}@{}", data.node, how.serial),
        "roots": ["nova"],
        "rego_version": 1,
        "metadata": { "serial": how.serial, "expires": expires, "node": data.node },
    });
    let files = BTreeMap::from([
        (".manifest".to_owned(), serde_json::to_vec(&manifest)?),
        ("data.json".to_owned(), serde_json::to_vec(&serde_json::json!({ "nova": data }))?),
        (REGO_FILE.to_owned(), REGO.as_bytes().to_vec()),
        (VECTORS_FILE.to_owned(), serde_json::to_vec(&samples(data))?),
    ]);
    let claims = Claims { key_id: how.key_id, scope: &data.node, issued_at: how.now, expires: Some(expires) };
    Ok(bundle::build(&files, how.key, &claims)?)
}
