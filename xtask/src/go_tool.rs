//! Tools written in Go: built once from the module proxy into the cache, then used from there without a network.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::{places, report};

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

/// Calls gRPC methods through the supervisor.
pub(crate) const GRPCURL: GoTool =
    GoTool { name: "grpcurl", package: "github.com/fullstorydev/grpcurl/cmd/grpcurl", version: "1.9.4" };

/// The folder of our own clients in Go.
const CLIENTS: &str = "tests/clients/go";

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
        let mut install = go().with_context(|| format!("{name} {version} is not at {}", path.display()))?;
        install.arg("install").arg(format!("{package}@v{version}")).env("GOBIN", dir);
        report::command(&format!("building {name} {version} (once, a few minutes)"), &mut install)?;
        Ok(path)
    }

    fn path(&self) -> anyhow::Result<PathBuf> {
        let Self { name, version, .. } = self;
        Ok(places::cache_dir()?.join("tools").join(format!("{name}-{version}")).join(name))
    }
}

/// Builds our own clients. The tests do the same again, so that they never run what was built of older sources: with Go's
/// own cache that takes a moment and no network.
pub(crate) fn build_clients() -> anyhow::Result<()> {
    let program = places::cache_dir()?.join("tools/clients/nova-clients");
    let mut build = go()?;
    build.arg("build").arg("-o").arg(program).arg(".").current_dir(places::root().join(CLIENTS));
    report::command("building the clients in Go (a minute when they are new)", &mut build)?;
    Ok(())
}

fn go() -> anyhow::Result<Command> {
    let usual = Path::new("/usr/local/go/bin/go");
    let go = places::find("go").or_else(|| usual.is_file().then(|| usual.to_owned()));
    Ok(Command::new(go.context("no Go to build with: install it from https://go.dev/dl")?))
}
