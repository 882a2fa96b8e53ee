//! One binary that plays every part of the lab; see the sub-commands. Built static and without feature `host` for guests.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use nova_tests::programs;
#[cfg(feature = "host")]
use nova_tests::{bench, demo, lab};

#[derive(Parser)]
#[command(about = "The parts that the node lab is played with", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// In a guest: runs commands and apps for the lab, which connects through the guest link
    Agent(programs::agent::Args),
    /// An HTTP/1.1 app that records what it received
    App(programs::app::Args),
    /// A scripted conversation over one connection; the script is JSON on standard input
    Talk(programs::talk::Args),
    /// Tries every way out of a guest that is not the relay
    Probe(programs::probe::Args),
    /// Many hostile connections at once
    Flood(programs::flood::Args),
    #[cfg(feature = "host")]
    #[command(flatten)]
    Host(HostCommand),
}

#[cfg(feature = "host")]
#[derive(Subcommand)]
enum HostCommand {
    /// A TLS server that records what it received
    Upstream(programs::upstream::Args),
    /// A TCP server that speaks first
    TcpFirst(programs::tcp_first::Args),
    /// A small authoritative DNS server
    Dns(programs::dns::Args),
    /// A raw mutual TLS client
    Client(programs::client::Args),
    /// The whole scenario against a node of its own
    Demo(demo::Args),
    /// The supervisor's ingress against HAProxy
    Bench(bench::Args),
    /// Runs a command in a guest of a lab that was kept
    InGuest(lab::guest::InGuest),
    #[command(hide = true)]
    Enter(lab::spawn::Args),
}

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("nova-lab: {error:#}");
        ExitCode::FAILURE
    })
}

fn run() -> anyhow::Result<ExitCode> {
    let done = match Cli::parse().command {
        Command::Agent(args) => programs::agent::run(args),
        Command::App(args) => programs::app::run(args),
        Command::Talk(args) => programs::talk::run(args),
        Command::Probe(args) => programs::probe::run(&args),
        Command::Flood(args) => programs::flood::run(args),
        #[cfg(feature = "host")]
        Command::Host(command) => return host(command),
    };
    done.map(|()| ExitCode::SUCCESS)
}

#[cfg(feature = "host")]
fn host(command: HostCommand) -> anyhow::Result<ExitCode> {
    let done = match command {
        HostCommand::Upstream(args) => programs::upstream::run(args),
        HostCommand::TcpFirst(args) => programs::tcp_first::run(args),
        HostCommand::Dns(args) => programs::dns::run(args),
        HostCommand::Client(args) => programs::client::run(args),
        HostCommand::Demo(args) => return demo::run(&args),
        HostCommand::Bench(args) => bench::run(&args),
        HostCommand::InGuest(args) => return lab::guest::in_guest(&args),
        HostCommand::Enter(args) => lab::spawn::enter(&args),
    };
    done.map(|()| ExitCode::SUCCESS)
}
