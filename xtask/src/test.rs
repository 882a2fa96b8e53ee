//! `cargo xtask test`: every suite of the workspace, added up into one line.

use std::io::{BufRead, BufReader};
use std::process::{ExitCode, Stdio};
use std::time::Instant;

use anyhow::Context;

use crate::places;
use crate::stage::{self, Guest};

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Highest tier to run: 0 pure, 1 rootless guests, 2 namespaces as root, 3 microVMs
    #[arg(long, default_value_t = 3)]
    tier: u8,
    /// Passed on to the test binaries, for instance a part of a test's name
    filter: Option<String>,
}

/// How a line of a test starts that says why the test could not run here.
const SKIPPED: &str = "SKIPPED:";

/// What the suites counted.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
struct Count {
    passed: i32,
    failed: i32,
    skipped: i32,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    if args.tier >= 1 {
        // Built here and once, so that no suite waits for it in silence.
        let guest = if args.tier >= 3 && nix::unistd::geteuid().is_root() { Guest::Microvm } else { Guest::Process };
        stage::prepare(guest)?;
    }
    let count = cargo_test(args)?;
    eprintln!("all suites: {:.0} s", start.elapsed().as_secs_f64());
    println!("{} passed, {} failed, {} skipped", count.passed, count.failed, count.skipped);
    Ok(if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn cargo_test(args: &Args) -> anyhow::Result<Count> {
    let mut cargo = places::cargo();
    cargo.args(["test", "--workspace", "--no-fail-fast"]).env("NOVA_TIER", args.tier.to_string());
    if let Some(filter) = &args.filter {
        cargo.arg(filter);
    }
    // The output of tests that passed is where a test says that it was skipped.
    cargo.args(["--", "--show-output"]);
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("cargo test")?;
    let mut count = Count::default();
    let mut quiet = false;
    for line in BufReader::new(child.stdout.take().context("cargo's output")?).lines() {
        let line = line?;
        quiet = match line.as_str() {
            "successes:" => true,
            "failures:" => false,
            other => quiet && !other.starts_with("test result: "),
        };
        if !quiet || line.starts_with(SKIPPED) {
            println!("{line}");
        }
        add(&mut count, &line);
    }
    if !child.wait()?.success() && count.failed == 0 {
        // Something ended without a count: a suite that does not compile or was killed.
        count.failed = 1;
    }
    Ok(count)
}

/// Adds a line like `test result: ok. 5 passed; 0 failed; 1 ignored; ...`, or one that says that a test, which libtest then
/// counts as passed, could not run here.
fn add(count: &mut Count, line: &str) {
    if line.starts_with(SKIPPED) {
        count.skipped += 1;
        // Below zero until the line with its suite's result comes.
        count.passed -= 1;
    }
    let Some((_, numbers)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")) else { return };
    for part in numbers.split("; ") {
        match part.split_once(' ') {
            Some((number, "passed")) => count.passed += number.parse().unwrap_or(0),
            Some((number, "failed")) => count.failed += number.parse().unwrap_or(0),
            Some((number, "ignored")) => count.skipped += number.parse().unwrap_or(0),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: A10
    #[test]
    fn results_of_all_suites_are_added_and_other_lines_are_not() {
        let mut count = Count::default();
        for line in [
            "SKIPPED: no kernel",
            "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test a ... ok",
            "SKIPPED: no qemu",
            "test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s",
        ] {
            add(&mut count, line);
        }
        assert_eq!(count, Count { passed: 5, failed: 3, skipped: 3 });
    }
}
