//! A network of its own: the test runs itself again in a user and network namespace that it makes.

use std::process::{Command, Output};

/// Set in the copy of the test that runs inside the namespace.
const INSIDE: &str = "NOVA_TEST_INSIDE";

pub(crate) fn ip(args: &str) {
    let output = run("ip", &args.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Whether this is the copy of `test` (with its module) in a fresh namespace with loopback; else starts it and says no.
pub(crate) fn inside(test: &str) -> bool {
    inside_with(test, "true")
}

/// As [`inside`], where a shell first does `prepare`.
pub(crate) fn inside_with(test: &str, prepare: &str) -> bool {
    if std::env::var(INSIDE).as_deref() == Ok(test) {
        ip("link set lo up");
        return true;
    }
    let prepared = format!("{prepare} && exec unshare -Urn -- \"$@\"");
    let probe = run("sh", &["-c", &prepared, "sh", "true"]);
    if !probe.status.success() {
        println!("SKIPPED: {test}: {}", String::from_utf8_lossy(&probe.stderr).trim());
        return false;
    }
    let myself = std::env::current_exe().expect("the test binary");
    let output = Command::new("sh")
        .args(["-c", &prepared, "sh"])
        .arg(myself)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, test)
        .output()
        .expect("sh runs");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "inside the namespace:\n{text}");
    false
}

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}
