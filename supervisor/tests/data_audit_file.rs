//! The audit log's file, while others move it, remove it or leave no room for it.

mod data;

use std::fs;

use data::{A, HTTPS, Node, Plan, is, read_request, until};
use serde_json::{Value, json};

/// A node whose log is in a folder of its own, where others may put it away.
fn node() -> Node {
    let prepare = |dir: &std::path::Path, _: &nova_supervisor::identity::DevCa| {
        fs::create_dir(dir.join("logs")).expect("a folder");
        std::os::unix::fs::symlink("logs/audit.jsonl", dir.join("audit.jsonl")).expect("a link");
    };
    let node = Node::with(Plan { prepare, ..Plan::default() });
    node.guest(A).serve(|mut link, _| {
        while read_request(&mut link).is_ok() {
            link.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    node
}

fn get(node: &Node, n: usize) -> u16 {
    let mut caller = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    caller.ask(format!("GET /v1/orders/{n} HTTP/1.1\r\nHost: a\r\n\r\n")).status
}

fn lines(node: &Node, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(node.dir.path().join("logs").join(name)).unwrap_or_default();
    assert!(text.is_empty() || text.ends_with('\n'), "{name} ends in half a line");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn ready(node: &Node) -> Value {
    node.ask(&json!({"op": "ready"})).expect("an answer")
}

// covers: A9d
#[test]
fn a_log_that_is_moved_away_loses_no_line_and_goes_on_in_a_new_file() {
    let node = node();
    let logs = node.dir.path().join("logs");
    for round in 0..4 {
        for n in 0..5 {
            assert_eq!(get(&node, round * 5 + n), 200);
        }
        fs::rename(logs.join("audit.jsonl"), logs.join(format!("audit.{round}"))).expect("moved");
        // With nothing to write, too, there is soon a new one.
        until("there is a new file", || logs.join("audit.jsonl").exists());
    }
    assert_eq!(ready(&node)["ready"], true);
    drop(node.call(Some(&node.svid("b")), HTTPS));
    let all = || (0..4).map(|round| format!("audit.{round}")).chain(["audit.jsonl".to_owned()]);
    let asked = |n: usize| {
        let path = format!("/v1/orders/{n}");
        all().flat_map(|name| lines(&node, &name)).filter(|line| line["path"] == path).count()
    };
    until("every request has its line", || (0..20).all(|n| asked(n) == 1));
}

// covers: A9d
#[test]
fn nothing_is_allowed_while_a_removed_log_cannot_be_made_anew() {
    let node = node();
    let logs = node.dir.path().join("logs");
    assert_eq!(get(&node, 1), 200);
    fs::remove_dir_all(&logs).expect("removed");
    until("the node is not ready", || ready(&node)["ready"] == false);
    let check = ready(&node)["checks"].to_string();
    assert!(check.contains("No such file") && check.contains("audit log cannot be written"), "{check}");
    let refused = node.call(Some(&node.svid("x")), HTTPS).map_or(true, |mut caller| caller.is_closed());
    assert!(refused, "a call without a record");
    fs::create_dir(&logs).expect("made");
    until("the node is ready", || ready(&node)["ready"] == true);
    assert_eq!(get(&node, 2), 200);
    until("what was refused meanwhile is recorded", || {
        let lines = lines(&node, "audit.jsonl");
        let is_there = |fields: &[(&str, &str)]| lines.iter().any(|line| is(line, fields));
        is_there(&[("reason", "audit_unavailable")]) && is_there(&[("path", "/v1/orders/2")])
    });
    // Removed with its folder left, it is made anew at once.
    fs::remove_file(logs.join("audit.jsonl")).expect("removed");
    until("there is a new file", || logs.join("audit.jsonl").exists());
    assert_eq!(get(&node, 3), 200);
    until("it has the line", || lines(&node, "audit.jsonl").iter().any(|line| line["path"] == "/v1/orders/3"));
}
