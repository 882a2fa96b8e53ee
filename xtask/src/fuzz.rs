//! `cargo xtask fuzz`: builds the targets in `fuzz/` with coverage counters and runs them on libFuzzer.
//!
//! Coverage counters are a pass of LLVM, which the stable compiler has as well: neither a nightly nor cargo-fuzz is needed,
//! only a C++ compiler for libFuzzer itself. What is found goes to `fuzz/artifacts`, what was learnt stays in the cache.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::{places, report};

/// What libFuzzer needs in every crate that it looks into.
const COUNTERS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks";
/// Longest input, in bytes: beyond every limit of the parsers.
const MAX_LEN: usize = 64 * 1024;
/// An input that takes longer is a finding, in seconds.
const TIMEOUT: usize = 10;
/// More memory than this is a finding, in MiB.
const MEMORY: usize = 2048;

/// Arguments of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Targets to run; all without any
    targets: Vec<String>,
    /// Seconds for each target
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Print one JSON array instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize)]
struct Manifest {
    bin: Vec<Bin>,
}

#[derive(Deserialize)]
struct Bin {
    name: String,
}

/// What became of one target.
#[derive(Serialize)]
struct Outcome {
    target: String,
    /// Inputs that were tried.
    runs: u64,
    /// Inputs that are kept because each reaches something new.
    corpus: usize,
    /// The file that holds an input on which it failed.
    finding: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let targets = chosen(&args.targets)?;
    let bins = build(&targets)?;
    let mut outcomes = Vec::new();
    for target in &targets {
        outcomes.push(report::step(&format!("{target}, {} s", args.seconds), || fuzz(&bins, target, args.seconds))?);
    }
    if args.json {
        println!("{}", serde_json::to_string(&outcomes)?);
    } else {
        table(&outcomes);
    }
    Ok(if outcomes.iter().any(|outcome| outcome.finding.is_some()) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn chosen(asked: &[String]) -> anyhow::Result<Vec<String>> {
    let manifest = std::fs::read_to_string(places::root().join("fuzz/Cargo.toml"))?;
    let manifest: Manifest = toml::from_str(&manifest).context("fuzz/Cargo.toml")?;
    let all: Vec<String> = manifest.bin.into_iter().map(|bin| bin.name).collect();
    if let Some(unknown) = asked.iter().find(|name| !all.contains(name)) {
        bail!("there is no target {unknown}; there are {}", all.join(", "));
    }
    Ok(if asked.is_empty() { all } else { asked.to_vec() })
}

/// With `--target`, so that build scripts and macros are built without counters.
fn build(targets: &[String]) -> anyhow::Result<PathBuf> {
    let host = host()?;
    let folder = places::target_dir()?.join("fuzz");
    // What is fuzzed is what is shipped: the same versions of everything.
    std::fs::copy(places::root().join("Cargo.lock"), places::root().join("fuzz/Cargo.lock"))?;
    let mut build = places::cargo();
    build.current_dir(places::root().join("fuzz")).args(["build", "--target", &host]);
    for target in targets {
        build.args(["--bin", target]);
    }
    build.env("CARGO_TARGET_DIR", &folder).env("RUSTFLAGS", COUNTERS).env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    report::command("building the targets (minutes the first time)", &mut build)?;
    Ok(folder.join(host).join("debug"))
}

fn host() -> anyhow::Result<String> {
    let version = report::quiet(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say what it builds for")?.to_owned())
}

fn fuzz(bins: &Path, target: &str, seconds: u64) -> anyhow::Result<Outcome> {
    let corpus = places::cache_dir()?.join("fuzz").join(target);
    let artifacts = places::root().join("fuzz/artifacts").join(target);
    std::fs::create_dir_all(&corpus)?;
    std::fs::create_dir_all(&artifacts)?;
    let before = files(&artifacts)?;
    let mut command = Command::new(bins.join(target));
    command.arg(&corpus).arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-max_len={MAX_LEN}"));
    command.arg(format!("-timeout={TIMEOUT}")).arg(format!("-rss_limit_mb={MEMORY}")).arg("-print_final_stats=1");
    let output = command.output().with_context(|| format!("cannot run {target}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let finding = files(&artifacts)?.into_iter().find(|file| !before.contains(file));
    if !output.status.success() && finding.is_none() {
        bail!("{target} ended with {} and left no input behind:\n{said}", output.status);
    }
    Ok(Outcome { target: target.to_owned(), runs: runs(&said), corpus: files(&corpus)?.len(), finding })
}

fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

fn runs(said: &str) -> u64 {
    let stat = said.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    stat.and_then(|number| number.trim().parse().ok()).unwrap_or_default()
}

fn table(outcomes: &[Outcome]) {
    println!("{:<24} {:>12} {:>8}  finding", "target", "runs", "corpus");
    for outcome in outcomes {
        let finding = outcome.finding.as_ref().map_or("none".to_owned(), |file| {
            let root = places::root();
            file.strip_prefix(&root).unwrap_or(file).display().to_string()
        });
        println!("{:<24} {:>12} {:>8}  {finding}", outcome.target, outcome.runs, outcome.corpus);
    }
}
