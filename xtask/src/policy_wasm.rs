//! `cargo xtask policy-wasm`: compiles the Rego with real OPA into policy/rego/policy.wasm, which is committed.
//!
//! The same OPA makes the same bytes, so `--check` needs no more than a comparison. A file beside it, in the form of
//! `sha256sum`, says which Rego it was made of: a test finds a stale one where there is no OPA.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::{opa, places, report};

const FOLDER: &str = "policy/rego";
const REGO: &str = "authz.rego";
const WASM: &str = "policy.wasm";
const SUMS: &str = "policy.wasm.sha256";
const ENTRY_POINT: &str = "nova/authz/decision";

/// Arguments of `cargo xtask policy-wasm`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Change nothing; fail when the file is not what OPA makes of the Rego
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let opa = opa::install()?;
    let folder = places::root().join(FOLDER);
    let built = build(&opa, &folder)?;
    let path = folder.join(WASM);
    if args.check {
        if std::fs::read(&path).with_context(|| path.display().to_string())? != built {
            bail!("{FOLDER}/{WASM} is not what OPA {} makes of {REGO}; run: cargo xtask policy-wasm", opa::VERSION);
        }
    } else {
        std::fs::write(&path, &built)?;
        let sums = report::quiet(Command::new("sha256sum").args([REGO, WASM]).current_dir(&folder))?;
        std::fs::write(folder.join(SUMS), sums)?;
        eprintln!("wrote {FOLDER}/{WASM}: {} bytes", built.len());
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds in a folder of its own, from a relative path: OPA writes the paths it was given into what it makes.
fn build(opa: &Path, folder: &Path) -> anyhow::Result<Vec<u8>> {
    let work = places::cache_dir()?.join("policy-wasm");
    std::fs::create_dir_all(&work)?;
    std::fs::copy(folder.join(REGO), work.join(REGO))?;
    let mut build = Command::new(opa);
    build.args(["build", "-t", "wasm", "-e", ENTRY_POINT, "-o", "bundle.tar.gz", REGO]).current_dir(&work);
    report::command("compiling the Rego with OPA", &mut build)?;
    // OPA's archives have names with a slash in front.
    report::quiet(Command::new("tar").args(["-xzf", "bundle.tar.gz", "/policy.wasm"]).current_dir(&work))?;
    Ok(std::fs::read(work.join(WASM))?)
}
