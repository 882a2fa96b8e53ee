//! The command line from outside: what operators and other programs rely on.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn run(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nova-policy"));
    command.current_dir(dir).args(args).output().expect("the program starts")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| Value::String(format!("{output:?}")))
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// A folder with rules, workloads, a key and a bundle for node-1.
fn folder() -> tempfile::TempDir {
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

fn build(dir: &Path, output: &str) -> Output {
    let args = "bundle build --rules rules.yaml --workloads endpoints.yaml --node node-1 --key key.pem --key-id k1 -o";
    run(dir, &args.split(' ').chain([output]).collect::<Vec<_>>())
}

fn verify(dir: &Path, file: &str, more: &str) -> Output {
    let args = format!("bundle verify {file} --keys keys.json --key-id k1 {more}");
    run(dir, &args.split_whitespace().collect::<Vec<_>>())
}

// covers: A5a
#[test]
fn verify_says_why_with_exit_code_2_and_json() {
    let dir = folder();
    let dir = dir.path();
    let good = verify(dir, "b.tar.gz", "--scope node-1 --self-test");
    assert_eq!((code(&good), &json(&good)["accepted"]), (Some(0), &Value::Bool(true)), "{good:?}");
    let serial = json(&good)["serial"].as_u64().expect("a serial");
    let whole = std::fs::read(dir.join("b.tar.gz")).expect("the bundle");
    std::fs::write(dir.join("cut.tar.gz"), &whole[..whole.len() / 2]).expect("written");
    for (file, more, want) in [
        ("b.tar.gz", "--scope node-2", "scope_mismatch"),
        ("b.tar.gz", "--scope node-1 --now 9999999999", "expired"),
        ("b.tar.gz", "--scope node-1 --now 2099-01-01T00:00:00Z", "expired"),
        ("b.tar.gz", &format!("--scope node-1 --newer-than {serial}"), "older_serial"),
        ("cut.tar.gz", "--scope node-1", "bad_archive"),
    ] {
        let got = verify(dir, file, more);
        assert_eq!((code(&got), json(&got)["reason"].as_str()), (Some(2), Some(want)), "{got:?}");
    }
    // Usage and unreadable files are errors, not refusals.
    for args in ["bundle verify", "bundle verify nothing.tar.gz --keys keys.json", "nonsense"] {
        let got = run(dir, &args.split(' ').collect::<Vec<_>>());
        assert_eq!(code(&got), Some(1), "{got:?}");
    }
}

// covers: A5b, A9
#[test]
fn decide_and_explain_answer_for_people_and_programs() {
    let dir = folder();
    let dir = dir.path();
    let input = r#"{"direction":"egress","phase":"request","source":"x","dest_host":"service-a.t.nova","dest_port":443,"method":"DELETE","path":"/v1/orders/42"}"#;
    let decided = run(dir, &["decide", "--bundle", "b.tar.gz", "--input", input]);
    assert_eq!((code(&decided), json(&decided)["reason"].as_str()), (Some(2), Some("l7_mismatch")), "{decided:?}");
    let allowed = run(dir, &["eval", "--bundle", "b.tar.gz", "--input", &input.replace("DELETE", "GET")]);
    assert_eq!((code(&allowed), json(&allowed)["rule_id"].as_str()), (Some(0), Some("x-to-a")), "{allowed:?}");
    let explained = run(dir, &["explain", "--bundle", "b.tar.gz", "--input", input]);
    let text = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert_eq!(code(&explained), Some(2));
    for want in [
        "DENY  reason=l7_mismatch",
        "rule x-to-a (candidate)",
        "FAIL method",
        "wanted GET, POST  got DELETE",
        "ok   path",
    ] {
        assert!(text.contains(want), "wanted {want:?} in\n{text}");
    }
    let other = input.replace("service-a.t.nova", "b.t.nova");
    let explained = run(dir, &["explain", "--json", "--bundle", "b.tar.gz", "--input", &other]);
    let answer = json(&explained);
    assert_eq!(answer["decision"]["reason"], "no_grant");
    assert_eq!(answer["rules"][0]["tests"][0]["test"], "destination");
    assert_eq!(answer["rules"][0]["tests"][0]["got"], "b.t.nova:443");
}

// covers: A5c, A12
#[test]
fn lint_reports_everything_and_build_changes_nothing() {
    let dir = folder();
    let dir = dir.path();
    let before = std::fs::read(dir.join("b.tar.gz")).expect("the bundle");
    let rules = std::fs::read_to_string(dir.join("rules.yaml")).expect("the rules");
    let rules = rules.replace("port: postgres", "port: mysql").replace("/v1/charges", "/v1/ch*");
    std::fs::write(dir.join("rules.yaml"), rules).expect("written");
    let args = ["lint", "--rules", "rules.yaml", "--workloads", "endpoints.yaml"];
    let linted = run(dir, &args);
    let text = String::from_utf8_lossy(&linted.stdout).into_owned();
    assert_eq!(code(&linted), Some(3), "{text}");
    assert!(text.contains("rules.yaml:17:38: rule a-to-stripe: path") && text.contains("rule a-to-db: to:"), "{text}");
    let linted = run(dir, &[&args[..], &["--json"]].concat());
    assert_eq!(json(&linted)["problems"].as_array().map(Vec::len), Some(2));
    assert_eq!(code(&build(dir, "b.tar.gz")), Some(3));
    assert_eq!(std::fs::read(dir.join("b.tar.gz")).expect("the bundle"), before);
    let names: Vec<_> = std::fs::read_dir(dir).expect("the folder").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names.len(), 6, "nothing is left behind: {names:?}");
}

// covers: A5a
#[test]
fn every_build_has_a_greater_serial_and_keys_are_private() {
    let dir = folder();
    let dir = dir.path();
    let serial = |dir: &Path| json(&verify(dir, "b.tar.gz", "--scope node-1"))["serial"].as_u64().expect("a serial");
    let first = serial(dir);
    assert_eq!(code(&build(dir, "b.tar.gz")), Some(0));
    assert!(serial(dir) > first);
    let again = run(dir, &["keygen", "-o", "key.pem", "--public", "keys.json", "--key-id", "k2"]);
    assert_eq!(code(&again), Some(1), "an existing key is not overwritten");
    let second =
        run(dir, &["keygen", "-o", "k2.pem", "--public", "keys.json", "--key-id", "k2", "--algorithm", "eddsa"]);
    assert_eq!(code(&second), Some(0), "{second:?}");
    assert_eq!(code(&verify(dir, "b.tar.gz", "--scope node-1")), Some(0), "both keys are valid");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(dir.join("key.pem")).expect("the key"));
    assert_eq!(mode & 0o777, 0o600);
    std::process::Command::new("chmod").args(["644", "key.pem"]).current_dir(dir).status().expect("chmod");
    let refused = build(dir, "b.tar.gz");
    assert_eq!(code(&refused), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("chmod 600"), "{refused:?}");
}

#[test]
fn a_directory_can_be_signed_and_a_target_canonicalised() {
    let dir = folder();
    let dir = dir.path();
    std::fs::create_dir_all(dir.join("in/nova")).expect("a folder");
    std::fs::write(dir.join("in/.manifest"), r#"{"revision":"r","roots":["nova"]}"#).expect("written");
    std::fs::write(dir.join("in/data.json"), r#"{"nova":{"a":1.0}}"#).expect("written");
    std::fs::write(dir.join("in/nova/a.rego"), "package nova.a\n").expect("written");
    let signed =
        run(dir, &["bundle", "sign", "in", "--scope", "n", "--key", "key.pem", "--key-id", "k1", "-o", "s.tar.gz"]);
    assert_eq!(code(&signed), Some(0), "{signed:?}");
    assert_eq!(code(&verify(dir, "s.tar.gz", "--scope n")), Some(0));
    let inspected = run(dir, &["bundle", "inspect", "s.tar.gz"]);
    assert_eq!(json(&inspected)["scope"], "n", "{inspected:?}");
    let bad = run(dir, &["path", "/v1/orders/%2e%2e/admin"]);
    assert_eq!((code(&bad), json(&bad)["reason"].as_str()), (Some(2), Some("dot_segment")));
    let good = run(dir, &["path", "/v1/%6frders?x=1"]);
    assert_eq!((code(&good), String::from_utf8_lossy(&good.stdout).trim()), (Some(0), "/v1/orders?x=1"));
}
