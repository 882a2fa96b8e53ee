//! What needs a network of its own: the test runs itself again in a user and network namespace that it makes.

use std::net::TcpListener;
use std::process::{Command, Output};

use crate::data::{B, Node, Plan, RULES, Upstream, X, is};
use crate::support::{connect, connect_as, echo, ended};

/// Set in the copy of the test that runs inside the namespace.
const INSIDE: &str = "NOVA_TEST_INSIDE";

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn ip(args: &str) {
    let output = run("ip", &args.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Whether this is the copy in a fresh namespace with loopback; else starts it and says no.
fn inside(test: &str) -> bool {
    let test = format!("namespace::{test}");
    if std::env::var(INSIDE).as_deref() == Ok(&test) {
        ip("link set lo up");
        return true;
    }
    let probe = run("unshare", &["-Urn", "true"]);
    if !probe.status.success() {
        println!("SKIPPED: {test}: no user and network namespaces: {}", String::from_utf8_lossy(&probe.stderr));
        return false;
    }
    let myself = std::env::current_exe().expect("the test binary");
    let output = Command::new("unshare")
        .args(["-Urn", "--"])
        .arg(myself)
        .args(["--exact", &test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, &test)
        .output()
        .expect("unshare runs");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "inside the namespace:\n{text}");
    false
}

// covers: D8b
#[test]
fn when_the_ports_to_a_destination_are_used_up_that_is_the_reason_and_others_go_on() {
    if !inside("when_the_ports_to_a_destination_are_used_up_that_is_the_reason_and_others_go_on") {
        return;
    }
    let node = Node::start();
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40003").expect("root of the namespace");
    let _tunnel = echo(&format!("{}:5432", node.ip(80)));
    let _plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    let open: Vec<_> = (0..4).map(|_| connect_as(&node, X, "tcp.test:5432")).collect();
    assert!(open.iter().all(|(status, _)| *status == 200));
    assert_eq!(connect(&node, "tcp.test:5432"), 503);
    let line = node.audited_once(ended);
    assert!(is(&line, &[("verdict", "error"), ("reason", "limit_ports"), ("rule", "x-to-tcp")]), "{line}");
    assert_eq!(line["dest_addr"], format!("{}:5432", node.ip(80)));
    // Ports run out per destination and per workload.
    assert_eq!(crate::support::get(&node, "http://plain.test:8080/").status, 200);
    let mut other = node.proxy(B);
    other.send("GET http://plain.test:8080/ HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(crate::support::status(&mut other), 200);
    // The destination is not dead for that: with a port it goes on at once.
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40010").expect("root of the namespace");
    assert_eq!(connect(&node, "tcp.test:5432"), 200);
}

// covers: D7.12
// covers: D7.13
#[test]
fn no_port_of_the_machine_itself_is_reached_by_any_rule_but_that_of_a_workload() {
    if !inside("no_port_of_the_machine_itself_is_reached_by_any_rule_but_that_of_a_workload") {
        return;
    }
    ip("addr add 10.77.0.1/24 dev lo");
    ip("route add local 10.78.0.0/24 dev lo");
    let rules = format!(
        "{RULES}
  - {{id: to-range, tenant: t, from: {{workload: x}}, to: {{cidr: 10.0.0.0/8, port: 9000}}}}
  - {{id: to-name, tenant: t, from: {{workload: x}}, to: {{external: own.test, port: 9000, addresses: [10.0.0.0/8]}}}}
"
    );
    let hosts = vec![("own.test".to_owned(), "10.77.0.1".to_owned())];
    let node = Node::with(Plan { rules, hosts, ..Plan::default() });
    // A service of the node, and an address that is only routed here: of a workload of another instance, say.
    let services = ["10.77.0.1:9000", "10.78.0.9:9000"].map(|address| TcpListener::bind(address));
    assert!(services[0].is_ok());
    for host in ["own.test", "10.77.0.1", "10.78.0.9"] {
        assert_eq!(connect(&node, &format!("{host}:9000")), 403, "{host}");
        let line = node.audited_once(|line| ended(line) && is(line, &[("dest_host", host)]));
        assert!(is(&line, &[("reason", "address_forbidden"), ("detail", "own_address")]), "{line}");
    }
    // An address that is elsewhere is tried, and there is no way to it.
    assert_eq!(connect(&node, "10.99.0.1:9000"), 502);
    for service in services.into_iter().flatten() {
        service.set_nonblocking(true).expect("set");
        assert!(service.accept().is_err(), "somebody came");
    }
}
