//! The manifest of a bundle.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::BundleError;

/// What we read of `.manifest`. OPA's other members stay where they are and mean nothing here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Revision, for people and logs.
    #[serde(default)]
    pub revision: String,
    /// Data paths this bundle owns.
    #[serde(default = "all_roots")]
    pub roots: Vec<String>,
    /// Always 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rego_version: Option<i64>,
    /// Versions of single files; none may differ from 1.
    #[serde(default, skip_serializing)]
    pub file_rego_versions: std::collections::BTreeMap<String, i64>,
    /// Which entry points compiled modules have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wasm: Vec<WasmModule>,
    /// Ours: `serial` and `expires`.
    #[serde(default)]
    pub metadata: Value,
}

/// A compiled module of the bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WasmModule {
    /// The rule, such as `nova/authz/decision`.
    pub entrypoint: String,
    /// The file.
    pub module: String,
}

fn all_roots() -> Vec<String> {
    vec![String::new()]
}

impl Manifest {
    /// Reads the canonical text of a manifest.
    pub(super) fn read(canonical: &str) -> Result<Self, BundleError> {
        let manifest: Self =
            serde_json::from_str(canonical).map_err(|error| BundleError::Manifest(error.to_string()))?;
        let versions = manifest.rego_version.iter().chain(manifest.file_rego_versions.values());
        if let Some(other) = versions.copied().find(|version| *version != 1) {
            return Err(BundleError::RegoVersion(other));
        }
        manifest.check_roots()?;
        for member in ["serial", "expires"] {
            if manifest.metadata.get(member).is_some_and(|value| value.as_u64().is_none()) {
                return Err(BundleError::Manifest(format!("metadata.{member} is not a whole number")));
            }
        }
        Ok(manifest)
    }

    fn check_roots(&self) -> Result<(), BundleError> {
        for (index, root) in self.roots.iter().enumerate() {
            let clash = self.roots[..index].iter().find(|other| covers(root, other) || covers(other, root));
            if let Some(other) = clash {
                return Err(BundleError::Manifest(format!("roots {root:?} and {other:?} overlap")));
            }
        }
        Ok(())
    }

    /// Whether a data path (`a/b`) lies in a root.
    pub(super) fn permits(&self, path: &str) -> bool {
        self.roots.iter().any(|root| covers(root, path))
    }

    /// Whether a root lies below this data path, so that an object there may be only a way to it.
    pub(super) fn leads_to_root(&self, path: &str) -> bool {
        self.roots.iter().any(|root| covers(path, root))
    }

    /// Monotonic serial of the bundle.
    #[must_use]
    pub fn serial(&self) -> Option<u64> {
        self.metadata.get("serial").and_then(Value::as_u64)
    }

    /// When the bundle expires, in Unix seconds.
    #[must_use]
    pub fn expires(&self) -> Option<u64> {
        self.metadata.get("expires").and_then(Value::as_u64)
    }
}

/// Whether `path` is `root` or below it, element by element.
fn covers(root: &str, path: &str) -> bool {
    let root = root.trim_matches('/');
    let path = path.trim_matches('/');
    root.is_empty() || path == root || path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_roots_other_versions_and_odd_serials_are_refused() {
        for (bad, reason) in [
            (r#"{"roots":["a","a/b"]}"#, "bad_manifest"),
            (r#"{"roots":["","a"]}"#, "bad_manifest"),
            (r#"{"roots":["a","a"]}"#, "bad_manifest"),
            (r#"{"roots":"a"}"#, "bad_manifest"),
            (r#"{"rego_version":0}"#, "rego_version"),
            (r#"{"rego_version":1,"file_rego_versions":{"/a.rego":0}}"#, "rego_version"),
            (r#"{"metadata":{"serial":-1}}"#, "bad_manifest"),
            (r#"{"metadata":{"serial":"9"}}"#, "bad_manifest"),
            (r#"{"metadata":{"expires":1.5}}"#, "bad_manifest"),
        ] {
            assert_eq!(Manifest::read(bad).map_err(|error| error.reason()), Err(reason), "{bad}");
        }
        let manifest = Manifest::read(r#"{"roots":["nova"],"metadata":{"serial":7}}"#).expect("valid");
        assert!(manifest.permits("nova/authz") && !manifest.permits("novax") && !manifest.permits(""));
        assert_eq!(manifest.serial(), Some(7));
    }
}
