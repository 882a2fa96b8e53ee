//! The operator's socket: who and what is refused, replay and explain, and the commands that ask it.
// covers: A9b

mod bundles_support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bundles_support::{ALSO_B, NODE, Node, ONLY_A, X_DELETES_A, X_READS_A, X_READS_B};
use nova_supervisor::admin::{AdminHandles, AdminSocket, Check, MAX_CLIENTS, MAX_LINE, SocketError, serve};
use nova_supervisor::bundles::BundleFeed;
use nova_supervisor::conn::{Live, Registry};
use serde_json::{Value, json};

/// A node with its socket served by a thread.
struct Served {
    node: Node,
    feed: Arc<BundleFeed>,
    registry: Arc<Registry>,
    audit: PathBuf,
    socket: PathBuf,
    audit_is_writable: Arc<Mutex<bool>>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Served {
    fn start() -> Self {
        // The socket's answers use the real clock, so these bundles must, too.
        let node = Node::at(SystemTime::now());
        let feed = Arc::new(node.feed());
        let registry = Arc::new(Registry::default());
        let audit = node.dir.path().join("audit.jsonl");
        fs::write(&audit, "").expect("written");
        let socket = node.dir.path().join("admin.sock");
        let audit_is_writable = Arc::new(Mutex::new(true));
        let probe = Arc::clone(&audit_is_writable);
        let check = Check {
            name: "audit",
            probe: Box::new(move || {
                let writable = *probe.lock().expect("no panic");
                if writable { Ok(()) } else { Err("free space on the disk of audit.file".to_owned()) }
            }),
        };
        let handles = Arc::new(AdminHandles {
            node: NODE.to_owned(),
            endpoints: Arc::default(),
            policy: Arc::clone(&node.cell),
            feed: Arc::clone(&feed),
            audit_file: audit.clone(),
            connections: Arc::clone(&registry),
            credentials: Arc::default(),
            abilities: Vec::new(),
            checks: vec![check],
            warnings: vec!["the dev identity source is in use".to_owned()],
            watches: Vec::new(),
        });
        let bound = AdminSocket::bind(&socket).expect("bound");
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let until = async { stopped.await.unwrap_or_default() };
            runtime.block_on(serve(&bound, handles, until)).expect("served");
        });
        Self { node, feed, registry, audit, socket, audit_is_writable, stop: Some(stop), thread: Some(thread) }
    }

    /// One question, one answer.
    fn ask(&self, question: &Value) -> Value {
        talk(&self.socket, format!("{question}\n").as_bytes())
    }

    /// Publishes rules under a serial.
    fn publish(&self, serial: u64, rules: &str) {
        self.node.publish(&self.node.bundle(serial, rules));
        self.feed.poll(SystemTime::now());
        assert_eq!(self.node.active(), Some(serial));
    }

    /// A line as the audit sink writes it.
    fn record(&self, id: &str, revision: &str, verdict: &str, reason: &str, input: &str) {
        let mut file = fs::OpenOptions::new().append(true).open(&self.audit).expect("the log");
        let input: Value = serde_json::from_str(input).expect("an input");
        let line = json!({"time": "2026-11-30T01:02:03.000004Z", "kind": "request", "decision_id": id,
            "revision": revision, "verdict": verdict, "reason": reason, "input": input});
        writeln!(file, "{line}").expect("written");
    }

    fn cli(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nova-supervisor"));
        command.args(args).arg("--socket").arg(&self.socket).output().expect("the command runs")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().expect("a thread").join().expect("no panic");
        assert!(!self.socket.exists(), "the socket goes with its supervisor");
    }
}

fn talk(socket: &Path, bytes: &[u8]) -> Value {
    let stream = connect(socket);
    (&stream).write_all(bytes).expect("asked");
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).expect("answered");
    serde_json::from_str(&line).expect("a JSON answer")
}

fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    stream
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn error_text(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

#[test]
fn what_is_not_a_question_is_refused_with_a_remedy() {
    let served = Served::start();
    for bad in ["", "{}", "[]", "nonsense", r#"{"op":"shutdown"}"#, r#"{"op":"explain"}"#, "\u{0}"] {
        let answer = talk(&served.socket, format!("{bad}\n").as_bytes());
        assert_eq!(answer["error"]["code"], "bad_input", "{bad:?}: {answer}");
        assert!(!answer["error"]["remedy"].as_str().unwrap_or_default().is_empty());
    }
}

#[test]
fn a_question_without_end_is_cut_off() {
    let served = Served::start();
    let answer = talk(&served.socket, &vec![b'x'; MAX_LINE + 1]);
    assert_eq!(answer["error"]["code"], "bad_input", "{answer}");
    assert_eq!(served.ask(&json!({"op": "ready"}))["result"]["ready"], false, "others are served");
}

#[test]
fn the_seventeenth_client_is_told_to_come_again() {
    let served = Served::start();
    let clients: Vec<_> = (0..MAX_CLIENTS)
        .map(|_| {
            let stream = connect(&served.socket);
            (&stream).write_all(b"{\"op\":\"policy\"}\n").expect("asked");
            let mut first = [0];
            (&stream).read_exact(&mut first).expect("it is being served");
            stream
        })
        .collect();
    let mut line = String::new();
    BufReader::new(connect(&served.socket)).read_line(&mut line).expect("told");
    assert!(line.contains("\"busy\""), "{line}");
    drop(clients);
}

#[test]
fn the_socket_is_for_its_user_and_group_only() {
    let served = Served::start();
    let meta = fs::symlink_metadata(&served.socket).expect("there");
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.mode() & 0o7777, 0o660);
}

#[test]
fn another_user_is_refused_even_if_the_file_lets_him_in() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: another user needs root");
        return;
    }
    use std::os::unix::process::CommandExt;
    let served = Served::start();
    fs::set_permissions(served.node.dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    fs::set_permissions(&served.socket, fs::Permissions::from_mode(0o666)).expect("chmod");
    // A copy in a place that the other user can run it from.
    let copy = served.node.dir.path().join("nova-supervisor");
    fs::copy(env!("CARGO_BIN_EXE_nova-supervisor"), &copy).expect("copied");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("chmod");
    let mut command = Command::new(&copy);
    let output = command.uid(65_534).gid(65_534).args(["policy", "--socket"]).arg(&served.socket).output();
    let output = output.expect("the command runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(error_text(&output).contains("this user may not ask"), "{}", error_text(&output));
}

#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("chmod");
    let bound = AdminSocket::bind(&dir.path().join("admin.sock"));
    assert!(matches!(bound, Err(SocketError::UnsafeFolder { .. })), "{bound:?}");
    let bound = AdminSocket::bind(&dir.path().join("absent/admin.sock"));
    assert!(matches!(bound, Err(SocketError::Folder { .. })), "{bound:?}");
}

#[test]
fn what_stands_at_the_path_is_not_touched_unless_it_is_our_own_dead_socket() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("admin.sock");
    fs::write(&path, "a file").expect("written");
    assert!(matches!(AdminSocket::bind(&path), Err(SocketError::Occupied { .. })));
    assert_eq!(fs::read(&path).expect("still there"), b"a file");
    fs::remove_file(&path).expect("removed");
    let alive = UnixListener::bind(&path).expect("bound");
    assert!(matches!(AdminSocket::bind(&path), Err(SocketError::InUse(_))));
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(65_534), None).expect("chown");
        assert!(matches!(AdminSocket::bind(&path), Err(SocketError::Occupied { .. })));
        std::os::unix::fs::chown(&path, Some(0), None).expect("chown");
    }
    drop(alive);
    let bound = AdminSocket::bind(&path).expect("a dead socket of ours is replaced");
    assert_eq!(bound.path(), path);
}

#[test]
fn explain_without_a_policy_or_with_a_wrong_input_says_what_to_do() {
    let served = Served::start();
    let input: Value = serde_json::from_str(X_READS_A).expect("an input");
    let answer = served.ask(&json!({"op": "explain", "input": input}));
    assert_eq!(answer["error"]["code"], "no_policy", "{answer}");
    served.publish(5, ONLY_A);
    for input in [json!({}), json!({"direction": "egress"}), json!("x")] {
        let answer = served.ask(&json!({"op": "explain", "input": input}));
        assert_eq!(answer["error"]["code"], "bad_input", "{answer}");
    }
    let output = served.cli(&["explain", "--direction", "egress", "--source", "x"]);
    assert_eq!(output.status.code(), Some(2), "{}", error_text(&output));
    assert!(error_text(&output).contains("dest_host"), "{}", error_text(&output));
}

// covers: A9b
#[test]
fn explain_names_the_test_that_failed() {
    let served = Served::start();
    served.publish(5, ONLY_A);
    let input: Value = serde_json::from_str(X_DELETES_A).expect("an input");
    let result = served.ask(&json!({"op": "explain", "input": input}))["result"].clone();
    assert_eq!((&result["verdict"], &result["reason"]), (&json!("deny"), &json!("l7_mismatch")), "{result}");
    let rule = &result["rules"][0];
    assert_eq!((&rule["rule"], &rule["candidate"]), (&json!("x-to-a"), &json!(true)), "{result}");
    let failed: Vec<_> = rule["tests"].as_array().expect("tests").iter().filter(|test| test["ok"] == false).collect();
    assert_eq!(failed.len(), 1, "{result}");
    assert_eq!((&failed[0]["test"], &failed[0]["got"]), (&json!("method"), &json!("DELETE")), "{result}");
    let decided = served.ask(&json!({"op": "decide", "input": input}))["result"].clone();
    assert_eq!(decided["verdict"], "deny", "{decided}");
}

#[test]
fn explain_takes_a_call_from_options_or_as_json() {
    let served = Served::start();
    served.publish(5, ONLY_A);
    let options = ["explain", "--direction", "egress", "--source", "x", "--dest-host", "service-a.t.nova"];
    let call = [&options[..], &["--dest-port", "443", "--method", "GET", "--path", "/v1/orders/42"]].concat();
    let output = served.cli(&call);
    assert!(text(&output).starts_with("allow (rule x-to-a) on node-1@5\n"), "{}", text(&output));
    assert_eq!(output.status.code(), Some(0));
    let output = served.cli(&["explain", "--json", "--input", X_DELETES_A]);
    let object: Value = serde_json::from_str(&text(&output)).expect("--json prints one object");
    assert_eq!(object["verdict"], "deny");
    let output = served.cli(&["explain", "--input", "nonsense"]);
    assert_eq!(output.status.code(), Some(2));
}

/// A pair as people write it: both ends live here, so each is asked and may refuse.
// covers: B11c
// covers: B11f
#[test]
fn a_pair_is_explained_at_both_ends_on_todays_and_on_earlier_rules() {
    let served = Served::start();
    let read_b = "x -> b GET /v1/things";
    let answer = served.ask(&json!({"op": "explain_pair", "pair": read_b}));
    assert_eq!(answer["error"]["code"], "no_policy", "{answer}");
    served.publish(5, ONLY_A);
    served.publish(6, ALSO_B);
    for bad in ["x b", "x -> ", "-> b", "x -> b GET ../y", "x -> b GET"] {
        let answer = served.ask(&json!({"op": "explain_pair", "pair": bad}));
        assert_eq!(answer["error"]["code"], "bad_input", "{bad}: {answer}");
    }
    let answer = served.ask(&json!({"op": "explain_pair", "pair": read_b, "revision": "node-1@1"}));
    assert_eq!(answer["error"]["code"], "not_found", "{answer}");

    let ends = served.ask(&json!({"op": "explain_pair", "pair": read_b}))["result"].clone();
    let ends = ends.as_array().expect("both ends");
    let directions: Vec<_> = ends.iter().map(|end| end["input"]["direction"].as_str().expect("a direction")).collect();
    assert_eq!(directions, ["egress", "ingress"]);
    for end in ends {
        let explained = &end["explanation"];
        assert_eq!((&explained["verdict"], &explained["rule"]), (&json!("allow"), &json!("x-to-b")), "{end}");
        assert_eq!(explained["revision"], "node-1@6", "{end}");
    }
    let before = served.ask(&json!({"op": "explain_pair", "pair": read_b, "revision": "node-1@5"}))["result"].clone();
    for end in before.as_array().expect("both ends") {
        let explained = &end["explanation"];
        assert_eq!((&explained["verdict"], &explained["reason"]), (&json!("deny"), &json!("no_grant")), "{end}");
        assert!(!explained["hint"].as_str().unwrap_or_default().is_empty(), "what would have allowed it: {end}");
    }
    let wrong =
        served.ask(&json!({"op": "explain_pair", "pair": "x -> service-a DELETE /v1/orders/1"}))["result"].clone();
    for end in wrong.as_array().expect("both ends") {
        let rule = &end["explanation"]["rules"][0];
        let failed: Vec<_> =
            rule["tests"].as_array().expect("tests").iter().filter(|test| test["ok"] == false).collect();
        assert!(rule["rule"] == "x-to-a" && failed.len() == 1 && failed[0]["test"] == "method", "{end}");
    }
}

// covers: B11f
#[test]
fn the_command_explains_a_pair_as_text_and_as_one_object() {
    let served = Served::start();
    served.publish(5, ONLY_A);
    served.publish(6, ALSO_B);
    let output = served.cli(&["explain", "x -> b GET /v1/things"]);
    assert_eq!(output.status.code(), Some(0), "{}", error_text(&output));
    let said = text(&output);
    assert_eq!(said.matches("allow (rule x-to-b) on node-1@6").count(), 2, "{said}");
    assert!(said.contains("egress") && said.contains("ingress") && said.is_ascii(), "{said}");
    let output = served.cli(&["explain", "--json", "--revision", "node-1@5", "x -> b GET /v1/things"]);
    let ends: Value = serde_json::from_str(&text(&output)).expect("--json prints one value");
    let verdicts: Vec<_> = ends.as_array().expect("ends").iter().map(|end| &end["explanation"]["verdict"]).collect();
    assert_eq!(verdicts, [&json!("deny"), &json!("deny")], "{ends}");
    let output = served.cli(&["explain", "x b"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(error_text(&output).contains("remedy"), "{}", error_text(&output));
}

// covers: A9b
#[test]
fn replay_gives_another_verdict_after_the_rules_changed() {
    let served = Served::start();
    served.publish(5, ONLY_A);
    served.record("00aa-1", "node-1@5", "deny", "no_grant", X_READS_B);
    served.publish(6, ALSO_B);
    let answer = served.ask(&json!({"op": "replay", "decision_id": "00aa-1"}));
    let result = &answer["result"];
    assert_eq!((&result["then"]["verdict"], &result["now"]["verdict"]), (&json!("deny"), &json!("allow")), "{answer}");
    assert_eq!((&result["then"]["revision"], &result["now"]["rule"]), (&json!("node-1@5"), &json!("x-to-b")));
    assert_eq!(result["notes"], json!([]));
    let output = served.cli(&["replay", "00aa-1"]);
    let out = text(&output);
    let first = out.lines().next().unwrap_or_default();
    assert_eq!(first, "then: deny (no_grant) on node-1@5; now: allow (rule x-to-b) on node-1@6");
    for column in ["rule", "test", "wanted", "got", "ok"] {
        assert!(out.lines().any(|line| line.split_whitespace().any(|word| word == column)), "{column}: {out}");
    }
    // Then, x had one rule, and it was about somebody else.
    let mismatch = |line: &&str| line.contains("x-to-a") && line.contains("destination") && line.ends_with("NO");
    assert!(out.lines().any(|line| mismatch(&line)), "{out}");
    assert!(out.is_ascii() && !out.contains('|'), "plain text in a pipe: {out}");
}

#[test]
fn replay_of_a_revision_that_is_gone_shows_only_today_and_says_so() {
    let served = Served::start();
    served.record("00aa-2", "node-1@1", "deny", "no_grant", X_READS_B);
    served.publish(6, ALSO_B);
    let result = served.ask(&json!({"op": "replay", "decision_id": "00aa-2"}))["result"].clone();
    assert!(result["then"].is_null() && result["now"]["verdict"] == "allow", "{result}");
    assert!(result["notes"][0].as_str().unwrap_or_default().contains("no longer in the store"), "{result}");
    let output = served.cli(&["replay", "00aa-2"]);
    assert!(text(&output).contains("only today's verdict is shown"), "{}", text(&output));
}

#[test]
fn replay_says_when_something_else_than_policy_refused() {
    let served = Served::start();
    served.publish(5, ONLY_A);
    served.record("00aa-3", "node-1@5", "deny", "address_forbidden", X_READS_A);
    let result = served.ask(&json!({"op": "replay", "decision_id": "00aa-3"}))["result"].clone();
    assert!(result["notes"][0].as_str().unwrap_or_default().contains("address_forbidden"), "{result}");
    for (id, came, reason) in [("00aa-3", "deny", "address_forbidden"), ("00aa-6", "error", "name_forbidden")] {
        served.record(id, "node-1@5", came, reason, X_READS_A);
        let out = text(&served.cli(&["replay", id]));
        let first = out.lines().next().unwrap_or_default();
        let wanted = format!("then: {came} ({reason}); the policy alone: then allow");
        assert!(first.starts_with(&wanted) && out.contains(&format!("for another reason: {reason}")), "{out}");
    }
}

#[test]
fn what_no_rule_is_asked_about_is_not_explained_as_allowed() {
    let served = Served::start();
    served.publish(5, ONLY_A);
    let calls = ["x -> service-a TRACE /v1/orders/1", "x -> service-a GET /v1/orders/1?_method=DELETE"];
    for call in calls {
        let output = served.cli(&["explain", call]);
        assert_eq!(output.status.code(), Some(2), "{call}");
        assert!(error_text(&output).contains("whatever the rules say"), "{}", error_text(&output));
    }
    let traced = ["--direction", "egress", "--source", "x", "--dest-host", "service-a.t.nova", "--dest-port", "443"];
    let output = served.cli(&[&["explain"][..], &traced, &["--method", "TRACE", "--path", "/v1/orders/1"]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
}

#[test]
fn replay_of_what_was_never_decided_is_refused() {
    let served = Served::start();
    served.publish(5, ONLY_A);
    let mut file = fs::OpenOptions::new().append(true).open(&served.audit).expect("the log");
    writeln!(file, r#"{{"decision_id":"00aa-4","verdict":"deny","reason":"bad_hello"}}"#).expect("written");
    let answer = served.ask(&json!({"op": "replay", "decision_id": "00aa-4"}));
    assert_eq!(answer["error"]["code"], "no_decision", "{answer}");
    let answer = served.ask(&json!({"op": "replay", "decision_id": "00aa-5"}));
    assert_eq!(answer["error"]["code"], "not_found", "{answer}");
    for bad in ["", "a b", "\"", "../x", &"a".repeat(65)] {
        let answer = served.ask(&json!({"op": "replay", "decision_id": bad}));
        assert_eq!(answer["error"]["code"], "bad_input", "{bad:?}: {answer}");
    }
    let output = served.cli(&["replay", "00aa-5"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(error_text(&output).contains("remedy"), "{}", error_text(&output));
}

// covers: B7e
#[test]
fn the_node_is_not_ready_without_a_policy_or_an_audit_log() {
    let served = Served::start();
    let output = served.cli(&["ready"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).starts_with("not ready: node-1\n") && text(&output).contains("no policy is active"));
    served.publish(5, ONLY_A);
    let output = served.cli(&["ready"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(text(&output).contains("warning: the dev identity source is in use"), "{}", text(&output));
    *served.audit_is_writable.lock().expect("no panic") = false;
    let output = served.cli(&["ready", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let object: Value = serde_json::from_str(&text(&output)).expect("one object");
    assert_eq!(object["checks"][1]["ok"], false, "{object}");
}

#[test]
fn policy_tells_what_was_wrong_with_the_last_bundle() {
    let served = Served::start();
    served.publish(5, ONLY_A);
    served.node.publish(b"nonsense");
    served.feed.poll(SystemTime::now());
    let out = text(&served.cli(&["policy"]));
    assert!(out.contains("node-1@5") && out.contains("bad_archive"), "{out}");
}

#[test]
fn connections_come_and_go() {
    let served = Served::start();
    assert_eq!(text(&served.cli(&["connections"])), "no open connections\n");
    let live = Live {
        decision_id: "00aa-6".into(),
        direction: "egress",
        workload: "x".into(),
        peer: "\u{1b}[2Jdb.example".into(),
        what: "db.example:5432".into(),
        since: std::time::Instant::now(),
    };
    let guard = served.registry.enter(live);
    let out = text(&served.cli(&["connections"]));
    assert!(out.contains("00aa-6") && out.contains("db.example:5432"), "{out}");
    assert!(!out.contains('\u{1b}'), "nothing drives the operator's terminal: {out:?}");
    drop(guard);
    assert_eq!(served.ask(&json!({"op": "connections"}))["result"], json!([]));
}

#[test]
fn no_supervisor_at_the_socket_is_a_failure_with_a_remedy() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nova-supervisor"));
    let output = command.args(["endpoints", "--socket", "/nonexistent/admin.sock"]).output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(error_text(&output).contains("is the supervisor running"), "{}", error_text(&output));
}
