//! Which files a bundle has, and what their names mean. Signer, verifier and the printed inspection agree on this.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::BundleError;
use super::canonical::Json;

/// The signature file of a bundle.
pub(super) const SIGNATURES: &str = ".signatures.json";
/// The manifest of a bundle.
pub(super) const MANIFEST: &str = ".manifest";

/// One line of the signed file list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SignedFile {
    pub(super) name: String,
    pub(super) hash: String,
    #[serde(default)]
    pub(super) algorithm: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignaturesFile {
    signatures: Vec<String>,
    #[serde(default)]
    plugin: String,
}

/// Refuses what would make OPA treat the bundle as something else than a snapshot with one signature file.
pub(super) fn check_names(files: &BTreeMap<String, Vec<u8>>) -> Result<(), BundleError> {
    for name in files.keys() {
        let base = base_name(name);
        if base == "patch.json" {
            return Err(BundleError::Delta(name.clone()));
        }
        if base.ends_with("signatures.json") && name != SIGNATURES {
            return Err(BundleError::SignaturesFile(format!("{name:?} looks like a second signature file")));
        }
        if base == MANIFEST && name != MANIFEST {
            return Err(BundleError::Manifest(format!("{name:?} looks like a second manifest")));
        }
        if base == "data.yaml" || base == "data.yml" {
            return Err(BundleError::UnsupportedFile(name.clone()));
        }
    }
    Ok(())
}

/// Takes the one token out of the signature file.
pub(super) fn take_token(files: &mut BTreeMap<String, Vec<u8>>) -> Result<String, BundleError> {
    let content = files.remove(SIGNATURES).ok_or(BundleError::Unsigned)?;
    let bad = |why: String| BundleError::SignaturesFile(why);
    let json = Json::parse(&content).map_err(|error| bad(error.to_string()))?;
    let file: SignaturesFile = serde_json::from_str(&json.to_canonical()).map_err(|error| bad(error.to_string()))?;
    // "_default" is what `opa sign` writes for its own verifier.
    if !matches!(file.plugin.as_str(), "" | "_default") {
        return Err(bad("signature plugins are not supported".to_owned()));
    }
    match <[String; 1]>::try_from(file.signatures) {
        Ok([token]) => Ok(token),
        Err(all) => Err(bad(format!("expected exactly one signature, found {}", all.len()))),
    }
}

/// Files that OPA parses before it hashes them. YAML data is structured for OPA too; we refuse it altogether.
pub(super) fn is_structured(name: &str) -> bool {
    matches!(base_name(name), "data.json" | ".manifest")
}

fn base_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}
