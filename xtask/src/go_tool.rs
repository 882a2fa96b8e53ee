//! Tools written in Go: built once from the module proxy into the cache, then used from there without a network.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;

use crate::{report, setup, stage};

/// One tool.
pub(crate) struct GoTool {
    /// The program.
    pub(crate) name: &'static str,
    /// What `go install` builds.
    pub(crate) package: &'static str,
    /// Without the `v`.
    pub(crate) version: &'static str,
}

/// The peer suite of HTTP/2, which a test runs against a port.
pub(crate) const H2SPEC: GoTool =
    GoTool { name: "h2spec", package: "github.com/summerwind/h2spec/cmd/h2spec", version: "2.2.1+incompatible" };

impl GoTool {
    /// Where it is, if it is there. The tests look at the same place.
    pub(crate) fn find(&self) -> Option<PathBuf> {
        let cached = self.path().ok()?;
        cached.is_file().then_some(cached)
    }

    /// Builds it if it is missing.
    pub(crate) fn install(&self) -> anyhow::Result<PathBuf> {
        if let Some(found) = self.find() {
            return Ok(found);
        }
        let path = self.path()?;
        let Self { name, package, version } = self;
        let dir = path.parent().context("no cache folder")?;
        std::fs::create_dir_all(dir)?;
        let go = setup::find("go").or_else(|| Some(PathBuf::from("/usr/local/go/bin/go")).filter(|go| go.is_file()));
        let go = go.with_context(|| {
            format!("no Go to build {name} with; install Go, or put {name} {version} at {}", path.display())
        })?;
        let mut install = Command::new(go);
        install.arg("install").arg(format!("{package}@v{version}")).env("GOBIN", dir);
        report::command(&format!("building {name} {version} (once, a few minutes)"), &mut install)?;
        Ok(path)
    }

    fn path(&self) -> anyhow::Result<PathBuf> {
        let Self { name, version, .. } = self;
        Ok(stage::cache_dir()?.join("tools").join(format!("{name}-{version}")).join(name))
    }
}
