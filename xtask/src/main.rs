//! The project's own task runner. `cargo xtask demo` is the first thing to try.

mod bench;
mod coverage;
mod demo;
mod deny;
mod envoy;
mod fuzz;
mod go_tool;
mod opa;
mod places;
mod policy_wasm;
mod report;
mod setup;
mod stage;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build, try and check nova-runtime")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the whole scenario for real and print it as a table
    Demo(demo::Args),
    /// Run all tests and end with one line: N passed, N failed, N skipped
    Test(test::Args),
    /// Write docs/coverage.md: which test covers which requirement
    Coverage(coverage::Args),
    /// Measure against peers and write the section of docs/benchmarks.md about it
    Bench(bench::Args),
    /// Run the fuzz targets for a while each, on the stable compiler
    Fuzz(fuzz::Args),
    /// Install what demo, tests and benches need, and say what
    Setup(setup::Args),
    /// Compile the policy's Rego to WebAssembly with real OPA; the result is committed
    PolicyWasm(policy_wasm::Args),
    /// Check licences, sources and advisories of all dependencies (cargo-deny, built once into the cache)
    Deny,
    /// Build the binaries that the lab runs and print where they are, as JSON
    Stage(stage::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Coverage(args) => coverage::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Setup(args) => setup::run(&args),
        Command::PolicyWasm(args) => policy_wasm::run(&args),
        Command::Deny => deny::run(),
        Command::Stage(args) => stage::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
