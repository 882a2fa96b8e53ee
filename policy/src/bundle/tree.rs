//! Joins the data files of a bundle into one tree and checks it against the roots.

use std::collections::BTreeMap;

use super::canonical::Json;
use super::{BundleError, Manifest};

/// Puts the document of `<path>/data.json` at its path.
pub(super) fn graft(root: &mut BTreeMap<String, Json>, path: &[&str], document: Json) -> Result<(), BundleError> {
    let mut wrapped = document;
    for part in path.iter().rev() {
        wrapped = Json::Object(BTreeMap::from([((*part).to_owned(), wrapped)]));
    }
    match wrapped {
        Json::Object(members) => merge(root, members, ""),
        _ => Err(BundleError::Json("data.json".to_owned(), "the document is not an object".to_owned())),
    }
}

fn merge(into: &mut BTreeMap<String, Json>, from: BTreeMap<String, Json>, at: &str) -> Result<(), BundleError> {
    for (name, value) in from {
        let path = format!("{at}/{name}");
        match (into.get_mut(&name), value) {
            (None, value) => {
                into.insert(name, value);
            }
            (Some(Json::Object(old)), Json::Object(new)) => merge(old, new, &path)?,
            (Some(_), _) => return Err(BundleError::DataConflict(path)),
        }
    }
    Ok(())
}

/// Refuses data outside the manifest's roots.
pub(super) fn check_roots(members: &BTreeMap<String, Json>, at: &str, manifest: &Manifest) -> Result<(), BundleError> {
    for (name, value) in members {
        let path = if at.is_empty() { name.clone() } else { format!("{at}/{name}") };
        if manifest.permits(&path) {
            continue;
        }
        match value {
            Json::Object(inner) if manifest.leads_to_root(&path) => check_roots(inner, &path, manifest)?,
            _ => return Err(BundleError::OutsideRoots(path)),
        }
    }
    Ok(())
}
