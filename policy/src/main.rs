//! `nova-policy`: checks rules, compiles and signs bundles, looks into them and explains decisions.
//!
//! Exit codes: 0 done or allowed, 1 an error, 2 refused (a bundle, or a decision that denies), 3 mistakes in the files.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("nova-policy: {error:#}");
            ExitCode::FAILURE
        }
    }
}
