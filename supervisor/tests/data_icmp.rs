//! Pings of guests, on the wire of a network namespace that the test makes itself: it runs itself again under `unshare`.
//! What is sniffed there is what left the supervisor.
#![allow(clippy::panic, reason = "a test that cannot go on fails")]

mod data;
mod icmp;
mod unshared;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use data::{B, Link, Node, Plan, RULES, X, is, token, until};
use icmp::{Echoed, Wire, set};
use nova_proto::icmp::{Echo, LEN, Message};
use serde_json::Value;
use unshared::inside_with_loopback as inside;

/// Room for many; `slow` is for the test of the rate.
const PINGS: &str = "
  - {id: x-pings, tenant: t, from: {workload: x}, to: {cidr: NET.80/31, protocol: icmp}, icmp: {types: [echo], rate_per_s: 1000}}
  - {id: b-pings, tenant: t, from: {workload: b}, to: {cidr: NET.80/32, protocol: icmp}, icmp: {types: [echo], rate_per_s: 1000}}
  - {id: slow, tenant: t, from: {workload: x}, to: {cidr: NET.90/32, protocol: icmp}, icmp: {types: [echo], rate_per_s: 5}}
  - {id: own, tenant: t, from: {workload: x}, to: {cidr: NET.21/32, protocol: icmp}, icmp: {types: [echo], rate_per_s: 1000}}
";
/// The kernel answers pings by itself, or leaves that to the test.
const SILENT_KERNEL: &str = "/proc/sys/net/ipv4/icmp_echo_ignore_all";
const PING_GROUPS: &str = "/proc/sys/net/ipv4/ping_group_range";

fn node() -> Node {
    set(PING_GROUPS, "0 0");
    node_as_it_is()
}

fn node_as_it_is() -> Node {
    Node::with(Plan { rules: format!("{RULES}{PINGS}"), ..Plan::default() })
}

fn echo(node: &Node, last: u8, id: u16, sequence: u16) -> Echo {
    Echo { destination: node.ip(last).parse().expect("an address"), id, sequence }
}

fn pings(node: &Node, pod: &str) -> Link {
    node.guest(pod).dial(3, token(pod), "")
}

fn ask(link: &mut Link, echo: Echo) {
    link.send(Message::Request(echo).encode());
}

fn reply(link: &mut Link) -> Echo {
    let mut bytes = [0; LEN];
    link.read_exact(&mut bytes).expect("a reply");
    match Message::parse(bytes).expect("a message") {
        Message::Reply(echo) => echo,
        Message::Request(echo) => panic!("a request from the supervisor: {echo:?}"),
    }
}

/// A line about a ping.
fn ping(line: &Value) -> bool {
    is(line, &[("direction", "egress"), ("kind", "request")]) && line["input"]["icmp"] == "echo"
}

// covers: D10c, D10d (F-IC02)
#[test]
fn a_granted_ping_leaves_from_the_workloads_address_with_bytes_of_the_supervisor() {
    if !inside("a_granted_ping_leaves_from_the_workloads_address_with_bytes_of_the_supervisor") {
        return;
    }
    let (node, wire) = (node(), Wire::tap());
    let mut link = pings(&node, X);
    let (first, second) = (echo(&node, 80, 0x1234, 1), echo(&node, 81, 0x1234, 1));
    ask(&mut link, first);
    assert_eq!(reply(&mut link), first);
    ask(&mut link, second);
    assert_eq!(reply(&mut link), second);
    let seen: Vec<Echoed> = wire.requests_until(2);
    for (seen, to) in seen.iter().zip([80, 81]) {
        assert_eq!((seen.from.to_string(), seen.to.to_string()), (node.ip(11), node.ip(to)));
        assert_eq!(seen.payload.len(), 56);
        assert!(String::from_utf8_lossy(&seen.payload).starts_with("nova-runtime pings"), "{seen:?}");
    }
    assert_ne!(seen[0].id, seen[1].id, "the kernel's own identifiers");
    let lines = node.audited(2, ping);
    for line in &lines {
        let wanted =
            [("verdict", "allow"), ("reason", "rule"), ("rule", "x-pings"), ("phase", "opaque"), ("close", "done")];
        assert!(is(line, &wanted), "{line}");
        assert!(line.get("dest_port").is_none() && line.get("path").is_none(), "ICMP has neither: {line}");
    }
    let hosts: Vec<_> = lines.iter().map(|line| line["dest_host"].clone()).collect();
    assert_eq!(hosts, [node.ip(80), node.ip(81)]);
}

// covers: D10c, D17j (T24)
#[test]
fn a_ping_that_no_rule_grants_never_leaves_and_the_next_one_may() {
    if !inside("a_ping_that_no_rule_grants_never_leaves_and_the_next_one_may") {
        return;
    }
    let (node, wire) = (node(), Wire::tap());
    let mut link = pings(&node, X);
    // Leave to connect is no leave to ping, nor is another workload's.
    for last in [82, 31, 1] {
        ask(&mut link, echo(&node, last, 7, 1));
    }
    for address in ["169.254.169.254", "0.0.0.0", "255.255.255.255", "224.0.0.1"] {
        ask(&mut link, Echo { destination: address.parse().expect("an address"), id: 7, sequence: 1 });
    }
    let allowed = echo(&node, 80, 7, 2);
    ask(&mut link, allowed);
    assert_eq!(reply(&mut link), allowed);
    let lines = node.audited(7, |line| ping(line) && line["verdict"] == "deny");
    let is_plain = |line: &Value| line.get("rule").is_none() && line.get("detail").is_none();
    assert!(lines.iter().all(|line| is(line, &[("reason", "no_grant")]) && is_plain(line)), "{lines:?}");
    assert_eq!(wire.requests_until(1).len(), 1);
    until("no more than that left", || wire.is_quiet());
}

// covers: D10c
#[test]
fn the_address_of_a_workload_here_is_not_pinged_whatever_a_rule_says() {
    if !inside("the_address_of_a_workload_here_is_not_pinged_whatever_a_rule_says") {
        return;
    }
    let (node, wire) = (node(), Wire::tap());
    let mut link = pings(&node, X);
    ask(&mut link, echo(&node, 21, 7, 1));
    let allowed = echo(&node, 80, 7, 2);
    ask(&mut link, allowed);
    assert_eq!(reply(&mut link), allowed);
    let line = node.audited_once(|line| ping(line) && line["rule"] == "own");
    assert!(is(&line, &[("reason", "address_forbidden"), ("detail", "own_listener")]), "{line}");
    let sent = wire.requests_until(1);
    assert_eq!(sent[0].to.to_string(), node.ip(80));
    until("no more than that left", || wire.is_quiet());
}

// covers: D10c
#[test]
fn more_pings_than_a_rule_allows_in_a_second_are_refused() {
    if !inside("more_pings_than_a_rule_allows_in_a_second_are_refused") {
        return;
    }
    let (node, wire) = (node(), Wire::tap());
    let start = Instant::now();
    // On two connections: the rate is the workload's.
    let mut links = [pings(&node, X), pings(&node, X)];
    for sequence in 0..40 {
        ask(&mut links[usize::from(sequence % 2)], echo(&node, 90, 1, sequence));
    }
    let decided = node.audited(40, ping);
    let seconds = start.elapsed().as_secs() as usize + 1;
    let allowed = decided.iter().filter(|line| line["verdict"] == "allow").count();
    let refused = decided.iter().filter(|line| line["reason"] == "limit_rate").count();
    assert_eq!(allowed + refused, 40);
    assert!((5..=5 * (seconds + 1)).contains(&allowed), "{allowed} in {seconds} s");
    assert_eq!(wire.requests_until(allowed).len(), allowed);
    // Another rule has a second of its own.
    ask(&mut links[0], echo(&node, 80, 1, 100));
    until("the other rule's ping is answered", || {
        let answered = reply(&mut links[0]);
        answered.sequence == 100
    });
}

// covers: D10d, D17j (T24)
#[test]
fn an_answer_that_another_host_gives_or_with_other_bytes_is_none() {
    if !inside("an_answer_that_another_host_gives_or_with_other_bytes_is_none") {
        return;
    }
    set(SILENT_KERNEL, "1");
    let (node, wire) = (node(), Wire::tap());
    let mut link = pings(&node, X);
    let asked = echo(&node, 80, 0x1234, 1);
    ask(&mut link, asked);
    let seen = wire.requests_until(1).remove(0);
    let forged = [
        Echoed { from: node.ip(81).parse().expect("an address"), ..seen.turned() },
        Echoed { sequence: seen.sequence.wrapping_add(1), ..seen.turned() },
        Echoed { id: seen.id.wrapping_add(1), ..seen.turned() },
        Echoed { payload: vec![0; 56], ..seen.turned() },
        Echoed { payload: Vec::new(), ..seen.turned() },
    ];
    forged.iter().for_each(|answer| wire.send(answer));
    link.stream.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
    assert!(link.read(&mut [0; LEN]).is_err(), "a forged answer was believed");
    wire.send(&seen.turned());
    link.stream.set_read_timeout(Some(data::PATIENCE)).expect("set");
    assert_eq!(reply(&mut link), asked);
    // A second answer, and one that comes when nobody waits, are for nobody.
    wire.send(&seen.turned());
    let late = echo(&node, 81, 0x1234, 2);
    ask(&mut link, late);
    let seen = wire.requests_until(1).remove(0);
    wire.send(&seen.turned());
    assert_eq!(reply(&mut link), late);
}

// covers: D10d (F-IC01)
#[test]
fn two_guests_that_use_the_same_identifiers_get_their_own_answers() {
    if !inside("two_guests_that_use_the_same_identifiers_get_their_own_answers") {
        return;
    }
    set(SILENT_KERNEL, "1");
    let (node, wire) = (node(), Wire::tap());
    let (mut x, mut b) = (pings(&node, X), pings(&node, B));
    let asked: Vec<Echo> = (1..=3).map(|sequence| echo(&node, 80, 0x1234, sequence)).collect();
    for echo in &asked {
        ask(&mut x, *echo);
        ask(&mut b, *echo);
    }
    let seen = wire.requests_until(6);
    let mut ids: Vec<u16> = seen.iter().map(|seen| seen.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 6, "{seen:?}");
    // Only what x asked is answered.
    seen.iter().filter(|seen| seen.from.to_string() == node.ip(11)).for_each(|seen| wire.send(&seen.turned()));
    let mut got: Vec<Echo> = (0..3).map(|_| reply(&mut x)).collect();
    got.sort_by_key(|echo| echo.sequence);
    assert_eq!(got, asked);
    b.stream.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
    assert!(b.read(&mut [0; LEN]).is_err(), "b got an answer to x");
}

// covers: D10f (T24)
#[test]
fn pings_on_their_way_are_bounded_for_each_endpoint() {
    if !inside("pings_on_their_way_are_bounded_for_each_endpoint") {
        return;
    }
    set(SILENT_KERNEL, "1");
    let (node, wire) = (node(), Wire::tap());
    let mut first = pings(&node, X);
    for sequence in 0..200 {
        ask(&mut first, echo(&node, 80, 1, sequence));
    }
    assert_eq!(wire.requests_until(64).len(), 64);
    let mut second = pings(&node, X);
    ask(&mut second, echo(&node, 80, 2, 1));
    node.audited(1, |line| ping(line) && is(line, &[("verdict", "deny"), ("reason", "limit_rate")]));
    // Another endpoint's pings are not held up.
    let (mut b, asked) = (pings(&node, B), echo(&node, 80, 1, 1));
    ask(&mut b, asked);
    let of_b = |wire: &Wire| wire.requests().into_iter().find(|seen| seen.from.to_string() == node.ip(31));
    let mut seen = None;
    until("b's ping is on the wire", || {
        seen = seen.take().or_else(|| of_b(&wire));
        seen.is_some()
    });
    wire.send(&seen.expect("seen").turned());
    assert_eq!(reply(&mut b), asked);
}

// covers: D10c
#[test]
fn a_ping_ends_when_the_policy_takes_its_rule_back() {
    if !inside("a_ping_ends_when_the_policy_takes_its_rule_back") {
        return;
    }
    set(SILENT_KERNEL, "1");
    let (node, wire) = (node(), Wire::tap());
    let mut link = pings(&node, X);
    // The answer is waited for so long that one of these is on its way when the bundle changes.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sequence = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                sequence += 1;
                let _ = link.write_all(&Message::Request(echo(&node, 80, 1, sequence)).encode());
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        wire.requests_until(1);
        node.publish(RULES);
        for reason in ["policy_revoked", "no_grant"] {
            until(reason, || node.audit().iter().any(|line| ping(line) && line["reason"] == reason));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

// covers: D10c
#[test]
fn a_supervisor_that_may_not_ping_says_what_to_set() {
    if !inside("a_supervisor_that_may_not_ping_says_what_to_set") {
        return;
    }
    let node = node_as_it_is();
    let mut link = pings(&node, X);
    ask(&mut link, echo(&node, 80, 1, 1));
    node.audited(1, |line| ping(line) && is(line, &[("verdict", "error"), ("reason", "ping_unavailable")]));
}

// covers: D10c
#[test]
fn an_operator_is_told_why_a_ping_is_granted_or_not() {
    if !inside("an_operator_is_told_why_a_ping_is_granted_or_not") {
        return;
    }
    let node = node();
    let explain = |last: u8| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_nova-supervisor"))
            .args([
                "explain",
                "--direction",
                "egress",
                "--source",
                "x",
                "--icmp",
                "echo",
                "--dest-host",
                &node.ip(last),
            ])
            .args(["--json", "--socket"])
            .arg(node.dir.path().join("admin.sock"))
            .output()
            .expect("runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let granted: Value = serde_json::from_str(&explain(80)).expect("JSON");
    assert!(granted.to_string().contains("x-pings"), "{granted}");
    assert!(explain(82).contains("no_grant"), "{}", explain(82));
}

// covers: D10e
#[test]
fn anything_but_requests_ends_the_connection() {
    if !inside("anything_but_requests_ends_the_connection") {
        return;
    }
    let (node, wire) = (node(), Wire::tap());
    let asked = echo(&node, 80, 1, 1);
    for bytes in [Message::Reply(asked).encode(), [0; LEN], [0xff; LEN]] {
        let mut link = pings(&node, X);
        link.send(bytes);
        assert!(link.is_closed(), "{bytes:?}");
    }
    let mut cut = pings(&node, X);
    cut.send(&Message::Request(asked).encode()[..LEN - 1]);
    drop(cut);
    let closed = |how: &'static str| move |line: &Value| is(line, &[("kind", "connection"), ("close", how)]);
    node.audited(3, closed("malformed"));
    until("nothing is left open", || node.open("x") == 0);
    assert!(wire.is_quiet(), "nothing was pinged");
}
