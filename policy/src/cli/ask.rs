//! `nova-policy decide` and `nova-policy explain`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use nova_policy::{Evaluator, Input, Policy, bundle};

use super::{REFUSED, files};

/// What to ask whom.
#[derive(Args)]
pub(super) struct Ask {
    /// The bundle; its signature is not checked here
    #[arg(long)]
    bundle: PathBuf,
    /// The input: JSON, a file that holds it, or - for standard input
    #[arg(long)]
    input: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Ask {
    fn load(&self) -> anyhow::Result<(Policy, Input)> {
        let bundle = bundle::dangerous_unverified(&files::read(&self.bundle)?)?;
        let policy = Policy::load(bundle)?;
        let text = if self.input.trim_start().starts_with('{') {
            self.input.clone()
        } else {
            files::read_text(Path::new(&self.input))?
        };
        let input = serde_json::from_str(&text).context("the input is not a decision input")?;
        Ok((policy, input))
    }
}

pub(super) fn decide(ask: &Ask) -> anyhow::Result<ExitCode> {
    let (policy, input) = ask.load()?;
    let decision = Evaluator::new().decide(&policy, &input);
    println!("{}", serde_json::to_string(&decision)?);
    Ok(exit(decision.allow))
}

pub(super) fn explain(ask: &Ask) -> anyhow::Result<ExitCode> {
    let (policy, input) = ask.load()?;
    let explanation = nova_policy::explain(&policy, &input);
    if ask.json {
        println!("{}", serde_json::to_string_pretty(&explanation)?);
    } else {
        print!("{explanation}");
    }
    Ok(exit(explanation.decision.allow))
}

fn exit(allow: bool) -> ExitCode {
    if allow { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) }
}
