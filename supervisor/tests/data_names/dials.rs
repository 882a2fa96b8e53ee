//! Destinations that are dead, slow or far away, and everybody else meanwhile.

use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::data::{Node, Plan, Upstream, X, in_time, is, until};
use crate::support::{WILDCARD, came, connect, connect_as, echo, get, plan, status};

/// A listener that takes nobody: its queue is full, so that the kernel drops what comes.
struct BlackHole {
    _listener: Socket,
    _queued: Vec<TcpStream>,
}

impl BlackHole {
    fn at(address: &str) -> Self {
        let address: std::net::SocketAddr = address.parse().expect("an address");
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        listener.bind(&address.into()).expect("bound");
        listener.listen(0).expect("listens");
        let mut queued = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
            queued.push(stream);
            assert!(queued.len() < 10, "the queue never fills");
        }
        Self { _listener: listener, _queued: queued }
    }
}

/// Connections of `from` to `to` that are not answered.
fn unanswered(from: &str, to: &str) -> usize {
    let hex = |text: &str| {
        let (ip, port) = text.split_once(':').unwrap_or((text, ""));
        let ip = u32::from_ne_bytes(ip.parse::<Ipv4Addr>().expect("an address").octets());
        let port = port.parse::<u16>().map_or(String::new(), |port| format!("{port:04X}"));
        format!("{ip:08X}:{port}")
    };
    let (from, to) = (hex(from), hex(to));
    let table = std::fs::read_to_string("/proc/net/tcp").expect("a table");
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.len() > 3 && row[1].starts_with(&from) && row[2] == to && row[3] == "02").count()
}

// covers: D12a
// covers: D12b
// covers: D12d, D17g
// T21
#[test]
fn a_storm_of_dials_to_a_dead_host_tries_it_once_and_holds_up_nobody_else() {
    let node = Node::start();
    let dead = format!("{}:5432", node.ip(80));
    let _hole = BlackHole::at(&dead);
    let _plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    let started = Instant::now();
    let mut storm: Vec<_> = (0..40)
        .map(|_| {
            let mut link = node.proxy(X);
            link.send("CONNECT tcp.test:5432 HTTP/1.1\r\nHost: x\r\n\r\n");
            link
        })
        .collect();
    until("it is tried", || unanswered(&node.ip(11), &dead) > 0);
    let mut most = 0;
    for _ in 0..10 {
        assert_eq!(get(&node, "http://plain.test:8080/").status, 200);
        most = most.max(unanswered(&node.ip(11), &dead));
    }
    assert_eq!(most, 1);
    assert!(started.elapsed() < Duration::from_secs(9), "others were held up: {:?}", started.elapsed());
    for link in &mut storm {
        assert_eq!(status(link), 504);
    }
    assert!(started.elapsed() < Duration::from_secs(19), "one after the other: {:?}", started.elapsed());
    node.audited(40, |line| is(line, &[("reason", "upstream_timeout"), ("dest_host", "tcp.test")]));
    // What is known is said at once.
    let before = Instant::now();
    assert_eq!(connect(&node, "tcp.test:5432"), 504);
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
}

// covers: D12a
#[test]
fn a_host_that_comes_back_is_found_within_seconds() {
    let node = Node::start();
    assert_eq!(connect(&node, "tcp.test:5432"), 502);
    let upstream = echo(&format!("{}:5432", node.ip(80)));
    until("it is tried again", || connect(&node, "tcp.test:5432") == 200);
    came(&upstream, 1);
}

// covers: D12b
// covers: D12d
#[test]
fn a_host_that_never_ends_its_handshake_fails_in_time_and_holds_up_nobody_else() {
    let node = Node::start();
    let silent = Upstream::start(&format!("{}:9443", node.ip(80)), |stream| {
        std::thread::sleep(Duration::from_secs(60));
        drop(stream);
    });
    let _plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    let mut slow = node.proxy(X);
    slow.send("GET http://api.test:9443/v1/a HTTP/1.1\r\nHost: x\r\n\r\n");
    until("it is dialled", || silent.accepted() == 1);
    let before = Instant::now();
    assert_eq!(get(&node, "http://plain.test:8080/").status, 200);
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    assert_eq!(in_time("the handshake is given up", move || status(&mut slow)), 504);
}

// covers: D7f
// covers: D12b
#[test]
fn an_address_that_says_nothing_does_not_hold_up_the_next_one() {
    let hosts = vec![("two.dns.test".to_owned(), "NET.82, NET.80".to_owned())];
    let node = Node::with(Plan { hosts, ..plan() });
    let _hole = BlackHole::at(&format!("{}:8080", node.ip(82)));
    let upstream = echo(&format!("{}:8080", node.ip(80)));
    let before = Instant::now();
    assert_eq!(connect(&node, "two.dns.test:8080"), 200);
    assert!(before.elapsed() < Duration::from_secs(8), "{:?}", before.elapsed());
    came(&upstream, 1);
    until("the other attempt is given up", || unanswered(&node.ip(11), &format!("{}:8080", node.ip(82))) == 0);
}

// covers: D8a
#[test]
fn every_dial_comes_from_the_callers_own_address() {
    let node = Node::with(Plan { rules: format!("{}{WILDCARD}", crate::data::RULES), ..plan() });
    let tunnel = echo(&format!("{}:5432", node.ip(80)));
    let plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    assert_eq!(connect(&node, "tcp.test:5432"), 200);
    assert_eq!(crate::support::socks(&node, b"tcp.test", 5432), Some(0));
    assert_eq!(get(&node, "http://plain.test:8080/").status, 200);
    let mut link = connect_as(&node, crate::data::B, "plain.test:8080").1;
    link.send("GET / HTTP/1.1\r\nHost: plain.test:8080\r\n\r\n");
    assert_eq!(status(&mut link), 200);
    until("all have come", || tunnel.accepted() == 2 && plain.accepted() == 2);
    assert_eq!(*tunnel.peers.lock().expect("no panic"), [node.ip(11), node.ip(11)]);
    assert_eq!(*plain.peers.lock().expect("no panic"), [node.ip(11), node.ip(31)]);
}

// covers: D12c
#[test]
fn one_destination_cannot_use_up_the_connections_of_an_endpoint() {
    let limits = "ports: []\n    limits: {max_destination_connections: 3}";
    let endpoints = Plan::default().endpoints.replacen("ports: []", limits, 1);
    let node = Node::with(Plan { endpoints, ..Plan::default() });
    let tunnel = echo(&format!("{}:5432", node.ip(80)));
    let _plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    let open: Vec<_> = (0..3).map(|_| connect_as(&node, X, "tcp.test:5432")).collect();
    assert!(open.iter().all(|(status, _)| *status == 200));
    assert_eq!(connect(&node, "tcp.test:5432"), 503);
    node.audited_once(|line| is(line, &[("reason", "limit_connections"), ("detail", "destination")]));
    assert_eq!(get(&node, "http://plain.test:8080/").status, 200, "another destination");
    came(&tunnel, 3);
    drop(open);
    until("places come back", || connect(&node, "tcp.test:5432") == 200);
}
