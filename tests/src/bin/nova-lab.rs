//! One binary that plays every part of the lab; see the sub-commands. Built static and without feature `host` for guests.

use clap::{Parser, Subcommand};
use nova_tests::programs;

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
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Agent(args) => programs::agent::run(args),
        Command::App(args) => programs::app::run(args),
        Command::Talk(args) => programs::talk::run(args),
        Command::Probe(args) => programs::probe::run(&args),
        Command::Flood(args) => programs::flood::run(args),
        #[cfg(feature = "host")]
        Command::Host(command) => host(command),
    }
}

#[cfg(feature = "host")]
fn host(command: HostCommand) -> anyhow::Result<()> {
    match command {
        HostCommand::Upstream(args) => programs::upstream::run(args),
        HostCommand::TcpFirst(args) => programs::tcp_first::run(args),
        HostCommand::Dns(args) => programs::dns::run(args),
        HostCommand::Client(args) => programs::client::run(args),
    }
}
