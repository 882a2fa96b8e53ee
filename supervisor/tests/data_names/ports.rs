//! Ports of a workload's address towards its destinations.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use socket2::{Domain, Socket, Type};

use crate::data::{B, Link, Node, Plan, Upstream, X, is};
use crate::support::{connect, connect_as, echo, ended, get, plan, status};
use crate::unshared::{inside_with, inside_with_loopback, ip};

/// A kernel has 28,232 unless told otherwise. So many descriptors are not to be had everywhere, and would take their time.
const PORTS: &str = "40000 40999";
/// In the proportion of 30,000 to those.
const CONNECTIONS: usize = 1_063;
const DESTINATIONS: usize = 10;
/// Of the supervisor's limit a quarter is what one of three endpoints may carry; the test itself holds one each.
const FILES: usize = 5_000;

// covers: D8b
#[test]
fn when_the_ports_to_a_destination_are_used_up_that_is_the_reason_and_others_go_on() {
    if !inside_with_loopback("ports::when_the_ports_to_a_destination_are_used_up_that_is_the_reason_and_others_go_on") {
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
    assert_eq!(get(&node, "http://plain.test:8080/").status, 200);
    let mut other = node.proxy(B);
    other.send("GET http://plain.test:8080/ HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(status(&mut other), 200);
    // The destination is not dead for that: with a port it goes on at once.
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40010").expect("root of the namespace");
    assert_eq!(connect(&node, "tcp.test:5432"), 200);
}

/// Listens at `address` and lets the kernel take whoever comes.
fn takes_all(address: &str) -> Socket {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    listener.bind(&address.parse::<SocketAddr>().expect("an address").into()).expect("bound");
    listener.listen(4096).expect("listens");
    listener
}

/// The local ports of established connections from `from`, as the kernel lists them.
fn ports_in_use(from: &str) -> Vec<String> {
    let from: std::net::Ipv4Addr = from.parse().expect("an address");
    let local = format!("{:08X}:", u32::from_ne_bytes(from.octets()));
    let table = std::fs::read_to_string("/proc/net/tcp").expect("a table");
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row[3] == "01").filter_map(|row| row[1].strip_prefix(&local).map(str::to_owned)).collect()
}

// covers: D8b (F-LB06)
#[test]
fn more_connections_than_ports_of_one_address_to_ten_destinations_all_connect() {
    let test = "ports::more_connections_than_ports_of_one_address_to_ten_destinations_all_connect";
    if !inside_with(test, &format!("ulimit -n {FILES}")) {
        return;
    }
    ip("link set lo up");
    let plan = plan();
    let limits = format!("ports: []\n    limits: {{max_connections: {}}}", CONNECTIONS + 100);
    let name = |n: usize| format!("d{n}.dns.test");
    let hosts = (0..DESTINATIONS).map(|n| (name(n), format!("NET.{}", 100 + n))).collect();
    let endpoints = plan.endpoints.replacen("ports: []", &limits, 1);
    let node = Node::with(Plan { endpoints, hosts, log: "warn", ..plan });
    let listeners: Vec<_> = (100..100 + DESTINATIONS)
        .map(|n| takes_all(&format!("{}:8080", node.ip(u8::try_from(n).expect("small")))))
        .collect();
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", PORTS).expect("root of the namespace");
    let before = Instant::now();
    let open = |first: usize| -> Vec<Link> {
        let dial = |n: usize| connect_as(&node, X, &format!("{}:8080", name(n % DESTINATIONS)));
        let tunnels = (first..CONNECTIONS).step_by(4).map(dial);
        tunnels.map(|(status, link)| (status == 200).then_some(link).expect("a tunnel")).collect()
    };
    let tunnels: Vec<Link> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|first| scope.spawn(move || open(first))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("all connect")).collect()
    });
    println!("{} tunnels in {:?}", tunnels.len(), before.elapsed());
    let ports = ports_in_use(&node.ip(11));
    assert_eq!(ports.len(), CONNECTIONS);
    assert!(ports.iter().collect::<HashSet<_>>().len() < CONNECTIONS, "some ports lead to several destinations");
    // Nobody else has fewer for that.
    assert_eq!(connect_as(&node, B, "d0.dns.test:8080").0, 200);
    drop((tunnels, listeners));
}
