//! The command line.

mod ask;
mod bundle;
mod files;
mod gate;
mod import;
mod keys;
mod sources;
mod time;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use nova_policy::never;
use nova_policy::path::CanonicalPath;

/// Mistakes in the files.
const MISTAKES: u8 = 3;
/// A change that somebody must approve.
const HELD: u8 = 3;
/// Refused.
const REFUSED: u8 = 2;

#[derive(Parser)]
#[command(name = "nova-policy", version, about = "Rules, signed bundles and decisions of nova-runtime")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check a rules file against a workload table and report every mistake
    Lint {
        #[command(flatten)]
        sources: sources::Sources,
        /// Print the mistakes as JSON
        #[arg(long)]
        json: bool,
    },
    /// Turn a map of allowed callers into rules
    Import(import::Import),
    /// Compile rules to the data of one node
    Compile {
        #[command(flatten)]
        sources: sources::Sources,
        /// Node id
        #[arg(long, value_parser = sources::node_id)]
        node: String,
        /// Where to write; standard output when absent
        #[arg(short, long)]
        output: Option<PathBuf>,
    },
    /// Build, sign, verify and inspect bundles
    #[command(subcommand)]
    Bundle(bundle::Bundle),
    /// Make a signing key
    Keygen(keys::Keygen),
    /// Print the decision on an input
    #[command(visible_alias = "eval")]
    Decide(ask::Ask),
    /// Print the decision on an input, and for every rule which test failed
    Explain(ask::Ask),
    /// Compare a bundle with the live one and list what somebody must approve: exit 0 publish, 3 held, 2 refused
    Gate(gate::Gate),
    /// Sign what the gate holds, with a key other than that of the bundle
    Approve(gate::Approve),
    /// Print the canonical form of a request target, or why it is refused
    Path {
        /// Target in origin form, as it stands in a request line
        target: String,
    },
}

/// Runs the command and returns its exit code.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // clap would exit with 2, which means "refused" here.
            error.print()?;
            return Ok(if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
    };
    match cli.command {
        Command::Lint { sources, json } => sources::lint(&sources, json),
        Command::Import(import) => import::run(&import),
        Command::Compile { sources, node, output } => sources::compile(&sources, &node, output.as_deref()),
        Command::Bundle(command) => bundle::run(command),
        Command::Keygen(keygen) => keys::run(&keygen),
        Command::Decide(ask) => ask::decide(&ask),
        Command::Explain(ask) => ask::explain(&ask),
        Command::Gate(gate) => gate::gate(&gate),
        Command::Approve(approve) => gate::approve(&approve),
        Command::Path { target } => path(&target),
    }
}

fn path(target: &str) -> anyhow::Result<ExitCode> {
    if let Err(never) = never::check_query(target.split_once('?').map_or("", |(_, query)| query)) {
        return Ok(refused(never.code(), &never));
    }
    match CanonicalPath::parse(target.as_bytes()) {
        Ok(path) => {
            println!("{}", path.path_and_query());
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Ok(refused(error.code(), &error)),
    }
}

fn refused(reason: &str, error: &dyn std::fmt::Display) -> ExitCode {
    println!("{}", serde_json::json!({ "accepted": false, "reason": reason, "message": error.to_string() }));
    ExitCode::from(REFUSED)
}
