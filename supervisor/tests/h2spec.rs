//! The peer suite of HTTP/2 against a port of the real supervisor. h2spec is the one that `cargo xtask setup` builds; without
//! it the test says SKIPPED, except in CI, where it fails.

mod data;

use std::path::{Path, PathBuf};
use std::process::Command;

use data::{Node, Plan, RULES};

const VERSION: &str = "2.2.1+incompatible";
const PLAIN: u16 = 8080;

/// The program, from `NOVA_H2SPEC` or from where `cargo xtask setup` puts it. `None` means that the test is skipped.
fn program() -> Option<PathBuf> {
    let cached = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .map(|target| target.join("nova-cache/tools").join(format!("h2spec-{VERSION}")).join("h2spec"));
    let named = std::env::var_os("NOVA_H2SPEC").map(PathBuf::from);
    let found = named.or(cached).filter(|path| path.is_file());
    if found.is_none() {
        let in_ci = ["CI", "NOVA_CI"].iter().any(|name| std::env::var_os(name).is_some());
        assert!(!in_ci, "no h2spec {VERSION}: run cargo xtask setup");
        println!("SKIPPED: no h2spec {VERSION}; cargo xtask setup builds it");
    }
    found
}

// covers: C12a
#[test]
fn h2spec_finds_no_fault_that_is_not_explained() {
    let Some(h2spec) = program() else { return };
    let plan = Plan::default();
    let https = "      - {name: https, port: 8443, target_port: 18080, mode: mtls, protocol: http}\n      - {name: raw";
    let plain = "      - {name: plain, port: 8080, target_port: 18080, mode: tcp, protocol: http}\n";
    let node = Node::with(Plan {
        endpoints: plan.endpoints.replacen(https, &format!("{plain}{https}"), 1),
        rules: format!(
            "{RULES}  - id: h2spec-to-a-plain
    tenant: t
    from: {{cidr: 127.0.0.1/32}}
    to: {{workload: service-a, port: plain}}
    http: {{methods: [GET, HEAD, POST], paths: ['/**']}}
"
        ),
        ..plan
    });
    let output = Command::new(h2spec)
        .args(["--timeout", "5", "--strict", "--port", &PLAIN.to_string(), "--host", &node.ip(21)])
        .output()
        .expect("h2spec runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let failures: Vec<&str> = text.lines().filter(|line| line.contains('\u{d7}')).map(str::trim).collect();
    let totals = text.lines().rev().find(|line| line.contains(" passed, ")).unwrap_or_default();
    assert!(totals.contains(" tests, ") && !totals.contains(" 0 passed"), "h2spec did not run:\n{text}");
    let unexplained: Vec<_> =
        failures.iter().filter(|failure| !EXPLAINED.iter().any(|(name, _)| failure.contains(name))).collect();
    assert!(unexplained.is_empty(), "{unexplained:#?}\n{text}");
}

/// Cases that fail, and why that is right.
const EXPLAINED: &[(&str, &str)] = &[(
    "2: Sends invalid connection preface",
    "the port speaks both versions: what is no preface is HTTP/1, answered 400 in HTTP/1.1 and closed",
)];
