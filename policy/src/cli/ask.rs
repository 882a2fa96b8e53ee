//! `nova-policy decide` and `nova-policy explain`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use nova_policy::never;
use nova_policy::pair::Pair;
use nova_policy::{Evaluator, Input, Policy, bundle};

use super::{REFUSED, files};

/// What to ask whom.
#[derive(Args)]
pub(super) struct Ask {
    /// The bundle; its signature is not checked here
    #[arg(long)]
    bundle: PathBuf,
    /// The input: JSON, a file that holds it, or - for standard input
    #[arg(long, required_unless_present = "pair", conflicts_with = "pair")]
    input: Option<String>,
    /// The pair instead of an input: "x -> service-a GET /v1/orders", "x -> api.example.com:443"; x@ADDRESS where rules ask
    /// for it
    #[arg(long)]
    pair: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Ask {
    fn load(&self) -> anyhow::Result<(Policy, Vec<Input>)> {
        let bundle = bundle::dangerous_unverified(&files::read(&self.bundle)?)?;
        let policy = Policy::load(bundle)?;
        let inputs = match (&self.pair, &self.input) {
            (Some(pair), _) => pair.parse::<Pair>()?.inputs(&policy, &|_| Vec::new())?,
            (None, Some(input)) => vec![read(input)?],
            (None, None) => anyhow::bail!("give --input or --pair"),
        };
        Ok((policy, inputs))
    }
}

fn read(text: &str) -> anyhow::Result<Input> {
    let text = if text.trim_start().starts_with('{') { text.to_owned() } else { files::read_text(Path::new(text))? };
    let input: Input = serde_json::from_str(&text).context("the input is not a decision input")?;
    never::check(input.method().unwrap_or_default(), None)?;
    Ok(input)
}

pub(super) fn decide(ask: &Ask) -> anyhow::Result<ExitCode> {
    let (policy, inputs) = ask.load()?;
    let mut evaluator = Evaluator::new();
    let decisions: Vec<_> = inputs.iter().map(|input| evaluator.decide(&policy, input)).collect();
    match decisions.as_slice() {
        // One document for programs, as `explain` writes it.
        several @ [_, _, ..] if ask.json => println!("{}", serde_json::to_string(several)?),
        all => {
            for decision in all {
                println!("{}", serde_json::to_string(decision)?);
            }
        }
    }
    Ok(exit(decisions.iter().all(|decision| decision.allow)))
}

/// A pair is explained at each of its ends that the bundle knows; it passes when all of them let it pass.
pub(super) fn explain(ask: &Ask) -> anyhow::Result<ExitCode> {
    let (policy, inputs) = ask.load()?;
    let all: Vec<_> = inputs.iter().map(|input| nova_policy::explain(&policy, input)).collect();
    match all.as_slice() {
        [only] if ask.json => println!("{}", serde_json::to_string_pretty(only)?),
        all if ask.json => println!("{}", serde_json::to_string_pretty(all)?),
        all => {
            for explanation in all {
                if ask.pair.is_some() {
                    println!("asked: {}", serde_json::to_string(&explanation.input)?);
                }
                print!("{explanation}");
            }
        }
    }
    Ok(exit(all.iter().all(|explanation| explanation.decision.allow)))
}

fn exit(allow: bool) -> ExitCode {
    if allow { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) }
}
