//! Where things are: the workspace, what is built, and programs of this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::report;

/// `cargo`, from the root of the workspace.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var("CARGO").as_deref().unwrap_or("cargo"));
    command.current_dir(root());
    command
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Cargo's target folder, wherever the user put it.
pub(crate) fn target_dir() -> anyhow::Result<PathBuf> {
    let text = report::quiet(cargo().args(["metadata", "--no-deps", "--format-version", "1", "--offline"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&text)?;
    Ok(metadata["target_directory"].as_str().context("cargo metadata names no target folder")?.into())
}

/// A program, where a root shell would find it, or the file of a whole path.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Where downloaded tools are kept, inside the target folder so that `cargo clean` removes them too.
pub(crate) fn cache_dir() -> anyhow::Result<PathBuf> {
    let dir = target_dir()?.join("nova-cache");
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    Ok(dir)
}
