//! The scenario: fifteen calls against a real node, each judged by what apps, upstreams and callers saw, not by what the
//! node says of itself.

mod calls;
mod escape;
mod guest;
mod operate;
mod outside;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::lab::isolate::{self, Side};
use crate::lab::node::{Node, step};
use crate::lab::stage::{GuestKind, Stage};

/// Arguments of `nova-lab demo`.
#[derive(clap::Args)]
pub struct Args {
    /// What the guests are
    #[arg(long, value_enum, default_value = "process")]
    pub guest: GuestKind,
    /// Where the binaries are, as `cargo xtask stage` prints it
    #[arg(long)]
    stage: Option<String>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// Leave the node up and print the commands to try it by hand
    #[arg(long)]
    keep: bool,
    /// Folder that gets the logs and the audit log of the run
    #[arg(long)]
    save: Option<PathBuf>,
    /// Only these rows, in the scenario's order
    #[arg(long, value_delimiter = ',')]
    rows: Vec<u8>,
}

/// One row: what is played and what must come out.
struct Row {
    id: u8,
    what: &'static str,
    expected: &'static str,
    play: fn(&mut Node, &mut Findings, &mut Notes) -> anyhow::Result<()>,
}

/// In the order in which they are played: row 12 ends a workload that the others need.
const ROWS: [Row; 15] = [
    calls::ALLOWED,
    calls::METHOD,
    calls::NO_RULE,
    outside::COMPROMISED_CALLER,
    calls::STRIPE,
    outside::PARTNER,
    outside::CLOSED_PORT,
    escape::NO_OTHER_WAY,
    calls::TUNNEL,
    guest::WAYS_OUT,
    operate::REPLAY,
    operate::RULE_CHANGE,
    calls::CANONICAL,
    escape::CLAIMS,
    operate::DRAIN,
];

/// What rows tell later rows.
#[derive(Default)]
struct Notes {
    /// Decision id of the denial in row 3.
    denial: Option<String>,
}

/// What a row found, in order.
#[derive(Default)]
struct Findings {
    seen: Vec<String>,
    wrong: bool,
}

impl Findings {
    /// Notes one finding, and whether it is as expected.
    fn see(&mut self, what: impl Into<String>, fine: bool) {
        let what = what.into();
        self.seen.push(if fine { what } else { format!("NOT AS EXPECTED: {what}") });
        self.wrong |= !fine;
    }
}

/// A row as it was played.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Played {
    /// Number in the table.
    pub id: u8,
    /// What was played.
    pub what: String,
    /// Whether everything came out as expected.
    pub ok: bool,
    /// What was expected.
    pub expected: String,
    /// What was seen.
    pub got: String,
    /// How long it took.
    pub seconds: f64,
}

/// A run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// What the guests were.
    pub guest: String,
    /// Whether every row came out as expected.
    pub ok: bool,
    /// The rows, by number.
    pub rows: Vec<Played>,
}

/// Plays the scenario in namespaces of its own.
///
/// # Errors
/// When the stage cannot be set.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let run_dir = match isolate::enter(args.guest)? {
        Side::Outer(code) => return Ok(code),
        Side::Inner(run_dir) => run_dir,
    };
    eprintln!("run folder {}", run_dir.display());
    let stage = match &args.stage {
        Some(text) => serde_json::from_str(text)?,
        None => Stage::prepare(args.guest)?,
    };
    let mut node = Node::start(&stage, args.guest, &run_dir)?;
    let report = play(&mut node, &args.rows);
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{}", report::table(&report));
    }
    match &args.save {
        Some(folder) => node.save(folder)?,
        None if !report.ok => eprintln!("{}\n(--save <folder> keeps all logs)", node.last_words()),
        None => {}
    }
    if args.keep {
        report::how_to_try(&mut node)?;
        loop {
            std::thread::park();
        }
    }
    step("taking the node down", || node.stop())?;
    Ok(if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Plays the rows against a running node.
pub fn play(node: &mut Node, only: &[u8]) -> Report {
    let mut notes = Notes::default();
    let wanted = |row: &&Row| only.is_empty() || only.contains(&row.id);
    let mut rows: Vec<Played> = ROWS.iter().filter(wanted).map(|row| play_row(row, node, &mut notes)).collect();
    rows.sort_by_key(|row| row.id);
    Report { guest: node.kind.name().into(), ok: rows.iter().all(|row| row.ok), rows }
}

fn play_row(row: &Row, node: &mut Node, notes: &mut Notes) -> Played {
    let start = Instant::now();
    eprint!("row {}: {} ...", row.id, row.what);
    let mut findings = Findings::default();
    if let Err(error) = node.check().and_then(|()| (row.play)(node, &mut findings, notes)) {
        findings.see(format!("{error:#}"), false);
    }
    let seconds = start.elapsed().as_secs_f64();
    eprintln!(" {} ({seconds:.1} s)", if findings.wrong { "FAILED" } else { "ok" });
    Played {
        id: row.id,
        what: row.what.into(),
        ok: !findings.wrong,
        expected: row.expected.into(),
        got: findings.seen.join("; "),
        seconds: (seconds * 10.0).round() / 10.0,
    }
}
