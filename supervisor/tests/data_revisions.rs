//! Bundles change under load: whatever is said of one decision comes from one of them.

mod data;

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use data::{HTTPS, Node, Plan, Upstream, X, is, read_answer, until};
use serde_json::Value;

/// Activations while requests are on their way.
const CHANGES: usize = 24;

/// In the paths that are asked for more than once.
const AGAIN: &str = "again";

/// Rules of an even or odd revision: each names itself in its rules, and grants what the other does not.
fn rules(parity: u64) -> String {
    let name = name(parity);
    format!(
        "
rules:
  - id: {name}-to-a
    tenant: t
    from: {{workload: x}}
    to: {{workload: service-a, port: https}}
    http: {{methods: [GET], paths: ['/both/**', '/{name}/**']}}
  - id: {name}-to-plain
    tenant: t
    from: {{workload: x}}
    to: {{external: plain.test, port: 8080, addresses: [NET.80/32]}}
    http: {{methods: [GET], paths: ['/both/**', '/{name}/**']}}
    tls: none
"
    )
}

fn name(parity: u64) -> &'static str {
    if parity.is_multiple_of(2) { "even" } else { "odd" }
}

/// Paths that a caller asked for, and the status that it got.
type Asked = Vec<(String, u16)>;

/// Asks on one connection after the other until told to stop. A connection may be cut for a request that is granted no more.
fn ask<C>(
    who: String,
    stop: Arc<AtomicBool>,
    connect: impl Fn() -> C,
    one: impl Fn(&mut C, &str) -> Option<u16>,
) -> Asked {
    let mut asked = Vec::new();
    let mut connection = connect();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let kind = ["both", "even", "odd"][n % 3];
        // Every other call is one that was asked before, and maybe on another bundle.
        let again = n % 2 == 0;
        let path = if again { format!("/{kind}/{AGAIN}-{who}") } else { format!("/{kind}/{who}-{n}") };
        match one(&mut connection, &path) {
            Some(_) if again => {}
            Some(status) => asked.push((path, status)),
            None => connection = connect(),
        }
    }
    asked
}

// covers: B7b
#[test]
fn verdict_rule_revision_and_answer_belong_together_while_bundles_change_under_load() {
    let node = Arc::new(Node::with(Plan { rules: rules(1), audit: "denials_per_second = 1000000", ..Plan::default() }));
    let plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    let stop = Arc::<AtomicBool>::default();
    let x = Arc::new(node.svid("x"));
    let mut callers = Vec::new();
    for n in 0..3 {
        let (node, stop, x) = (Arc::clone(&node), Arc::clone(&stop), Arc::clone(&x));
        callers.push(std::thread::spawn(move || {
            let connect = || node.call(Some(&x), HTTPS).expect("connected");
            ask(format!("in-{n}"), stop, connect, |tls, path| {
                tls.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).ok()?;
                tls.answer().ok().map(|answer| answer.status)
            })
        }));
    }
    for n in 0..3 {
        let (node, stop) = (Arc::clone(&node), Arc::clone(&stop));
        callers.push(std::thread::spawn(move || {
            ask(
                format!("out-{n}"),
                stop,
                || node.proxy(X),
                |link, path| {
                    let request = format!("GET http://plain.test:8080{path} HTTP/1.1\r\nHost: plain.test\r\n\r\n");
                    link.write_all(request.as_bytes()).ok()?;
                    read_answer(link).ok().map(|answer| answer.status)
                },
            )
        }));
    }
    for n in 0..CHANGES {
        let serial = node.publish(&rules(n as u64));
        assert_eq!(serial % 2, n as u64 % 2, "a revision's number says what it grants");
    }
    stop.store(true, Ordering::Relaxed);
    let asked: HashMap<String, u16> = callers.into_iter().flat_map(|caller| caller.join().expect("no panic")).collect();
    until("all connections ended", || node.open("x") == 0 && node.open("service-a") == 0);
    until("the log is whole", || {
        let lines = node.audit();
        let paths: HashSet<_> = lines.iter().filter_map(|line| line["path"].as_str()).collect();
        asked.keys().all(|path| paths.contains(path.as_str()))
    });
    let lines = node.audit();
    let reached: HashSet<String> =
        [node.guest(data::A).app.seen(), plain.seen()].concat().iter().map(|request| path_of(request)).collect();
    let requests: Vec<_> = lines.iter().filter(|line| is(line, &[("kind", "request")])).collect();
    assert!(requests.len() >= 10 * CHANGES && asked.len() >= 10 * CHANGES, "a load: {}", requests.len());
    let mut answers = [0, 0];
    for line in &requests {
        one_revision_said_it(line);
        let path = line["path"].as_str().expect("a path");
        let allowed = line["verdict"] == "allow";
        answers[usize::from(allowed)] += 1;
        if let Some(status) = asked.get(path) {
            assert_eq!(*status, if allowed { 200 } else { 403 }, "{line}");
            assert!(line["status"].is_null() || line["status"] == *status, "{line}");
        }
        assert!(allowed || path.contains(AGAIN) || !reached.contains(path), "what was denied arrived: {line}");
    }
    assert!(answers.iter().all(|count| *count > CHANGES), "both verdicts: {answers:?}");
    let revisions: HashSet<_> = requests.iter().map(|line| line["revision"].to_string()).collect();
    assert!(revisions.len() > CHANGES / 2, "many revisions decided: {}", revisions.len());
}

fn path_of(request: &str) -> String {
    request.split(' ').nth(1).unwrap_or_default().to_owned()
}

/// The revision's number says which rules it had; verdict, reason and rule of the line must be those of these rules.
fn one_revision_said_it(line: &Value) {
    let revision = line["revision"].as_str().expect("a revision");
    let serial: u64 = revision.rsplit('@').next().and_then(|serial| serial.parse().ok()).expect("a serial");
    let name = name(serial);
    let path = line["path"].as_str().expect("a path");
    let granted = path.starts_with("/both/") || path.starts_with(&format!("/{name}/"));
    let (verdict, reason) = if granted { ("allow", "rule") } else { ("deny", "l7_mismatch") };
    assert!(is(line, &[("verdict", verdict), ("reason", reason)]), "{line}");
    let rule = line["rule"].as_str().unwrap_or_default();
    assert!(if granted { rule.starts_with(&format!("{name}-to-")) } else { rule.is_empty() }, "{line}");
}
