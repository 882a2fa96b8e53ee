//! `cargo xtask demo`: builds, then hands over to the lab, which plays the scenario and checks it from outside.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::bail;

use crate::stage::{self, Guest};

/// Arguments of `cargo xtask demo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What the guests are: microVMs (needs root), or processes (needs nothing)
    #[arg(long, value_enum, default_value = "microvm")]
    guest: Guest,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// Leave the node up and print the commands to try it by hand
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.guest == Guest::Microvm && !nix::unistd::geteuid().is_root() {
        bail!("microVM guests need root; without root try: cargo xtask demo --guest process");
    }
    let stage = stage::prepare(args.guest)?;
    let mut demo = Command::new(stage.host_bins.join("nova-lab"));
    demo.args(["demo", "--guest", args.guest.name(), "--stage", &serde_json::to_string(&stage)?]);
    demo.args(args.json.then_some("--json")).args(args.keep.then_some("--keep"));
    // Replaced by the lab, so that signals reach what has to clean up.
    Err(demo.exec().into())
}
