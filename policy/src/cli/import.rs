//! `nova-policy import`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use nova_policy::import::{Callers, rules_of};

use super::{MISTAKES, files};

/// What to import, and what the map does not say.
#[derive(Args)]
pub(super) struct Import {
    /// Today's map: {"callee": ["caller", ..]}, alone or under "allowed_callers"
    file: PathBuf,
    /// Tenant of all workloads in it
    #[arg(long)]
    tenant: String,
    /// Port of the callees that their callers may come to
    #[arg(long, default_value = "https")]
    port: String,
    /// Where to write the rules; standard output when absent
    #[arg(short, long)]
    output: Option<PathBuf>,
}

pub(super) fn run(import: &Import) -> anyhow::Result<ExitCode> {
    let callers = Callers::from_json(&files::read_text(&import.file)?)?;
    match rules_of(&callers, &import.tenant, &import.port) {
        Ok(rules) => write(import.output.as_deref(), &rules),
        Err(mistakes) => {
            mistakes.iter().for_each(|mistake| eprintln!("{}: {mistake}", import.file.display()));
            eprintln!("{} mistake(s), nothing was written", mistakes.len());
            Ok(ExitCode::from(MISTAKES))
        }
    }
}

fn write(output: Option<&Path>, rules: &str) -> anyhow::Result<ExitCode> {
    match output {
        Some(path) => files::write(path, rules.as_bytes())?,
        None => print!("{rules}"),
    }
    Ok(ExitCode::SUCCESS)
}
