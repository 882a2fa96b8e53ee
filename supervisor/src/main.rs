//! `nova-supervisor`: runs the supervisor, or asks a running one.

mod cli;

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use nova_supervisor::app::{AppError, preflight};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    if let Some(code) = route_helper() {
        return code;
    }
    let outcome = match cli::Cli::parse().command {
        cli::Command::Run { config } => run(&config),
        other => other.carry_out().map_err(Into::into),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("{error:#}");
        error.downcast_ref::<cli::CliError>().map_or(ExitCode::FAILURE, cli::CliError::code)
    })
}

fn run(config: &Path) -> anyhow::Result<ExitCode> {
    let config = cli::load(config)?;
    log_to_stderr()?;
    match nova_supervisor::app::run(config) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(AppError::Mistakes(mistakes)) => Err(cli::CliError::BadInput(mistakes.join("\n")).into()),
        Err(error) => Err(anyhow::anyhow!(preflight::told(error))),
    }
}

/// `RUST_LOG` chooses what is logged; audit lines are not part of it.
fn log_to_stderr() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // A file or a collector has no use for colours.
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()))
        // It would report a line that cannot be written on the same stream, and panic when that fails as well.
        .log_internal_errors(false)
        .try_init()
        .map_err(|error| anyhow::anyhow!(error))
        .context("logging cannot be set up")
}

/// The process that adds routes is this program again; it is started by the supervisor and no command for people.
fn route_helper() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() != Some(nova_supervisor::net::routes::HELPER_COMMAND) {
        return None;
    }
    let subnets: Option<Vec<_>> = args.map(|subnet| subnet.parse().ok()).collect();
    Some(subnets.map_or(ExitCode::FAILURE, nova_supervisor::net::routes::run_helper))
}
