//! `cargo xtask bench`: builds in release and hands over to the lab's bench.

use std::process::{Command, ExitCode};

use anyhow::bail;

use crate::setup::{self, Need};
use crate::{envoy, places, report};

/// Arguments of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure
    #[arg(value_enum)]
    what: What,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    /// How often each proxy is measured
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only this case, without writing anything down
    #[arg(long)]
    case: Option<String>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// Mutual TLS in, plain HTTP/1.1 to the guest's relay; against HAProxy
    Ingress,
    /// What a guest asks for: proxy requests and tunnels; against Envoy
    Egress,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    setup::install(&[Need::Lab, Need::Bench])?;
    let mut build = places::cargo();
    build.args(["build", "--release", "--bins", "-p", "nova-supervisor", "-p", "nova-policy", "-p", "nova-relay"]);
    build.args(["-p", "nova-novalet", "-p", "nova-tests"]);
    report::command("building in release (minutes the first time)", &mut build)?;
    let bins = places::target_dir()?.join("release");
    let mut bench = Command::new(bins.join("nova-lab"));
    bench.arg("bench");
    match args.what {
        What::Ingress => bench.arg("ingress"),
        What::Egress => bench.arg("egress").arg("--envoy").arg(envoy::install()?),
    };
    bench.args(["--seconds", &args.seconds.to_string(), "--rounds", &args.rounds.to_string()]).arg("--bins").arg(&bins);
    match &args.case {
        Some(case) => bench.args(["--case", case]),
        None => bench.arg("--out").arg(places::root().join("docs/benchmarks.md")),
    };
    if args.json {
        bench.arg("--json");
    }
    if !bench.status()?.success() {
        bail!("the bench failed");
    }
    Ok(ExitCode::SUCCESS)
}
