//! `cargo xtask deny`: what comes in from outside, against deny.toml.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::bail;

use crate::{places, report, setup};

const VERSION: &str = "0.20.2";

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let program = cargo_deny()?;
    let deny = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.current_dir(places::root()).args(["--log-level", "error"]).args(arguments);
        command
    };
    // The database of advisories is on the network; without it the rest is still checked, and this is said.
    let fetched = report::quiet(&mut deny(&["fetch", "db"])).is_ok();
    let mut checks = vec!["check", "bans", "licenses", "sources"];
    if fetched {
        checks.push("advisories");
    } else {
        eprintln!("advisories are not checked: their database cannot be fetched from here");
    }
    if !deny(&checks).status()?.success() {
        bail!("a dependency breaks a rule of deny.toml");
    }
    Ok(ExitCode::SUCCESS)
}

fn cargo_deny() -> anyhow::Result<PathBuf> {
    let root = places::cache_dir()?.join("tools");
    let cached = root.join("bin/cargo-deny");
    if cached.is_file() {
        return Ok(cached);
    }
    if let Some(installed) = places::find("cargo-deny") {
        return Ok(installed);
    }
    setup::cargo_install("cargo-deny", VERSION, "a few minutes")?;
    Ok(cached)
}
