//! The command line: what an operator can ask, and what comes out.

mod check;
mod client;
mod input;
mod output;
mod tables;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use nova_supervisor::admin::protocol::{Code, Request};
use serde_json::Value;
use thiserror::Error;

pub(crate) use check::load;

/// Everything went well.
const OK: u8 = 0;
/// Something failed, or the node is not ready.
const FAILURE: u8 = 1;
/// The command line, a file or a question is wrong. clap uses the same number.
const BAD_INPUT: u8 = 2;

const EXIT_CODES: &str = "Exit codes: 0 ok, 1 failure (also: not ready), 2 bad input";

/// The trusted supervisor of a node, and its operator's commands.
#[derive(Parser)]
#[command(name = "nova-supervisor", version, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run the supervisor in the foreground
    #[command(after_help = EXIT_CODES)]
    Run {
        /// supervisor.toml
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Check the configuration and the endpoints file, and print every mistake; changes nothing
    #[command(after_help = EXIT_CODES)]
    Check {
        /// supervisor.toml
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// A placement file to check as well; endpoints.file of the configuration is always checked
        #[arg(long, value_name = "FILE")]
        placements: Option<PathBuf>,
    },
    /// Show the endpoints and how far each may serve
    Endpoints(Ask),
    /// Show the open connections
    Connections(Ask),
    /// Show the active policy and what was wrong with the last bundle
    Policy(Ask),
    /// Say whether the node can serve; exit code 1 when it cannot
    Ready(Ask),
    /// Decide a call on the active policy and show which test of which rule failed
    #[command(after_help = EXIT_CODES)]
    Explain {
        #[command(flatten)]
        ask: Ask,
        #[command(flatten)]
        call: Box<input::Call>,
    },
    /// Decide a recorded call again, on the policy of that moment and on today's
    #[command(after_help = EXIT_CODES)]
    Replay {
        #[command(flatten)]
        ask: Ask,
        /// From the header x-nova-decision-id or an audit line
        decision_id: String,
    },
}

/// How to ask the running supervisor.
#[derive(Args)]
pub(crate) struct Ask {
    /// The supervisor's admin.socket
    #[arg(long, value_name = "PATH", default_value = "/run/nova/admin.sock")]
    socket: PathBuf,
    /// Print the raw JSON object
    #[arg(long)]
    json: bool,
}

/// What went wrong with a command.
#[derive(Debug, Error)]
pub(crate) enum CliError {
    /// The operator can correct it.
    #[error("{0}")]
    BadInput(String),
    /// It could not be done.
    #[error("{0}")]
    Failure(String),
}

impl CliError {
    /// The exit code for it.
    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Self::BadInput(_) => BAD_INPUT.into(),
            Self::Failure(_) => FAILURE.into(),
        }
    }
}

impl Command {
    /// Carries out everything but `run`.
    pub(crate) fn carry_out(self) -> Result<ExitCode, CliError> {
        match self {
            Self::Run { .. } => Err(CliError::Failure("run is not an operator's command".into())),
            Self::Check { config, placements } => check::check(&config, placements.as_deref()),
            Self::Endpoints(how) => ask(&how, &Request::Endpoints, tables::endpoints),
            Self::Connections(how) => ask(&how, &Request::Connections, tables::connections),
            Self::Policy(how) => ask(&how, &Request::Policy, tables::policy),
            Self::Ready(how) => ready(&how),
            Self::Explain { ask: how, call } => {
                if let Some(pair) = call.pair.clone() {
                    let request = Request::ExplainPair { pair, revision: call.revision.clone() };
                    return ask(&how, &request, tables::ends);
                }
                let input = call.input()?;
                ask(&how, &Request::Explain { input }, tables::explanation)
            }
            Self::Replay { ask: how, decision_id } => ask(&how, &Request::Replay { decision_id }, tables::replay),
        }
    }
}

type Render = fn(&Value) -> Result<String, serde_json::Error>;

fn ask(how: &Ask, request: &Request, render: Render) -> Result<ExitCode, CliError> {
    let answer = fetch(how, request)?;
    show(how, &answer, render)?;
    Ok(OK.into())
}

fn ready(how: &Ask) -> Result<ExitCode, CliError> {
    let answer = fetch(how, &Request::Ready)?;
    show(how, &answer, tables::ready)?;
    let ready = answer["ready"] == true;
    Ok(if ready { OK } else { FAILURE }.into())
}

fn fetch(how: &Ask, request: &Request) -> Result<Value, CliError> {
    client::ask(&how.socket, request)?.map_err(|failure| {
        let text = format!("{} (remedy: {})", failure.message, failure.remedy);
        if failure.code == Code::BadInput { CliError::BadInput(text) } else { CliError::Failure(text) }
    })
}

fn show(how: &Ask, answer: &Value, render: Render) -> Result<(), CliError> {
    let other_release = |error| {
        CliError::Failure(format!(
            "the supervisor answered in a form this release does not know: {error} (remedy: use --json)"
        ))
    };
    let text = if how.json { format!("{answer}\n") } else { render(answer).map_err(other_release)? };
    output::print(&text)
}
