//! `nova-lab bench`: the supervisor and a peer doing the same job in one rotation.
//!
//! On a machine that is busy with other things only ratios within a rotation mean anything, so the proxies take turns in
//! short slots and what is reported is the median of the rounds. `ingress` and `egress` say who the peers are and what is
//! asked of them; the rest is the same for both.

mod call;
mod caller;
mod case;
mod document;
mod egress;
mod ingress;
mod load;
mod report;
mod stand;
mod upstream;
mod usage;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::Serialize;

use case::{Case, Row};
use load::Sample;
use stand::Stand;

/// Connections that are only held, to see what one costs.
const IDLE: usize = 1000;

/// Which direction is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum What {
    /// Calls to a workload, against HAProxy
    Ingress,
    /// Calls of a workload, against Envoy
    Egress,
}

/// Arguments of `nova-lab bench`.
#[derive(clap::Args)]
pub struct Args {
    /// What to measure
    #[arg(value_enum)]
    what: What,
    /// Folder of the release binaries
    #[arg(long)]
    bins: PathBuf,
    /// Envoy, for `egress`
    #[arg(long, required_if_eq("what", "egress"))]
    envoy: Option<PathBuf>,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    /// How often each proxy is measured
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only this case, and no memory
    #[arg(long)]
    case: Option<String>,
    /// File whose section about this is written anew
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// Starts the peers, checks that they refuse what they must, measures, reports.
///
/// # Errors
/// When a part does not come up, a proxy serves whom it must not, or nothing could be measured.
pub fn run(args: &Args) -> anyhow::Result<()> {
    raise_descriptor_limit()?;
    let (mut stand, about) = match (args.what, &args.envoy) {
        (What::Ingress, _) => (ingress::start(&args.bins)?, ingress::ABOUT),
        (What::Egress, envoy) => {
            (egress::start(&args.bins, envoy.as_deref().context("--envoy says where it is")?)?, egress::ABOUT)
        }
    };
    check(&stand)?;
    let idle = if args.case.is_none() { idle_memory(&stand)? } else { Vec::new() };
    let cases = chosen(&mut stand, args.case.as_deref())?;
    let seconds = Duration::from_secs(args.seconds.max(1));
    let measured = cases
        .iter()
        .map(|case| measure(&mut stand, case, args.rounds.max(1), seconds))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let report = report::Report::new(stand.versions.clone(), &cases, &measured, idle, args)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{}", report.text());
    }
    if let Some(file) = &args.out {
        document::put(file, args.what, &report.markdown(about)).with_context(|| file.display().to_string())?;
        eprintln!("written: {}", file.display());
    }
    Ok(())
}

fn check(stand: &Stand) -> anyhow::Result<()> {
    for case in &stand.cases {
        for row in &case.rows {
            load::check(row, case.pattern).with_context(|| format!("{}, {}", case.title, row.name))?;
        }
        eprintln!("{}: all serve what they must, and refuse what they must", case.title);
    }
    Ok(())
}

fn chosen(stand: &mut Stand, id: Option<&str>) -> anyhow::Result<Vec<Case>> {
    let known: Vec<_> = stand.cases.iter().map(|case| case.id).collect();
    let mut cases = std::mem::take(&mut stand.cases);
    cases.retain(|case| id.is_none_or(|id| case.id == id));
    ensure!(!cases.is_empty(), "no such case; there are {}", known.join(", "));
    Ok(cases)
}

/// Per row of the case: one sample per round.
fn measure(stand: &mut Stand, case: &Case, rounds: usize, seconds: Duration) -> anyhow::Result<Vec<Vec<Sample>>> {
    let mut samples: Vec<Vec<Sample>> = case.rows.iter().map(|_| Vec::new()).collect();
    for round in 1..=rounds {
        for (row, into) in case.rows.iter().zip(&mut samples) {
            stand.check()?;
            stand.empty_audit_log()?;
            eprint!("{}, round {round}, {} ... ", case.title, row.name);
            let sample = load::measure(&stand.proxies[row.proxy], row, case, seconds)?;
            eprintln!("{:.0}/s, {:.1} us, {} errors", sample.rate(), sample.cpu_us(), sample.errors);
            is_audited(stand, row, &sample)?;
            into.push(sample);
        }
    }
    Ok(samples)
}

/// What was measured was a supervisor that keeps its log: nothing without its line.
fn is_audited(stand: &Stand, row: &Row, sample: &Sample) -> anyhow::Result<()> {
    let Some(kind) = row.audited else { return Ok(()) };
    let lines = stand.audited(kind, sample.count)?;
    if lines < sample.count {
        bail!("{} were counted and {lines} recorded", sample.count);
    }
    Ok(())
}

fn idle_memory(stand: &Stand) -> anyhow::Result<Vec<(&'static str, f64)>> {
    let (mut all, mut held) = (Vec::new(), Vec::new());
    for idle in &stand.idle {
        let measured = load::idle_memory(&stand.proxies[idle.proxy], &idle.call, IDLE).context(idle.name)?;
        let (per_connection, open) = measured;
        held.extend(open);
        eprintln!("{}: {per_connection:.1} kB", idle.name);
        all.push((idle.name, per_connection));
    }
    Ok(all)
}

fn raise_descriptor_limit() -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}
