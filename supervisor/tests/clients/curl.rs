//! curl, one command line for all calls that share a connection, and what it tells in the form of our own clients.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::app::{BODY, TOGETHER};
use crate::programs::run;
use crate::stage::{MTLS, NAME, PLAIN, Way};

pub(crate) fn calls(curl: &Path, way: Way<'_>) -> Vec<Value> {
    let body: Vec<u8> = (0..BODY).map(|at| u8::try_from(at % 251).expect("a byte")).collect();
    fs::write(way.node.dir.path().join("sent"), &body).expect("written");
    let sent = way.file("sent");
    let upload = ["-X", "POST", "-T", sent.as_str(), "-H", "Transfer-Encoding: chunked", "-H", "TE: trailers"];
    let wait = "Expect: 100-continue";
    let reuse: Vec<String> = (0..20).map(|number| format!("/v1/orders/{number}")).collect();
    let mut sequence = vec![
        ("get", vec![], "/v1/orders/42?color=blue&color=%20red"),
        ("echo", [&upload[..], &["-H", "Expect:"]].concat(), "/v1/orders/echo"),
        ("expect", [&upload[..], &["-H", wait, "--expect100-timeout", "20"]].concat(), "/v1/orders/echo"),
        ("head", vec!["-I"], "/v1/orders/42"),
        ("none", vec![], "/v1/orders/none"),
        ("denied", vec!["-X", "DELETE"], "/v1/orders/42"),
    ];
    sequence.extend(reuse.iter().map(|path| ("reuse", vec![], path.as_str())));
    let told = transfers(curl, way, &sequence);
    let mut lines: Vec<Value> = told.iter().take(6).cloned().collect();
    lines.push(json!({"call": "reuse", "statuses": statuses(&told[6..])}));
    lines.push(together(curl, way));
    lines.extend(transfers(curl, way, &[("denied_upload", [&upload[..], &["-H", "Expect:"]].concat(), "/v2/upload")]));
    lines
}

/// A process a call: curl 7.88 cannot use a connection again on which it began with HTTP/2.
pub(crate) fn one_by_one(curl: &Path, way: Way<'_>) {
    let once = |call: &str, words: &[&str], path: &str| transfers(curl, way, &[(call, words.to_vec(), path)]).remove(0);
    let sent = way.file("sent");
    fs::write(&sent, vec![7; BODY]).expect("written");
    for (call, words, path, status) in [
        ("get", &[][..], "/v1/orders/1", 200),
        ("echo", &["-X", "POST", "-T", &sent], "/v1/orders/echo", 200),
        ("denied", &["-X", "DELETE"], "/v1/orders/1", 403),
    ] {
        let line = once(call, words, path);
        assert_eq!((&line["status"], &line["protocol"]), (&json!(status), &json!("HTTP/2.0")), "{line}");
        assert!(call != "echo" || line["same"] == true, "{line}");
    }
}

fn options(way: Way<'_>) -> Vec<String> {
    let resolve = format!("{NAME}:{}:{}", way.port, way.address());
    let version = match (way.protocol, way.port) {
        ("h2", PLAIN) => "--http2-prior-knowledge",
        ("h2", _) => "--http2",
        _ => "--http1.1",
    };
    let mut words = ["-sS", "--max-time", "20", "--resolve", resolve.as_str(), version].map(str::to_owned).to_vec();
    if way.port != PLAIN {
        words.extend(["--cacert".to_owned(), way.file("ca.pem")]);
    }
    if way.port == MTLS {
        words.extend(["--cert".to_owned(), way.file("x.crt"), "--key".to_owned(), way.file("x.key")]);
    }
    words
}

/// One after the other, in one process and so over its connections.
fn transfers(curl: &Path, way: Way<'_>, calls: &[(&str, Vec<&str>, &str)]) -> Vec<Value> {
    let mut command = Command::new(curl);
    command.arg("-q");
    for (number, (_, words, path)) in calls.iter().enumerate() {
        if number > 0 {
            command.arg("--next");
        }
        command.args(options(way)).args(words).args(["-w", "%{json}\n"]);
        command.args(["-o", &way.file(&format!("body-{number}")), "-D", &way.file(&format!("head-{number}"))]);
        command.arg(format!("{}{path}", way.url()));
    }
    let told = run(way.node.dir.path(), &mut command).lines();
    assert_eq!(told.len(), calls.len());
    told.iter().zip(calls).enumerate().map(|(number, (told, (call, ..)))| line(way, call, number, told)).collect()
}

fn line(way: Way<'_>, call: &str, number: usize, told: &Value) -> Value {
    let read = |kind: &str| fs::read(way.file(&format!("{kind}-{number}"))).unwrap_or_default();
    // Of HEAD curl writes the head where a body would go.
    let body = if call == "head" { Vec::new() } else { read("body") };
    let heads = String::from_utf8_lossy(&read("head")).into_owned();
    let last = |name: &str| {
        let named = |line: &&str| line.split(':').next().is_some_and(|key| key.eq_ignore_ascii_case(name));
        heads.lines().rev().find(named).and_then(|line| line.split_once(": ")).map_or("", |(_, value)| value)
    };
    let sent = || fs::read(way.file("sent")).expect("written");
    json!({
        "call": call,
        "status": told["http_code"],
        "protocol": if told["http_version"] == "2" { "HTTP/2.0" } else { "HTTP/1.1" },
        "length": body.len(),
        "body": String::from_utf8_lossy(&body[..body.len().min(200)]),
        "same": call != "get" && body == sent(),
        "content_length": last("content-length"),
        "type": last("content-type"),
        "decision_id": last("x-nova-decision-id"),
        "trailer": last("x-length"),
        "continued": heads.lines().any(|line| line.contains(" 100")),
        "problem_status": serde_json::from_slice::<Value>(&body).map_or(json!(0), |problem| problem["status"].clone()),
    })
}

/// The app answers none of these before it has all of them.
fn together(curl: &Path, way: Way<'_>) -> Value {
    let mut command = Command::new(curl);
    command.args(["-q", "-Z", "--parallel-max", "8"]).args(options(way)).args(["-w", "%{json}\n"]);
    for _ in 0..TOGETHER {
        command.args(["-o", "/dev/null", &format!("{}/v1/orders/together", way.url())]);
    }
    let told = run(way.node.dir.path(), &mut command).lines();
    json!({"call": "together", "statuses": told.iter().map(|line| line["http_code"].clone()).collect::<Vec<_>>()})
}

fn statuses(lines: &[Value]) -> Vec<Value> {
    lines.iter().map(|line| line["status"].clone()).collect()
}
