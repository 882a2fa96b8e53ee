//! Parses the Rego of a bundle with the engine that will run it.

use super::shape::Budget;
use super::{BundleError, Manifest};

/// Parses every module and checks its package against the manifest's roots.
pub(super) fn check(modules: &[(String, String)], manifest: &Manifest) -> Result<(), BundleError> {
    let (mut engine, mut budget) = (regorus::Engine::new(), Budget::default());
    for (name, text) in modules {
        budget.take(text).map_err(|why| BundleError::Module(name.clone(), why.to_owned()))?;
        let package = engine
            .add_policy(name.clone(), text.clone())
            .map_err(|error| BundleError::Module(name.clone(), first_line(&error)))?;
        let path = package.strip_prefix("data.").unwrap_or(&package).replace('.', "/");
        if !manifest.permits(&path) {
            return Err(BundleError::OutsideRoots(format!("package {path} in {name}")));
        }
    }
    Ok(())
}

fn first_line(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    line.chars().take(200).collect()
}
