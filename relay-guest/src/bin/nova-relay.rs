//! `nova-relay`: reads its configuration from standard input, prints `ready` when every port is bound, then serves.

use std::io::Write;
use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::Parser;
use nova_relay::handover::{self, Handed};
use nova_relay::relay::config::RelayConfig;
use nova_relay::relay::{self, Relay};
use tokio::signal::unix::{SignalKind, signal};

/// Carries bytes between the app's sockets and the host. nova-init starts it and writes its configuration, as JSON, to
/// its standard input.
#[derive(Debug, Parser)]
#[command(name = "nova-relay", version)]
struct Cli {}

fn main() -> ExitCode {
    Cli::parse();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        // A line that cannot be written is lost, and the relay lives on.
        .log_internal_errors(false)
        .init();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("nova-relay cannot run: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    relay::hide()?;
    let (text, descriptors) = handover::receive(std::io::stdin().as_fd())?;
    let config = RelayConfig::read(text.as_slice())?;
    let handed = Handed::of(&config, descriptors)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let relay = Relay::start(config, handed)?;
        std::io::stdout().write_all(b"ready\n")?;
        tokio::select! {
            () = relay.serve() => Err("a part of the relay ended by itself".into()),
            _ = terminate.recv() => Ok(()),
        }
    })
}
