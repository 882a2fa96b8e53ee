//! `nova-init`: the first process of a guest. `nova-init exec` is how it starts the others without privileges.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use nova_relay::init::{self, privileges};

/// Exit code when the guest could not be prepared (EX_CONFIG of sysexits.h).
const CANNOT_PREPARE: u8 = 78;
/// Exit code when a program could not be started, as shells use it.
const CANNOT_START: u8 = 127;

/// Prepares a guest (addresses, hosts file, proxy variables), then runs the relay and the app without privileges.
#[derive(Debug, Parser)]
#[command(name = "nova-init", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Action>,
    /// The guest's configuration, a file that only root can read; `-` reads standard input.
    #[arg(long, value_name = "FILE", default_value = "/nova/guest.json")]
    config: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Drops every privilege and becomes a program.
    Exec {
        /// User and group to become.
        #[arg(long)]
        uid: Option<u32>,
        /// The program and its arguments.
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Some(Action::Exec { uid, command }) => {
            let Err(error) = privileges::exec(uid, &command);
            eprintln!("nova-init: {error}");
            ExitCode::from(CANNOT_START)
        }
        None => match init::run(&cli.config) {
            Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
            Err(error) => {
                eprintln!("nova-init: {error}");
                ExitCode::from(CANNOT_PREPARE)
            }
        },
    }
}
