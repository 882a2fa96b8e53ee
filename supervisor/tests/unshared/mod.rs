//! A test that needs a network of its own runs itself again in fresh user and network namespaces.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of it")]

use std::process::{Command, Output};

/// Set in the copy of the test that runs inside, to the test's name.
pub const INSIDE: &str = "NOVA_TEST_INSIDE";

/// Runs the rest of the test in fresh user and network namespaces; `false` in the copy that only started it. `test` is the
/// whole name, modules included.
pub fn inside(test: &str) -> bool {
    inside_with(test, "true")
}

/// As [`inside`], where a shell first does `prepare`.
pub fn inside_with(test: &str, prepare: &str) -> bool {
    if std::env::var(INSIDE).as_deref() == Ok(test) {
        return true;
    }
    let prepared = format!("{prepare} && exec unshare -Urn -- \"$@\"");
    let probe = run("sh", &["-c", &prepared, "sh", "true"]);
    if !probe.status.success() {
        let why = String::from_utf8_lossy(&probe.stderr);
        assert!(std::env::var_os("NOVA_CI").is_none(), "no user and network namespaces: {why}");
        println!("SKIPPED: {test}: no user and network namespaces: {why}");
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

/// The same, with the loopback interface up.
pub fn inside_with_loopback(test: &str) -> bool {
    let is_inside = inside(test);
    if is_inside {
        ip("link set lo up");
    }
    is_inside
}

/// Runs `ip` in the namespace.
pub fn ip(args: &str) {
    let output = run("ip", &args.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a program to its end.
pub fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}
