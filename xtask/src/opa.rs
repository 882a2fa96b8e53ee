//! The real OPA: built once by Go into the cache, then used from there without a network.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;

use crate::{report, setup, stage};

/// The version that compiles our Rego and that the tests compare with.
pub(crate) const VERSION: &str = "1.22.3";
const MODULE: &str = "github.com/open-policy-agent/opa";

/// Where it is, if it is there. The tests look at the same place.
pub(crate) fn find() -> Option<PathBuf> {
    let cached = path().ok()?;
    cached.is_file().then_some(cached)
}

/// Builds it if it is missing.
pub(crate) fn install() -> anyhow::Result<PathBuf> {
    if let Some(found) = find() {
        return Ok(found);
    }
    let path = path()?;
    let dir = path.parent().context("no cache folder")?;
    std::fs::create_dir_all(dir)?;
    let go = setup::find("go").or_else(|| Some(PathBuf::from("/usr/local/go/bin/go")).filter(|go| go.is_file()));
    let go =
        go.with_context(|| format!("no Go to build OPA with; install Go, or put opa {VERSION} at {}", path.display()))?;
    let mut install = Command::new(go);
    install.arg("install").arg(format!("{MODULE}@v{VERSION}")).env("GOBIN", dir);
    report::command(&format!("building opa {VERSION} (once, a few minutes)"), &mut install)?;
    Ok(path)
}

fn path() -> anyhow::Result<PathBuf> {
    Ok(stage::cache_dir()?.join("tools").join(format!("opa-{VERSION}")).join("opa"))
}
