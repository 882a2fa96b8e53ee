//! What the tests of the command line share.
#![allow(dead_code, reason = "each test binary uses its own part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A file of the tests' data.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Runs the program in a folder.
pub(crate) fn run(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nova-policy"));
    command.current_dir(dir).args(args).output().expect("the program starts")
}

/// Standard output as JSON.
pub(crate) fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| Value::String(format!("{output:?}")))
}

/// The exit code.
pub(crate) fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// A folder with rules, workloads, a key and a bundle for node-1.
pub(crate) fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for (from, to) in [
        ("decision-rules.yaml", "rules.yaml"),
        ("decision-workloads.yaml", "endpoints.yaml"),
        ("partner-ca.pem", "partner-ca.pem"),
    ] {
        std::fs::copy(data(from), dir.path().join(to)).expect(from);
    }
    let made = run(dir.path(), &["keygen", "-o", "key.pem", "--public", "keys.json", "--key-id", "k1"]);
    assert_eq!(code(&made), Some(0), "{made:?}");
    let built = build(dir.path(), "b.tar.gz");
    assert_eq!(code(&built), Some(0), "{built:?}");
    dir
}

/// Builds the bundle of the folder's rules.
pub(crate) fn build(dir: &Path, output: &str) -> Output {
    let args = "bundle build --rules rules.yaml --workloads endpoints.yaml --node node-1 --key key.pem --key-id k1 -o";
    run(dir, &args.split(' ').chain([output]).collect::<Vec<_>>())
}

/// Verifies a bundle with the folder's keys.
pub(crate) fn verify(dir: &Path, file: &str, more: &str) -> Output {
    let args = format!("bundle verify {file} --keys keys.json --key-id k1 {more}");
    run(dir, &args.split_whitespace().collect::<Vec<_>>())
}

/// Runs words in the folder.
pub(crate) fn words(dir: &Path, text: &str) -> Output {
    run(dir, &text.split_whitespace().collect::<Vec<_>>())
}
