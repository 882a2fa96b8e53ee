//! `novalet-ref`: see the library.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use nova_novalet::cli::{Cli, Command};
use nova_novalet::launch::Launch;
use nova_novalet::mux::Mux;
use nova_novalet::operator::client::{ClientError, ask};
use nova_novalet::operator::{Request, show};
use nova_novalet::{app, load};

fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("novalet-ref: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Launch { launch } => return Launch::run(&launch),
        Command::Run(options) => {
            start_log();
            runtime()?.block_on(app::run(*options))?;
        }
        Command::Mux { socket, guest, host_port } => {
            start_log();
            runtime()?.block_on(Mux { socket, guest, host_ports: host_port }.run())?;
        }
        Command::Check { placements } => return Ok(check(&placements)),
        Command::Status { json, agent } => status(&agent.run_dir, json)?,
        Command::Wait { phase, pod, timeout, agent } => {
            let phase = serde_json::from_value(phase.clone().into()).with_context(|| format!("no phase {phase}"))?;
            let timeout_ms = timeout.saturating_mul(1000);
            ask(&agent.run_dir, &Request::Wait { phase, pod_uid: pod, timeout_ms })?;
        }
        Command::Drain { pod_uid, agent } => tell(&agent.run_dir, &Request::Drain { pod_uid }, "drained")?,
        Command::Restart { pod_uid, agent } => tell(&agent.run_dir, &Request::Restart { pod_uid }, "restarted")?,
        Command::Stop { agent } => tell(&agent.run_dir, &Request::Stop, "stopped")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// One thread: the children's lives are tied to the thread that starts them, and this one lives as long as we do.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")
}

fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.with_ansi(colours).with_target(false).init();
}

fn check(placements: &Path) -> ExitCode {
    match load::load(placements, None) {
        Ok(placed) => {
            println!("{} placements, no mistakes", placed.len());
            ExitCode::SUCCESS
        }
        Err(mistakes) => {
            mistakes.iter().for_each(|mistake| eprintln!("{mistake}"));
            ExitCode::FAILURE
        }
    }
}

fn status(run_dir: &Path, json: bool) -> Result<(), ClientError> {
    let Some(status) = ask(run_dir, &Request::Status)?.status else { return Ok(()) };
    if json {
        println!("{}", serde_json::to_string(&status).unwrap_or_default());
    } else {
        println!("{}", show::text(&status));
    }
    Ok(())
}

fn tell(run_dir: &Path, request: &Request, done: &str) -> Result<(), ClientError> {
    let reply = ask(run_dir, request)?;
    match reply.pod {
        Some(pod) => println!("{} {done}, generation {}", pod.pod_uid, pod.generation),
        None => println!("{done}"),
    }
    Ok(())
}
