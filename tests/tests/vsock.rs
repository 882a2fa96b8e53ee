//! The guest link over AF_VSOCK, in a virtual machine of its own: no test ever opens AF_VSOCK on the machine it runs on.
//!
//! ```text
//! build nova-init, nova-relay, nova-supervisor, nova-vsock-check (static) -> image -> QEMU, emulated -> serial log -> one case a check
//! ```
//!
//! What the checks do stands in `src/vsock_check`. Each has its case here, by name: a check that was not run fails.

#[path = "vsock/machine.rs"]
mod machine;
#[path = "vsock/parts.rs"]
mod parts;

use std::process::ExitCode;
use std::time::Instant;

use machine::Found;
use parts::Unavailable;

/// Every check, by name.
fn cases() -> Vec<&'static str> {
    vec![
        // covers: A3b
        case("the supervisor's port can be taken only once"),
        // covers: A3b, A4a
        case("the relay's presence arrives as the peer's CID"),
        // covers: A3b, A4a
        case("a proxy connection arrives as the peer's CID and keeps half-close"),
        // covers: A3b, A4a
        case("a dependency connection names what it wants, not who wants it"),
        // covers: A3b, A3c
        case("a hello that names another workload is still the peer's"),
        // covers: A3b, A3c
        case("another endpoint's boot token is refused as the peer's"),
        // covers: A3b, A3c
        case("a hello that only the host may send is refused"),
        // covers: A3b, A12b
        case("bytes that are no hello are refused"),
        // covers: A3b, A12b
        case("a guest that says nothing is closed after two seconds"),
        // covers: A3b, A3c
        case("dialling the host by its other CID changes nobody's identity"),
        // covers: A3b, A3c
        case("a process cannot choose the CID that it dials from"),
        // covers: A3b, A4a
        case("a port that the guest does not declare is absent"),
        // covers: A3b, A4a
        case("a port on which the app does not listen is refused"),
        // covers: A3b, A4a
        case("a wrong boot token is denied"),
        // covers: A3b, A4a
        case("a relay closes a peer that is not its host"),
        // covers: A3b
        case("a port on which no relay listens fails at once"),
        // covers: A3b
        case("a CID that no guest has fails at once"),
        // covers: A3b, A4a
        case("the server speaks first and 8 MiB go each way, then the end"),
        // covers: A3b, A4a
        case("the app ends its side first and still gets everything"),
        // covers: A3b, A4a
        case("200 connections at once are all served"),
        // covers: A3b
        case("the whole supervisor closes a CID that no endpoint has"),
    ]
}

fn main() -> ExitCode {
    // As libtest: words are parts of names, and `--list` only lists.
    let words: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let cases: Vec<&str> = cases().into_iter().filter(|name| wanted(name)).collect();
    if words.iter().any(|word| word == "--list") {
        cases.iter().for_each(|name| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    run(&cases)
}

fn run(cases: &[&str]) -> ExitCode {
    println!("\nrunning {} tests", cases.len());
    let start = Instant::now();
    let found = if cases.is_empty() { Ok(Found::default()) } else { parts::find().map(|parts| machine::run(&parts)) };
    let passed = match &found {
        Ok(found) => cases.iter().filter(|name| holds(found, name)).count(),
        Err(Unavailable::Skip(why)) => {
            // `cargo xtask test` takes one of the passed for each of these lines, as libtest has no other way.
            cases.iter().for_each(|name| println!("SKIPPED: {name}: {why}"));
            cases.len()
        }
        Err(Unavailable::Fail(why)) => {
            println!("{why}");
            0
        }
    };
    if let Ok(found) = &found {
        found.explain(passed < cases.len());
    }
    let failed = cases.len() - passed;
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out; finished in {:.2}s\n",
        start.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn holds(found: &Found, name: &str) -> bool {
    let (ok, text) = match found.checks.get(name) {
        Some(check) if check.ok => (true, format!("ok ({}, {} ms)", check.detail, check.ms)),
        Some(check) => (false, format!("FAILED: {}", check.detail)),
        None => (false, "FAILED: the machine did not run it".to_owned()),
    };
    println!("test {name} ... {text}");
    ok
}

/// Marks a name for `cargo xtask coverage`.
fn case(name: &'static str) -> &'static str {
    name
}
