//! `nova-lab bench`: the supervisor's ingress and HAProxy doing the same job in one rotation.
//!
//! ```text
//! callers (64, TLS 1.3, client certificates) --+-- HAProxy ----------- Unix socket or TCP --+
//!                                              +-- nova-supervisor --- guest link ----------+-- upstream
//!                                              +-- nova-supervisor --- muxer, nova-relay ---+
//! ```
//! On a machine that is busy with other things only ratios within a rotation mean anything, so the proxies take turns in
//! short slots and what is reported is the median of the rounds.

mod caller;
mod callers;
mod case;
mod load;
mod peers;
mod report;
mod upstream;
mod usage;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use callers::Callers;
use case::Case;
use load::Sample;
use peers::Stand;

/// Connections that are only held, to see what one costs.
const IDLE: usize = 1000;

/// Arguments of `nova-lab bench`.
#[derive(clap::Args)]
pub struct Args {
    /// Folder of the release binaries
    #[arg(long)]
    bins: PathBuf,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    /// How often each proxy is measured
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only this case
    #[arg(long)]
    case: Option<Case>,
    /// File that gets the report as Markdown
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// Everything that was measured of one case.
pub(crate) struct Measured {
    case: Case,
    /// Per peer, in the order of the stand: one sample per round.
    samples: Vec<Vec<Sample>>,
}

/// Starts the peers, checks that they refuse what they must, measures, reports.
///
/// # Errors
/// When a part does not come up, a proxy serves whom it must not, or nothing could be measured.
pub fn run(args: &Args) -> anyhow::Result<()> {
    raise_descriptor_limit()?;
    let callers = Callers::new()?;
    let mut stand = Stand::start(&args.bins, &callers)?;
    for peer in stand.peers() {
        load::check_refusals(peer, &callers).with_context(|| peer.name)?;
        eprintln!("{}: serves x, refuses y and a stranger's certificate", peer.name);
    }
    let idle = if args.case.is_none() { idle_memory(&stand, &callers)? } else { Vec::new() };
    let cases = args.case.map_or(Case::ALL.to_vec(), |case| vec![case]);
    let seconds = Duration::from_secs(args.seconds.max(1));
    let measured = cases
        .into_iter()
        .map(|case| measure(&mut stand, &callers, case, args.rounds.max(1), seconds))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let report = report::Report::new(&stand, &measured, idle, args.seconds)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{}", report.text());
    }
    if let Some(file) = &args.out {
        std::fs::write(file, report.markdown()).with_context(|| file.display().to_string())?;
        eprintln!("written: {}", file.display());
    }
    Ok(())
}

fn measure(
    stand: &mut Stand,
    callers: &Callers,
    case: Case,
    rounds: usize,
    seconds: Duration,
) -> anyhow::Result<Measured> {
    let mut samples: Vec<Vec<Sample>> = stand.peers().iter().map(|_| Vec::new()).collect();
    for round in 1..=rounds {
        for (index, into) in samples.iter_mut().enumerate() {
            stand.check()?;
            stand.empty_audit_log()?;
            let peer = &stand.peers()[index];
            eprint!("{case}, round {round}, {} ... ", peer.name);
            let sample = load::measure(peer, callers, case, seconds)?;
            eprintln!("{:.0} requests/s, {:.1} us, {} errors", sample.rps(), sample.cpu_us(), sample.errors);
            if peer.is_nova {
                is_audited(stand, &sample)?;
            }
            into.push(sample);
        }
    }
    Ok(Measured { case, samples })
}

/// What was measured was a supervisor that keeps its log: no request without its line.
fn is_audited(stand: &Stand, sample: &Sample) -> anyhow::Result<()> {
    let lines = stand.audited_requests(sample.requests)?;
    if lines < sample.requests {
        bail!("{} requests were answered and {lines} recorded", sample.requests);
    }
    Ok(())
}

fn idle_memory(stand: &Stand, callers: &Callers) -> anyhow::Result<Vec<(&'static str, f64)>> {
    let mut all = Vec::new();
    for peer in stand.peers().iter().filter(|peer| peer.counts_memory) {
        let per_connection = load::idle_memory(peer, callers, IDLE)?;
        eprintln!("{}: {per_connection:.1} kB per idle connection", peer.name);
        all.push((peer.name, per_connection));
    }
    Ok(all)
}

fn raise_descriptor_limit() -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}
