//! A test binary whose cases share an expensive stage and may need tools: it prints and counts like the standard harness,
//! and names what it skips.
//!
//! `NOVA_TIER` limits the tier. `NOVA_CI` turns a skip into a failure: there every tool is installed.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// Why a tier cannot run on this machine, or `None`.
fn missing(tier: u8) -> Option<String> {
    let no = |what: &str| Some(what.to_owned());
    match tier {
        1 if !crate::lab::isolate::can_isolate() => no("this machine forbids user namespaces to users"),
        2 | 3 if !nix::unistd::geteuid().is_root() => no("needs root"),
        3 if !Path::new("/usr/bin/qemu-system-x86_64").exists() => no("needs QEMU: run cargo xtask setup"),
        _ => None,
    }
}

/// The cases of one test binary.
pub struct Suite {
    filters: Vec<String>,
    list: bool,
    highest_tier: u8,
    strict: bool,
    start: Instant,
    passed: usize,
    failed: Vec<String>,
    skipped: usize,
    filtered: usize,
}

impl Suite {
    /// Reads the command line and the environment.
    #[must_use]
    pub fn from_env() -> Self {
        let mut filters: Vec<String> = std::env::args().skip(1).collect();
        let list = filters.iter().any(|word| word == "--list");
        filters.retain(|word| !word.starts_with("--"));
        let tier = std::env::var("NOVA_TIER").ok().and_then(|tier| tier.parse().ok());
        Self {
            filters,
            list,
            highest_tier: tier.unwrap_or(u8::MAX),
            strict: std::env::var_os("NOVA_CI").is_some(),
            start: Instant::now(),
            passed: 0,
            failed: Vec::new(),
            skipped: 0,
            filtered: 0,
        }
    }

    /// Whether any of these cases is to run; those that are not are counted. Ask before an expensive stage is set.
    pub fn wants(&mut self, tier: u8, names: &[String]) -> bool {
        let chosen = |name: &&String| self.filters.is_empty() || self.filters.iter().any(|part| name.contains(part));
        let wanted: Vec<String> = names.iter().filter(chosen).cloned().collect();
        self.filtered += names.len() - wanted.len();
        if self.list {
            wanted.iter().for_each(|name| println!("{name}: test"));
            return false;
        }
        if tier > self.highest_tier {
            self.filtered += wanted.len();
            return false;
        }
        let Some(reason) = missing(tier) else { return !wanted.is_empty() };
        for name in wanted {
            if self.strict {
                self.result(&name, Err(anyhow::anyhow!("skipped where nothing may be skipped: {reason}")));
            } else {
                println!("test {name} ... ignored, {reason}");
                self.skipped += 1;
            }
        }
        false
    }

    /// Runs one case.
    pub fn case(&mut self, name: &str, tier: u8, action: impl FnOnce() -> anyhow::Result<()>) {
        if self.wants(tier, &[name.to_owned()]) {
            let result = action();
            self.result(name, result);
        }
    }

    /// Counts and prints one result.
    pub fn result(&mut self, name: &str, result: anyhow::Result<()>) {
        match result {
            Ok(()) => {
                println!("test {name} ... ok");
                self.passed += 1;
            }
            Err(error) => {
                println!("test {name} ... FAILED\n{error:#}");
                self.failed.push(name.to_owned());
            }
        }
    }

    /// Prints the counts, in the form that `cargo xtask test` adds up.
    #[must_use]
    pub fn finish(self) -> ExitCode {
        if self.list {
            return ExitCode::SUCCESS;
        }
        if !self.failed.is_empty() {
            println!("\nfailures:\n    {}", self.failed.join("\n    "));
        }
        println!(
            "\ntest result: {}. {} passed; {} failed; {} ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
            if self.failed.is_empty() { "ok" } else { "FAILED" },
            self.passed,
            self.failed.len(),
            self.skipped,
            self.filtered,
            self.start.elapsed().as_secs_f64()
        );
        if self.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
