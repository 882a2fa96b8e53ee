//! A guest that does its worst harms itself.

mod data;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use data::{A, B, HTTPS, Node, Plan, Upstream, X, hello, is, many_descriptors, read_answer, settles, token, until};

const FROM_B: &str = "GET http://plain.test:8080/b HTTP/1.1\r\nHost: plain.test:8080\r\n\r\n";

/// Another endpoint that goes on calling while the hostile one does its worst.
struct Bystander {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Vec<Duration>>,
}

impl Bystander {
    fn start(node: &Arc<Node>) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let (node, until) = (Arc::clone(node), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut times = Vec::new();
            while !until.load(Ordering::SeqCst) || times.len() < 20 {
                let began = Instant::now();
                let mut link = node.proxy(B);
                link.send(FROM_B);
                let answer = read_answer(&mut link).expect("the bystander is served");
                assert_eq!(answer.status, 200, "{answer:?}");
                times.push(began.elapsed());
            }
            times
        });
        Self { stop, thread }
    }

    /// Ends it; every one of its calls was served, and none took absurdly long.
    fn finish(self, what: &str) {
        self.stop.store(true, Ordering::SeqCst);
        let mut times = self.thread.join().expect("the bystander is served");
        times.sort_unstable();
        let p99 = times[times.len() * 99 / 100];
        eprintln!("{what}: {} calls of the bystander, p99 {p99:?}, worst {:?}", times.len(), times[times.len() - 1]);
        assert!(p99 < Duration::from_secs(5), "{what}: p99 {p99:?}");
    }
}

fn node_and_plain(plan: Plan) -> (Arc<Node>, Upstream) {
    let node = Arc::new(Node::with(plan));
    let plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    (node, plain)
}

fn resident_kib(node: &Node) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid)).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

// covers: A12b, D17a
#[test]
fn ten_thousand_connections_of_one_guest_leave_the_others_alone() {
    many_descriptors();
    let (node, _plain) = node_and_plain(Plan { audit: "denials_per_second = 1000000", ..Plan::default() });
    let before = node.descriptors();
    let bystander = Bystander::start(&node);
    for batch in 0..10 {
        let mut all = Vec::new();
        for number in 0..1000 {
            let mut stream = node.guest(X).connect();
            // Most say hello and then nothing, enough to fill the cap; the others say nothing at all.
            if number % 20 != 0 {
                let _ = stream.write_all(&hello(1, false, token(X), ""));
            }
            all.push(stream);
        }
        if batch == 0 {
            // However slow the machine: the connections stay until the cap has been reached.
            until("the cap is reached", || node.open("x") >= 900);
        }
        let open = node.open("x");
        assert!(open <= 900, "batch {batch}: {open} connections");
    }
    bystander.finish("10,000 connections");
    let lines = node.audited(10_000, |line| is(line, &[("kind", "connection"), ("workload", "x")]));
    let refused = lines.iter().filter(|line| line["reason"] == "limit_connections").count();
    assert!(refused >= 1, "the cap was reached");
    settles(&node, before);
    // The guest itself is served again.
    let mut link = node.proxy(X);
    link.send(FROM_B);
    assert_eq!(read_answer(&mut link).expect("an answer").status, 200);
}

// covers: A12b
// covers: A9a
#[test]
fn a_flood_of_denied_requests_is_recorded_whole_and_blocks_nobody_elses() {
    let (node, plain) = node_and_plain(Plan { audit: "denials_per_second = 2000", ..Plan::default() });
    let before = node.descriptors();
    let bystander = Bystander::start(&node);
    let floods: Vec<_> = (0..4)
        .map(|_| {
            let mut link = node.proxy(X);
            let mut reader = link.another();
            let reading = std::thread::spawn(move || {
                (0..2500).filter(|_| read_answer(&mut reader).is_ok_and(|answer| answer.status == 403)).count()
            });
            let one = "GET http://other.test:8080/ HTTP/1.1\r\nHost: other.test\r\n\r\n";
            let writing = std::thread::spawn(move || {
                for _ in 0..25 {
                    link.send(one.repeat(100));
                }
                link
            });
            (reading, writing)
        })
        .collect();
    for (reading, writing) in floods {
        assert_eq!(reading.join().expect("no panic"), 2500);
        drop(writing.join().expect("no panic"));
    }
    bystander.finish("10,000 denied requests");
    // By a line of its own or in a sum: four connections that end a second together are more than the budget.
    let told = || {
        let lines = node.audit();
        let denied =
            lines.iter().filter(|line| is(line, &[("workload", "x"), ("verdict", "deny"), ("reason", "no_grant")]));
        denied.map(|line| line["count"].as_u64().unwrap_or(1)).sum::<u64>()
    };
    until("every denial is told", || told() >= 10_000);
    assert_eq!(told(), 10_000);
    assert!(plain.seen().iter().all(|request| request.starts_with("GET /b ")));
    settles(&node, before);
}

// covers: A12b, D17a
#[test]
fn a_hello_that_is_not_one_or_does_not_end_is_closed_in_seconds() {
    let (node, _plain) = node_and_plain(Plan::default());
    let good = hello(1, false, token(X), "");
    let mut bad = vec![vec![0; 64], b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0xff; 4096]];
    for (at, value) in [(0, b'X'), (4, 2), (5, 0), (5, 99), (6, 2), (6, 0xff), (7, 1), (7, 255)] {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes.extend(b"\x00not printable\xff");
        bytes.resize(512, 0);
        bad.push(bytes);
    }
    for bytes in &bad {
        let mut stream = node.guest(X).connect();
        let _ = stream.write_all(bytes);
        assert!(matches!(stream.read(&mut [0; 8]), Ok(0) | Err(_)), "{bytes:?}");
    }
    // One byte at a time, fast enough to look alive, too slow to be done in time.
    let mut slow = node.guest(X).connect();
    slow.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
    let began = Instant::now();
    for byte in &good {
        if slow.write_all(&[*byte]).is_err() || matches!(slow.read(&mut [0; 8]), Ok(0)) {
            break;
        }
    }
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    node.audited(bad.len() + 1, |line| is(line, &[("workload", "x"), ("reason", "bad_hello")]));
    // Kinds that this version does not serve.
    for (kind, target) in [(3, ""), (4, "egress.sock")] {
        assert!(node.guest(X).dial(kind, token(X), target).is_closed());
    }
    until("nothing is left open", || node.open("x") == 0);
}

// covers: A12b
#[test]
fn a_header_without_end_is_answered_431_and_one_that_stops_408() {
    let (node, _plain) = node_and_plain(Plan::default());
    let bystander = Bystander::start(&node);
    let before = resident_kib(&node);
    for line in [
        &b"X-A: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n"[..],
        &[b'a'; 1000],
        b"A:\r\n",
    ] {
        let mut link = node.proxy(X);
        link.send("GET http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test:8080\r\nX: ");
        link.stream.set_write_timeout(Some(Duration::from_secs(5))).expect("set");
        let mut sent = 0;
        while sent < 64 * 1024 * 1024 && link.write_all(line).is_ok() {
            sent += line.len();
        }
        // After the refusal up to 8 MiB are read and forgotten, so that the answer is not lost to a reset.
        assert!(sent < 16 * 1024 * 1024, "{sent} bytes of one header were taken");
        let answer = read_answer(&mut link).map(|answer| answer.status);
        assert!(matches!(answer, Ok(431 | 400) | Err(_)), "{answer:?}");
    }
    let mut link = node.proxy(X);
    link.send("GET http://plain.test:8080/ HTTP/1.1\r\nHost: ");
    assert_eq!(read_answer(&mut link).expect("an answer").status, 408);
    bystander.finish("endless headers");
    let after = resident_kib(&node);
    assert!(after < before + 32 * 1024, "{before} KiB before, {after} KiB after");
    until("nothing is left open", || node.open("x") == 0);
}

// covers: A12b
#[test]
fn a_stalled_reader_of_a_long_answer_costs_a_bounded_buffer() {
    for half_close in [true, false] {
        let node = Arc::new(Node::with(Plan { half_close, ..Plan::default() }));
        let _plain = Upstream::start(&format!("{}:8080", node.ip(80)), |mut stream| {
            while let Ok(request) = data::read_request(&mut stream) {
                let length = if request.starts_with("GET /big") { 50 * 1024 * 1024 } else { 2 };
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
                let piece = vec![b'.'; 64 * 1024];
                let mut left = length;
                let mut sent = stream.write_all(head.as_bytes());
                while left > 0 && sent.is_ok() {
                    sent = stream.write_all(&piece[..left.min(piece.len())]);
                    left -= left.min(piece.len());
                }
                if sent.is_err() {
                    return;
                }
            }
        });
        let descriptors = node.descriptors();
        let before = resident_kib(&node);
        let bystander = Bystander::start(&node);
        let stalled: Vec<_> = (0..20)
            .map(|_| {
                let mut link = node.proxy(X);
                link.send("GET http://plain.test:8080/big HTTP/1.1\r\nHost: plain.test:8080\r\n\r\n");
                link
            })
            .collect();
        until("all are under way", || node.open("x") == 20);
        bystander.finish("stalled readers");
        let after = resident_kib(&node);
        assert!(after < before + 64 * 1024, "{before} KiB before, {after} KiB after");
        drop(stalled);
        node.audited(20, |line| is(line, &[("kind", "request"), ("workload", "x"), ("verdict", "allow")]));
        settles(&node, descriptors);
    }
}

// covers: A12b
#[test]
fn an_app_that_does_not_accept_is_given_up_and_its_neighbour_serves() {
    let node = Node::start();
    let before = node.descriptors();
    node.guest(A).stalled.store(true, Ordering::SeqCst);
    let (x, b) = (node.svid("x"), node.svid("b"));
    let stuck: Vec<_> = (0..10)
        .map(|_| {
            let mut tls = node.call(Some(&x), HTTPS).expect("connected");
            tls.send("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n");
            tls
        })
        .collect();
    let rules = "rules:\n  - {id: b-to-b, tenant: t, from: {workload: x}, to: {workload: b, port: https}}\n\
        \x20 - {id: x-to-a, tenant: t, from: {workload: x}, to: {workload: service-a, port: https}}\n";
    node.publish(rules);
    for _ in 0..20 {
        let began = Instant::now();
        let mut tls =
            data::Tls::connect(&node.ip(99), &format!("{}:{HTTPS}", node.ip(31)), Some(&x)).expect("connected");
        assert_eq!(tls.ask("GET /anything HTTP/1.1\r\nHost: b\r\n\r\n").status, 200);
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
    drop(b);
    for mut tls in stuck {
        let answer = tls.answer().expect("an answer");
        assert_eq!(answer.status, 503, "{answer:?}");
    }
    node.audited(10, |line| {
        is(line, &[("kind", "request"), ("workload", "service-a"), ("reason", "guest_unreachable")])
    });
    node.guest(A).stalled.store(false, Ordering::SeqCst);
    until("the app is found again", || {
        let Ok(mut tls) = node.call(Some(&x), HTTPS) else { return false };
        tls.ask("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n").status == 200
    });
    until("descriptors come back", || node.descriptors() <= before + 8);
}

// covers: A12b
#[test]
fn records_that_are_none_end_their_connection_only() {
    let (node, plain) = node_and_plain(Plan { half_close: false, ..Plan::default() });
    let bystander = Bystander::start(&node);
    for bytes in [&[9, 9, 9][..], &[0, 0, 0], &[1, 0, 5], &[2, 0, 0], &[0, 0xff, 0xff, b'G'], &[0, 0, 1, 5, 3, 3, 3]] {
        for first in [true, false] {
            let mut stream = node.guest(X).connect();
            stream.write_all(&hello(1, true, token(X), "")).expect("sent");
            if !first {
                let _ = stream.write_all(&[0, 0, 4]).and_then(|()| stream.write_all(b"GET "));
            }
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
    bystander.finish("broken records");
    until("nothing is left open", || node.open("x") == 0);
    assert!(plain.seen().iter().all(|request| request.starts_with("GET /b ")));
    node.audited(12, |line| is(line, &[("kind", "connection"), ("workload", "x")]));
}

// covers: A12b, D17k
#[test]
fn a_destination_that_answers_without_end_before_its_answer_is_given_up() {
    let node = Node::start();
    let _plain = Upstream::start(&format!("{}:8080", node.ip(80)), |mut stream| {
        let _ = data::read_request(&mut stream);
        while stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n").is_ok() {}
    });
    let mut link = node.proxy(X);
    link.send("GET http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test:8080\r\n\r\n");
    assert_eq!(read_answer(&mut link).expect("an answer").status, 502);
    node.audited_once(|line| is(line, &[("reason", "upstream_malformed")]));
}

// covers: A12b
#[test]
fn callers_beyond_the_cap_are_refused_and_recorded_with_their_address() {
    let plan = Plan::default();
    let endpoints = plan.endpoints.replace(
        "boot_token: 00000000000000000000000000000021",
        "boot_token: 00000000000000000000000000000021\n    limits: {max_connections: 8}",
    );
    let node = Node::with(Plan { endpoints, ..plan });
    let x = node.svid("x");
    let held: Vec<_> = (0..8).map(|_| node.call(Some(&x), HTTPS).expect("connected")).collect();
    until("the cap is reached", || node.open("service-a") == 8);
    for _ in 0..3 {
        assert!(node.call(Some(&x), HTTPS).is_err());
    }
    let lines = node.audited(3, |line| is(line, &[("reason", "limit_connections"), ("direction", "ingress")]));
    assert!(
        lines.iter().all(|line| line["src"].as_str().is_some_and(|src| src.starts_with(&node.ip(99)))),
        "{lines:#?}"
    );
    drop(held);
    until("the places are free", || node.open("service-a") == 0);
    assert_eq!(
        node.call(Some(&x), HTTPS).expect("connected").ask("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n").status,
        200
    );
}

// covers: A12b
#[test]
fn silent_callers_are_let_go_after_the_deadline_of_a_handshake() {
    let node = Node::start();
    let mut silent = Vec::new();
    for n in 0..40 {
        // From four sources: one alone has a quarter of the places.
        let mut tcp = data::dial(&node.ip(96 + n % 4), &format!("{}:{HTTPS}", node.ip(21))).expect("connected");
        tcp.write_all(&[0x16]).expect("sent");
        silent.push(tcp);
    }
    // F-IT06: a good caller is served meanwhile.
    let answer =
        node.call(Some(&node.svid("x")), HTTPS).expect("connected").ask("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(answer.status, 200);
    for tcp in &mut silent {
        assert!(!matches!(tcp.read(&mut [0; 8]), Ok(1..)));
    }
    let lines = node.audited(40, |line| is(line, &[("kind", "connection"), ("reason", "handshake_timeout")]));
    assert!(lines.iter().all(|line| line["duration_us"].as_u64() < Some(15_000_000)));
    until("nothing is left open", || node.open("service-a") == 0);
}
