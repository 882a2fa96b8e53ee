//! Builds what the lab runs.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;
use serde::Serialize;

use crate::setup::{self, Need};
use crate::{places, report};

/// Packages whose binaries run on the host.
const HOST_PACKAGES: [&str; 5] = ["nova-supervisor", "nova-policy", "nova-relay", "nova-novalet", "nova-tests"];
/// Binaries that run in virtual machines, built static.
const GUEST_BINARIES: [&str; 3] = ["nova-init", "nova-relay", "nova-lab"];

/// Arguments of `cargo xtask stage`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What the guests will be
    #[arg(long, value_enum, default_value = "process")]
    guest: Guest,
}

/// What a guest is.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Guest {
    /// QEMU, without a network device
    Microvm,
    /// Processes in namespaces, without root
    Process,
}

impl Guest {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Microvm => "microvm",
            Self::Process => "process",
        }
    }
}

/// What the lab needs to know. `nova-lab` reads it as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Stage {
    /// Folder of the binaries that run on the host.
    pub(crate) host_bins: PathBuf,
    /// Folder of the static binaries.
    pub(crate) guest_bins: PathBuf,
    /// What virtual machines need besides; absent for process guests.
    #[serde(flatten)]
    pub(crate) vm: Option<setup::VmTools>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stage = prepare(args.guest)?;
    println!("{}", serde_json::to_string(&stage)?);
    Ok(ExitCode::SUCCESS)
}

/// Installs and builds everything for guests of that kind.
pub(crate) fn prepare(guest: Guest) -> anyhow::Result<Stage> {
    let needs = match guest {
        Guest::Microvm => vec![Need::Lab, Need::Microvm],
        Guest::Process => vec![Need::Lab],
    };
    setup::install(&needs)?;
    let target = places::target_dir()?;
    build_host()?;
    let guest_bins = match guest {
        Guest::Microvm => build_static(&target)?,
        Guest::Process => target.join("debug"),
    };
    let vm = if guest == Guest::Microvm { Some(setup::vm_tools()?) } else { None };
    Ok(Stage { host_bins: target.join("debug"), guest_bins, vm })
}

fn build_host() -> anyhow::Result<()> {
    let mut build = places::cargo();
    build.args(["build", "--bins"]).args(HOST_PACKAGES.iter().flat_map(|package| ["-p", package]));
    report::command("building the supervisor, novalet-ref and the lab", &mut build)?;
    Ok(())
}

/// A virtual machine has no libraries, so its binaries carry their own. A target folder of their own keeps the flags from
/// rebuilding everything else.
fn build_static(target: &Path) -> anyhow::Result<PathBuf> {
    let triple = host_triple()?;
    let dir = target.join("static");
    let mut build = places::cargo();
    build.args(["build", "-p", "nova-relay", "-p", "nova-tests", "--no-default-features", "--target", &triple]);
    build.args(GUEST_BINARIES.iter().flat_map(|binary| ["--bin", binary])).arg("--target-dir").arg(&dir);
    build.env("RUSTFLAGS", "-C target-feature=+crt-static");
    report::command("building the static guest binaries", &mut build)?;
    Ok(dir.join(triple).join("debug"))
}

fn host_triple() -> anyhow::Result<String> {
    let text = report::quiet(Command::new(std::env::var("RUSTC").as_deref().unwrap_or("rustc")).arg("-vV"))?;
    let triple = text.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc -vV names no host")?;
    Ok(triple.to_owned())
}
