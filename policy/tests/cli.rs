//! The command line from outside: what operators and other programs rely on.

#![allow(clippy::panic, reason = "a test that cannot go on")]

mod cli_support;

use std::path::Path;
use std::process::{Command, Output};

use cli_support::{build, code, data, folder, json, run, verify, words};
use serde_json::Value;

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
    let newline = run(dir, &["keygen", "-o", "o.pem", "--public", "o.json", "--key-id", "a\nb"]);
    assert!(code(&newline) == Some(1) && !dir.join("o.pem").exists(), "{newline:?}");
    for command in ["decide", "explain"] {
        let pair = ["--pair", "x -> service-a:443 GET /v1/orders/42"];
        let both = run(dir, &[&[command, "--json", "--bundle", "b.tar.gz"][..], &pair].concat());
        assert_eq!(json(&both).as_array().map(Vec::len), Some(2), "one document for both ends: {both:?}");
    }
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

// covers: B9a
#[test]
fn a_list_of_what_is_in_use_that_says_nothing_is_refused() {
    let dir = change();
    let dir = dir.path();
    let event = r#"{"decision_id":"d","input":{"direction":"egress","phase":"connect","source":"x","dest_host":"service-a","dest_port":443},"result":{"allow":true}}"#;
    for (text, want) in [
        ("", "is empty"),
        ("\n\n", "is empty"),
        // An event of the log in OPA's form has another layout: it must not count as a call that nobody makes.
        (event, "line 1: neither an audit line"),
    ] {
        std::fs::write(dir.join("in-use"), text).expect("written");
        let got = words(dir, "gate --live live.tar.gz --next calm.tar.gz --keys bundle-keys.json --in-use in-use");
        assert!(code(&got) == Some(1) && String::from_utf8_lossy(&got.stderr).contains(want), "{text:?}: {got:?}");
    }
}

// covers: B4c
#[test]
fn keygen_never_takes_a_key_away_unasked() {
    let dir = folder();
    let dir = dir.path();
    let before = std::fs::read_to_string(dir.join("keys.json")).expect("keys");
    for (args, want) in [
        ("keygen -o other.pem --public keys.json --key-id k1", "would become unverifiable"),
        ("keygen -o key.pem --public keys.json --key-id k2", "would become unverifiable"),
        ("keygen -o both.pem --public both.pem --key-id k2", "cannot hold both keys"),
        ("keygen -o both.pem --public ./both.pem --key-id k2", "cannot hold both keys"),
        ("keygen -o other.pem --public more.json --key-id=", "--key-id k1"),
        ("keygen -o other.pem --public more.json --key-id=k1\u{e9}", "--key-id k1"),
    ] {
        let got = words(dir, args);
        assert!(code(&got) == Some(1) && String::from_utf8_lossy(&got.stderr).contains(want), "{args}: {got:?}");
        assert!(!dir.join("other.pem").exists() && !dir.join("both.pem").exists(), "{args}");
    }
    assert_eq!(std::fs::read_to_string(dir.join("keys.json")).expect("keys"), before);
    let forced = words(dir, "keygen -o other.pem --public keys.json --key-id k1 --force");
    assert_eq!(code(&forced), Some(0), "{forced:?}");
}

// covers: A12
#[test]
fn a_misspelt_node_and_a_serial_without_a_successor_do_not_pass_in_silence() {
    let dir = folder();
    let dir = dir.path();
    let build = |node: &str, more: &str| {
        let args = format!(
            "bundle build --rules rules.yaml --workloads endpoints.yaml --key key.pem --key-id k1 -o n.tar.gz --node={node}{more}"
        );
        words(dir, &args)
    };
    for (node, more, want) in [
        ("", "", "node.id of the supervisor"),
        ("Node_1", "", "node.id of the supervisor"),
        ("node-1", " --serial 18446744073709551615", "leaves no room"),
    ] {
        let got = build(node, more);
        assert!(code(&got) == Some(1) && String::from_utf8_lossy(&got.stderr).contains(want), "{node}: {got:?}");
        assert!(!dir.join("n.tar.gz").exists());
    }
    let misspelt = build("nod-1", "");
    assert_eq!(code(&misspelt), Some(0), "a node may be empty");
    assert!(String::from_utf8_lossy(&misspelt.stderr).contains("no workload on node nod-1"), "{misspelt:?}");
    assert!(build("node-1", "").stderr.is_empty());
}

/// A bundle for node-1 as `name`, of the folder's rules with one text replaced, and signed by `key`.
fn publish(dir: &Path, name: &str, key: &str, serial: u64, (from, to): (&str, &str)) {
    let rules = std::fs::read_to_string(dir.join("rules.yaml")).expect("the rules");
    assert!(rules.contains(from), "{from:?}");
    std::fs::write(dir.join("next.yaml"), rules.replace(from, to)).expect("written");
    let args = format!(
        "bundle build --rules next.yaml --workloads endpoints.yaml --node node-1 --key {key}.pem --key-id {key} --serial {serial} -o {name}"
    );
    let built = words(dir, &args);
    assert_eq!(code(&built), Some(0), "{built:?}");
}

const SAME: (&str, &str) = ("x-to-a", "x-to-a");
const READS_ONE_MORE: (&str, &str) = ("paths: [\"/v1/charges\"]", "paths: [\"/v1/charges\", \"/v1/refunds\"]");
const DELETES: (&str, &str) = ("methods: [GET, POST]", "methods: [GET, POST, DELETE]");

/// A folder with `live` (serial 5), what may replace it, and three keys: `author`, who signs bundles, `boss`, who
/// approves, and `guest`, who does neither.
fn change() -> tempfile::TempDir {
    let dir = folder();
    let at = dir.path();
    for (key, public) in [("author", "bundle-keys.json"), ("boss", "approvers.json"), ("guest", "guests.json")] {
        let made = words(at, &format!("keygen -o {key}.pem --public {public} --key-id {key}"));
        assert_eq!(code(&made), Some(0), "{made:?}");
    }
    publish(at, "live.tar.gz", "author", 5, SAME);
    publish(at, "calm.tar.gz", "author", 6, READS_ONE_MORE);
    publish(at, "held.tar.gz", "author", 7, DELETES);
    dir
}

fn gate(dir: &Path, live: &str, next: &str, more: &str) -> Output {
    words(dir, &format!("gate --json --live {live}.tar.gz --next {next}.tar.gz {more}"))
}

fn approve(dir: &Path, live: &str, next: &str, more: &str) -> Output {
    words(dir, &format!("approve --live {live}.tar.gz --next {next}.tar.gz -o approval.json {more}"))
}

const KEYS: &str = "--keys bundle-keys.json";
const BOSS: &str = "--keys bundle-keys.json --key boss.pem --key-id boss";
const APPROVED: &str = "--keys bundle-keys.json --approval approval.json --approvers approvers.json";

// covers: B9a, B9d
#[test]
fn gate_exits_3_on_a_risk_and_0_on_what_publishes() {
    let dir = change();
    let dir = dir.path();
    let held = gate(dir, "live", "held", KEYS);
    assert_eq!((code(&held), json(&held)["verdict"].as_str()), (Some(3), Some("held")), "{held:?}");
    assert_eq!(json(&held)["risks"][0]["kind"], "new_write_method");
    let calm = gate(dir, "live", "calm", KEYS);
    assert_eq!((code(&calm), json(&calm)["verdict"].as_str()), (Some(0), Some("publish")), "{calm:?}");
    assert_eq!((&json(&calm)["approved_by"], &json(&calm)["verified"]), (&"auto".into(), &true.into()));
    let text = words(dir, "gate --live live.tar.gz --next held.tar.gz --keys bundle-keys.json");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.starts_with("HELD: ") && text.contains("after:  DELETE, GET, POST"), "{text}");
    // What is no pair of bundles in order is refused.
    for (live, next, more, want) in [
        ("held", "live", KEYS, "older_serial"),
        ("live", "held", "--keys guests.json", "unknown_key"),
        ("live", "held", "--keys bundle-keys.json --key-id guest", "unknown_key"),
    ] {
        let got = gate(dir, live, next, more);
        assert_eq!((code(&got), json(&got)["reason"].as_str()), (Some(2), Some(want)), "{got:?}");
    }
}

// covers: B9d
#[test]
fn nothing_is_approved_without_checked_signatures() {
    let dir = change();
    let dir = dir.path();
    let refused = approve(dir, "live", "held", "--key boss.pem --key-id boss");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(code(&refused), Some(1), "{text}");
    assert!(text.contains("add --keys FILE") && !dir.join("approval.json").exists(), "{text}");
    assert_eq!(code(&approve(dir, "live", "held", BOSS)), Some(0));
    let refused = gate(dir, "live", "held", "--approval approval.json --approvers approvers.json");
    assert_eq!(code(&refused), Some(1), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("add --keys FILE"), "{refused:?}");
    // With keys that do not know the author, neither.
    for got in [
        approve(dir, "live", "held", "--keys guests.json --key boss.pem --key-id boss"),
        gate(dir, "live", "held", "--keys guests.json --approval approval.json --approvers approvers.json"),
    ] {
        assert_eq!((code(&got), json(&got)["reason"].as_str()), (Some(2), Some("unknown_key")), "{got:?}");
    }
}

// covers: B9c, B9d (attack T7)
#[test]
fn an_approval_is_somebody_elses_and_counts_for_one_change() {
    let dir = change();
    let dir = dir.path();
    // The author, under his own and under another name.
    for id in ["author", "boss"] {
        let got = approve(dir, "live", "held", &format!("{KEYS} --key author.pem --key-id {id}"));
        assert_eq!((code(&got), json(&got)["reason"].as_str()), (Some(2), Some("author")), "{got:?}");
    }
    let got = approve(dir, "live", "calm", BOSS);
    assert_eq!((code(&got), json(&got)["reason"].as_str()), (Some(2), Some("nothing_held")), "{got:?}");
    assert!(!dir.join("approval.json").exists());
    assert_eq!(code(&approve(dir, "live", "held", BOSS)), Some(0));
    let good = gate(dir, "live", "held", APPROVED);
    assert_eq!((code(&good), json(&good)["approved_by"].as_str()), (Some(0), Some("boss")), "{good:?}");
    // Live moves on, or another bundle comes: it counts no more.
    publish(dir, "moved.tar.gz", "author", 6, SAME);
    publish(dir, "other.tar.gz", "author", 8, DELETES);
    for (live, next, approvers, want) in [
        ("moved", "held", "approvers", "stale"),
        ("live", "other", "approvers", "other_bundle"),
        ("live", "held", "guests", "unknown_approver"),
        ("live", "held", "bundle-keys", "unknown_approver"),
    ] {
        let more = format!("{KEYS} --approval approval.json --approvers {approvers}.json");
        let got = gate(dir, live, next, &more);
        assert_eq!((code(&got), json(&got)["approval_refused"]["reason"].as_str()), (Some(3), Some(want)), "{got:?}");
    }
    std::fs::write(dir.join("approval.json"), "{}").expect("written");
    let got = gate(dir, "live", "held", APPROVED);
    assert_eq!((code(&got), json(&got)["approval_refused"]["reason"].as_str()), (Some(3), Some("bad_form")), "{got:?}");
}

// covers: B4e
#[test]
fn bundle_verify_gives_the_vectors_their_codes_by_exit_code_and_json() {
    let vectors = data("opa-bundle-vectors");
    let dir = tempfile::tempdir().expect("a folder");
    let cases = std::fs::read_to_string(vectors.join("cases.json")).expect("cases");
    let cases: Vec<Value> = serde_json::from_str(&cases).expect("JSON");
    assert!(cases.len() > 25, "{}", cases.len());
    for case in &cases {
        let text = |name: &str| case[name].as_str().unwrap_or_else(|| panic!("{name}: {case}"));
        std::fs::write(dir.path().join("keys.json"), case["keys"].to_string()).expect("written");
        let file = vectors.join(text("bundle")).display().to_string();
        let keys = ["--keys", "keys.json", "--key-id", text("keyid")];
        let when = ["--scope", text("scope"), "--now", "1800000000"];
        let got = run(dir.path(), &[&["bundle", "verify", &file][..], &keys, &when].concat());
        let answer = json(&got);
        if case["recommended_accept"] == true {
            assert_eq!((code(&got), &answer["accepted"]), (Some(0), &true.into()), "{}: {got:?}", text("name"));
        } else {
            assert_eq!((code(&got), &answer["accepted"]), (Some(2), &false.into()), "{}: {got:?}", text("name"));
            assert!(answer["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{}: {got:?}", text("name"));
        }
    }
}

// covers: B11e
#[test]
fn eval_reads_its_input_from_an_argument_a_file_and_standard_input() {
    use std::io::Write;
    use std::process::Stdio;

    let dir = folder();
    let dir = dir.path();
    let input =
        r#"{"direction":"egress","phase":"opaque","source":"service-a","dest_host":"db.t.nova","dest_port":5432}"#;
    std::fs::write(dir.join("input.json"), input).expect("written");
    for given in [input, "input.json"] {
        let got = run(dir, &["eval", "--bundle", "b.tar.gz", "--input", given]);
        assert_eq!((code(&got), json(&got)["rule_id"].as_str()), (Some(0), Some("a-to-db")), "{got:?}");
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_nova-policy"))
        .current_dir(dir)
        .args(["eval", "--bundle", "b.tar.gz", "--input", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let asked = input.replace("db.t.nova", "elsewhere.t.nova");
    child.stdin.take().expect("its input").write_all(asked.as_bytes()).expect("written");
    let got = child.wait_with_output().expect("it ends");
    assert_eq!((code(&got), json(&got)["reason"].as_str()), (Some(2), Some("no_grant")), "{got:?}");
    for bad in ["{}", "nothing.json", r#"{"direction":"sideways"}"#] {
        let got = run(dir, &["eval", "--bundle", "b.tar.gz", "--input", bad]);
        assert_eq!(code(&got), Some(1), "{bad}: {got:?}");
    }
}

// covers: B11e
#[test]
fn path_prints_the_canonical_path_or_the_refusal_and_its_code() {
    let dir = tempfile::tempdir().expect("a folder");
    for (target, want) in [
        ("/", Ok("/")),
        ("/v1/%6frders?x=1", Ok("/v1/orders?x=1")),
        ("/a%c3%a9", Ok("/a%C3%A9")),
        ("", Err("not_origin_form")),
        ("*", Err("not_origin_form")),
        ("/v1/orders/%2e%2e/admin", Err("dot_segment")),
        ("/a%2fb", Ok("/a%2Fb")),
        ("/a%5cb", Err("escaped_separator")),
        ("/a%2f..", Err("dot_segment")),
        ("/a%252e", Err("double_escape")),
        ("/a//b", Err("empty_segment")),
        ("/a b", Err("forbidden_byte")),
        ("/a?b=1&_method=DELETE", Err("method_override")),
    ] {
        let got = run(dir.path(), &["path", target]);
        let text = String::from_utf8_lossy(&got.stdout).trim().to_owned();
        match want {
            Ok(path) => assert_eq!((code(&got), text.as_str()), (Some(0), path), "{target}"),
            Err(reason) => {
                assert_eq!((code(&got), json(&got)["reason"].as_str()), (Some(2), Some(reason)), "{target}: {got:?}");
            }
        }
    }
}
