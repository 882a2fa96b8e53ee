//! Limits of an endpoint: at the limit, one above it, and what the next endpoint notices of it.

mod data;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use data::{A, B, HTTPS, Node, Plan, RAW, Tls, is, read_request, until};

const ORDER: &str = "GET /v1/orders/42 HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n";

/// The default node with `limits` on service-a.
fn limited(limits: &str) -> Plan {
    let plan = Plan::default();
    let endpoints = plan.endpoints.replace(
        "boot_token: 00000000000000000000000000000021",
        &format!("boot_token: 00000000000000000000000000000021\n    limits: {limits}"),
    );
    Plan { endpoints, ..plan }
}

/// A TLS client that stops after the first byte.
fn silent(node: &Node, from: u8) -> TcpStream {
    let mut tcp = data::dial(&node.ip(from), &format!("{}:{HTTPS}", node.ip(21))).expect("connected");
    tcp.write_all(&[0x16]).expect("sent");
    tcp
}

/// Whether a client that comes now is reset.
fn is_refused(node: &Node, from: u8) -> bool {
    // Whichever call meets the reset first is the one that reports it.
    let tried = data::dial(&node.ip(from), &format!("{}:{HTTPS}", node.ip(21))).and_then(|mut tcp| {
        tcp.write_all(&[0x16])?;
        tcp.read(&mut [0; 8])
    });
    tried.is_err_and(|error| {
        matches!(error.kind(), std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe)
    })
}

// covers: C9a
#[test]
fn one_source_holds_a_quarter_of_the_handshakes_and_nobody_else_is_kept_out() {
    // T29
    let node = Node::with(limited("{max_handshakes: 8}"));
    let x = node.svid("x");
    let held = [silent(&node, 99), silent(&node, 99)];
    until("both are counted", || node.open("service-a") == 2);
    assert!(is_refused(&node, 99), "one more than its share");
    let line = node.audited_once(|line| is(line, &[("reason", "limit_connections")]));
    assert!(is(&line, &[("kind", "connection"), ("verdict", "deny"), ("detail", "handshakes_of_source")]), "{line}");
    // Another source is served, and so is the same one at another endpoint.
    let at = |from: u8, to: u8| Tls::connect(&node.ip(from), &format!("{}:{HTTPS}", node.ip(to)), Some(&x));
    assert_eq!(at(98, 21).expect("another source").ask(ORDER).status, 200);
    drop(at(99, 31).expect("another endpoint"));
    drop(held);
    until("the places are free again", || node.open("service-a") == 0);
    assert_eq!(at(99, 21).expect("its share is free").ask(ORDER).status, 200);
    assert_eq!(node.guest(A).app.seen().len(), 2);
    assert!(node.guest(B).app.seen().is_empty());
}

// covers: C9a
#[test]
fn all_places_can_be_taken_by_four_sources_and_then_nobody_gets_one() {
    let node = Node::with(limited("{max_handshakes: 8}"));
    let held: Vec<_> =
        [96, 97, 98, 99].into_iter().flat_map(|from| [silent(&node, from), silent(&node, from)]).collect();
    until("all are counted", || node.open("service-a") == 8);
    assert!(is_refused(&node, 100));
    let line = node.audited_once(|line| is(line, &[("reason", "limit_connections")]));
    assert!(is(&line, &[("detail", "handshakes")]), "{line}");
    drop(held);
}

/// Sends back what comes, as it comes, until the other side ends.
fn echo(mut link: data::Link) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(read @ 1..) = link.read(&mut buffer) {
        if link.write_all(&buffer[..read]).is_err() {
            return;
        }
    }
    link.finish();
}

fn raw(node: &Node) -> TcpStream {
    data::dial(&node.ip(99), &format!("{}:{RAW}", node.ip(21))).expect("connected")
}

fn says(tcp: &mut TcpStream, word: &[u8]) {
    tcp.write_all(word).expect("sent");
    let mut answer = vec![0; word.len()];
    tcp.read_exact(&mut answer).expect("an echo");
    assert_eq!(answer, word);
}

// covers: C9b
#[test]
fn connections_above_the_rate_are_late_and_none_is_lost() {
    let node = Node::with(limited("{connections_per_second: 5}"));
    node.guest(A).serve(|link, _| echo(link));
    let began = Instant::now();
    let mut callers: Vec<_> = (0..7).map(|_| raw(&node)).collect();
    for caller in &mut callers[..5] {
        says(caller, b"hello");
    }
    // Another endpoint has a rate of its own.
    drop(Tls::connect(&node.ip(99), &format!("{}:{HTTPS}", node.ip(31)), Some(&node.svid("x"))).expect("connected"));
    for caller in &mut callers[5..] {
        says(caller, b"hello");
    }
    // The sixth has its turn after 200 ms, the seventh after 400 ms.
    assert!(began.elapsed() >= Duration::from_millis(395), "{:?}", began.elapsed());
    assert_eq!(node.open("service-a"), 7);
}

// covers: C9b
#[test]
fn a_guests_connections_far_above_its_rate_are_refused() {
    let plan = Plan::default();
    let endpoints = plan.endpoints.replace(
        "boot_token: 00000000000000000000000000000011",
        "boot_token: 00000000000000000000000000000011\n    limits: {connections_per_second: 1}",
    );
    let node = Node::with(Plan { endpoints, ..plan });
    // The presence connection of a guest gives its turn back.
    let presence: Vec<_> = (1..=5)
        .map(|n| {
            let link = node.guest(data::X).dial(5, data::token(data::X), "");
            until("it is there", || node.open("x") == n);
            link
        })
        .collect();
    until("the last one was heard as well", || node.ask(&serde_json::json!({"op": "ready"})).is_some());
    // Now, in a second, and later than anybody waits.
    let links = [node.proxy(data::X), node.proxy(data::X), node.proxy(data::X)];
    let refused = node.audited_once(|line| is(line, &[("reason", "limit_rate")]));
    assert!(is(&refused, &[("kind", "connection"), ("direction", "egress"), ("verdict", "deny")]), "{refused}");
    until("the others are open", || node.open("x") == 7);
    drop((presence, links));
}

// covers: C9b, D17a
#[test]
fn a_guests_connections_are_counted_before_they_say_anything() {
    let plan = Plan::default();
    let endpoints = plan.endpoints.replace(
        "boot_token: 00000000000000000000000000000011",
        "boot_token: 00000000000000000000000000000011\n    limits: {max_connections: 4, connections_per_second: 1}",
    );
    let node = Node::with(Plan { endpoints, ..plan });
    let closed_at_once = |mut stream: std::os::unix::net::UnixStream| {
        let began = Instant::now();
        assert!(matches!(stream.read(&mut [0; 8]), Ok(0) | Err(_)));
        // Long before the deadline of a hello.
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    };
    let silent: Vec<_> = (0..2).map(|_| node.guest(data::X).connect()).collect();
    until("two are counted", || node.open("x") == 2);
    closed_at_once(node.guest(data::X).connect());
    node.audited_once(|line| is(line, &[("kind", "connection"), ("workload", "x"), ("reason", "limit_rate")]));
    drop(silent);
}

/// Sends `bytes` to the raw port, and reads the same from there; how long both took.
fn bulk(node: &Node, bytes: usize) -> Duration {
    let mut caller = raw(node);
    let began = Instant::now();
    let mut writer = caller.try_clone().expect("a descriptor");
    let sending = std::thread::spawn(move || {
        writer.write_all(&vec![7; bytes]).expect("slowed, not cut");
        writer.shutdown(std::net::Shutdown::Write).expect("ended");
    });
    let mut back = Vec::new();
    caller.read_to_end(&mut back).expect("slowed, not cut");
    sending.join().expect("no panic");
    assert_eq!(back.len(), bytes);
    began.elapsed()
}

// covers: C9b
#[test]
fn bytes_pass_both_ways_at_the_rate_that_all_connections_share() {
    let node = Node::with(limited("{bytes_per_second: 200000}"));
    node.guest(A).serve(|link, _| echo(link));
    let took = std::thread::scope(|scope| {
        let copies: Vec<_> = (0..2).map(|_| scope.spawn(|| bulk(&node, 250_000))).collect();
        copies.into_iter().map(|copy| copy.join().expect("no panic")).max().expect("two")
    });
    // 500,000 each way: the first 200,000 at once, and each way on its own account.
    assert!(took >= Duration::from_millis(1_490), "{took:?}");
    assert!(took < Duration::from_millis(3_800), "each way has the whole rate: {took:?}");
}

// covers: C9b
#[test]
fn bodies_pass_at_the_rate_and_whole() {
    let node = Node::with(limited("{bytes_per_second: 200000}"));
    let body = "x".repeat(400_000);
    let answer = body.clone();
    node.guest(A).serve(move |mut link, app| {
        while let Ok(request) = read_request(&mut link) {
            app.saw(&request);
            link.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len()));
        }
    });
    let x = node.svid("x");
    let mut down = node.call(Some(&x), HTTPS).expect("connected");
    let began = Instant::now();
    assert_eq!(down.ask(ORDER).body.len(), body.len());
    assert!(began.elapsed() >= Duration::from_millis(990), "{:?}", began.elapsed());
    let mut up = node.call(Some(&x), HTTPS).expect("connected");
    let began = Instant::now();
    let post = format!("POST /v1/orders/42 HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    up.send(post);
    until("the app has it", || node.guest(A).app.seen().len() == 2);
    assert!(began.elapsed() >= Duration::from_millis(990), "{:?}", began.elapsed());
    assert!(node.guest(A).app.seen()[1].ends_with(&body), "whole");
}

/// What one in a hundred requests to service b takes at least.
fn p99(node: &Node) -> Duration {
    let x = node.svid("x");
    let mut tls = Tls::connect(&node.ip(98), &format!("{}:{HTTPS}", node.ip(31)), Some(&x)).expect("connected");
    let mut times: Vec<_> = (0..300)
        .map(|_| {
            let began = Instant::now();
            assert_eq!(tls.ask("GET /v1/orders/1 HTTP/1.1\r\nHost: b\r\n\r\n").status, 200);
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

// covers: C9d
#[test]
fn an_endpoint_at_each_of_its_limits_does_not_slow_another() {
    let rules = data::RULES.to_owned()
        + "  - id: x-to-b\n    tenant: t\n    from: {workload: x}\n    to: {workload: b, port: https}\n    http: {methods: [GET], paths: ['/**']}\n";
    let limits = "{max_connections: 40, max_handshakes: 8, bytes_per_second: 1000000, connections_per_second: 50}";
    let node = Node::with(Plan { rules, ..limited(limits) });
    node.guest(A).serve(|link, _| echo(link));
    p99(&node);
    let quiet = p99(&node);
    // As fast as the rate lets it: bytes on two connections, handshakes and connections up to their caps and beyond.
    let stop = std::sync::atomic::AtomicBool::new(false);
    let going = || !stop.load(std::sync::atomic::Ordering::Relaxed);
    let busy = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut caller = raw(&node);
                let mut sink = caller.try_clone().expect("a descriptor");
                scope.spawn(move || while let Ok(1..) = sink.read(&mut [0; 16 * 1024]) {});
                while going() && caller.write_all(&[7; 16 * 1024]).is_ok() {}
                let _ = caller.shutdown(std::net::Shutdown::Both);
            });
        }
        scope.spawn(|| {
            let mut held = Vec::new();
            while going() {
                held.push(data::dial(&node.ip(99), &format!("{}:{HTTPS}", node.ip(21))));
                held.truncate(60);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        until("it is at its limits", || node.audit().iter().any(|line| is(line, &[("reason", "limit_connections")])));
        let busy = p99(&node);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        busy
    });
    // The callers of this test share the machine with the supervisor, so a few milliseconds are theirs.
    let most = (quiet * 2).max(quiet + Duration::from_millis(20));
    assert!(busy <= most, "p99 of the other endpoint: {quiet:?} before, {busy:?} beside it");
}

/// A head of exactly `bytes`.
fn head(bytes: usize) -> String {
    let bare = "GET /v1/orders/42 HTTP/1.1\r\nHost: a\r\nX-Pad: \r\n\r\n";
    bare.replace("X-Pad: ", &format!("X-Pad: {}", "p".repeat(bytes - bare.len())))
}

// covers: C9c
#[test]
fn a_head_may_be_as_long_as_its_endpoint_says_and_not_a_byte_longer() {
    let node = Node::with(limited("{max_header_bytes: 2048}"));
    let x = node.svid("x");
    let mut tls = node.call(Some(&x), HTTPS).expect("connected");
    assert_eq!(tls.ask(head(2048)).status, 200);
    assert_eq!(tls.ask(head(2049)).status, 431);
    assert_eq!(node.guest(A).app.seen().len(), 1);
    let mut other = Tls::connect(&node.ip(99), &format!("{}:{HTTPS}", node.ip(31)), Some(&x)).expect("connected");
    // No rule names the pair, which is said before a head is read: what counts is that nothing else is.
    let _ = other.write_all(head(2049).as_bytes());
    assert!(node.audit().iter().all(|line| line["workload"] != "b" || line["reason"] != "malformed"));
}

// covers: C9c (F-LB01)
// covers: C11c
#[test]
fn heads_and_silence_take_no_longer_than_the_endpoint_says() {
    let node = Node::with(limited("{header_timeout_ms: 400, idle_timeout_ms: 400, stream_idle_timeout_ms: 400}"));
    node.guest(A).serve(|link, _| echo(link));
    let x = node.svid("x");
    let mut partial = node.call(Some(&x), HTTPS).expect("connected");
    partial.send("GET /v1/orders/42 HTTP/1.1\r\nHo");
    assert_eq!(partial.answer().expect("told so").status, 408);
    let mut idle = node.call(Some(&x), HTTPS).expect("connected");
    assert!(idle.is_closed(), "nothing began, so nothing is answered");
    let mut stream = raw(&node);
    says(&mut stream, b"hello");
    assert!(!matches!(stream.read(&mut [0; 8]), Ok(1..)), "silent for too long");
    node.guest(A).serve(|mut link, _| {
        let _ = link.rest();
        std::mem::forget(link);
    });
    let mut half = raw(&node);
    half.shutdown(std::net::Shutdown::Write).expect("ended");
    assert!(!matches!(half.read(&mut [0; 8]), Ok(1..)), "half of a stream is not kept for ever");
    node.audited(2, |line| is(line, &[("kind", "close"), ("direction", "ingress"), ("close", "idle_timeout")]));
    until("nothing is left open", || node.open("service-a") == 0);
}

// covers: C9c
#[test]
fn bytes_that_go_on_keep_a_stream_open_past_its_idle_time() {
    let node = Node::with(limited("{stream_idle_timeout_ms: 600}"));
    node.guest(A).serve(|link, _| echo(link));
    let mut stream = raw(&node);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1500) {
        says(&mut stream, b"x");
        std::thread::sleep(Duration::from_millis(50));
    }
    says(&mut stream, b"still here");
}

// covers: C11d
#[test]
fn a_body_that_stands_still_is_answered_408_and_nothing_of_it_counts_as_the_apps_fault() {
    let node = Node::with(limited("{body_timeout_ms: 500}"));
    node.guest(A).serve(|mut link, _| drop(link.rest()));
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    tls.send("POST /v1/orders/42 HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhel");
    assert_eq!(tls.answer().expect("told so").status, 408);
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("direction", "ingress")]));
    assert!(is(&line, &[("verdict", "deny"), ("reason", "body_timeout")]) && line["bytes_in"] == 3, "{line}");
    until("its place is free", || node.open("service-a") == 0);
}

// covers: C11d
#[test]
fn a_stream_of_http2_that_stands_still_is_answered_408_and_its_connection_goes_on() {
    let node = Node::with(limited("{body_timeout_ms: 500}"));
    node.guest(A).serve(|mut link, app| match read_request(&mut link) {
        Ok(request) if request.starts_with("GET") => {
            app.saw(&request);
            link.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
        _ => drop(link.rest()),
    });
    let mut h2 = node.call_h2(&node.svid("x"), HTTPS);
    let mut fields = data::h2::head("POST", "/v1/orders/42");
    fields.push(("content-length", "10"));
    h2.headers(1, &fields, false);
    h2.data(1, b"hel", false);
    assert_eq!(h2.reply(1).status(), 408);
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("direction", "ingress")]));
    assert!(is(&line, &[("verdict", "deny"), ("reason", "body_timeout")]) && line["bytes_in"] == 3, "{line}");
    assert_eq!(h2.ask(3, "GET", "/v1/orders/1").status(), 200);
}

// covers: C11d
#[test]
fn single_bytes_do_not_keep_a_body_alive() {
    // F-LB01
    let node = Node::with(limited("{body_timeout_ms: 3000}"));
    node.guest(A).serve(|mut link, _| drop(link.rest()));
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    tls.send("POST /v1/orders/42 HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    // A byte every two seconds is half of what must come.
    let began = Instant::now();
    let closed = loop {
        if tls.write_all(b"x").is_err() || began.elapsed() > data::PATIENCE {
            break began.elapsed();
        }
        if node.audit().iter().any(|line| is(line, &[("reason", "body_timeout")])) {
            break began.elapsed();
        }
        std::thread::sleep(Duration::from_secs(2));
    };
    assert!(closed < data::PATIENCE);
    node.audited_once(|line| is(line, &[("reason", "body_timeout")]));
}

// covers: C11d
#[test]
fn an_answer_that_stands_still_is_cut_and_is_the_apps_fault() {
    let node = Node::with(limited("{answer_timeout_ms: 400}"));
    node.guest(A).serve(|mut link, _| {
        let _ = read_request(&mut link);
        link.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
        let _ = link.rest();
    });
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    tls.send(ORDER);
    let mut all = Vec::new();
    let _ = tls.read_to_end(&mut all);
    assert!(all.ends_with(b"half"), "{}", String::from_utf8_lossy(&all));
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("direction", "ingress")]));
    assert!(
        is(&line, &[("verdict", "error"), ("reason", "upstream_timeout"), ("close", "upstream_timeout")]),
        "{line}"
    );
}

// covers: C11a
#[test]
fn a_connection_at_its_lifetime_is_decided_again_and_stays_on_a_yes() {
    let node = Node::with(limited("{max_lifetime_ms: 200}"));
    node.guest(A).serve(|link, app| if link.target == "15432" { echo(link) } else { data::polite(link, app) });
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    assert_eq!(tls.ask(ORDER).status, 200);
    let mut stream = raw(&node);
    says(&mut stream, b"hello");
    std::thread::sleep(Duration::from_millis(700));
    says(&mut stream, b"still here");
    assert_eq!(tls.ask(ORDER).status, 200);
}

// covers: C11a
#[test]
fn connections_close_at_their_lifetime_where_the_endpoint_says_so_and_answers_finish_first() {
    let node = Node::with(limited("{max_lifetime_ms: 500, close_at_max_lifetime: true}"));
    let x = node.svid("x");
    node.guest(A).serve(|mut link, _| {
        if link.target == "15432" {
            return echo(link);
        }
        let _ = read_request(&mut link);
        link.send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
        std::thread::sleep(Duration::from_millis(1000));
        link.send("half");
        let _ = link.rest();
    });
    let mut idle = node.call(Some(&x), HTTPS).expect("connected");
    let mut slow = node.call(Some(&x), HTTPS).expect("connected");
    let mut stream = raw(&node);
    says(&mut stream, b"hello");
    assert_eq!(slow.ask(ORDER).text(), "halfhalf", "what was on its way arrives");
    assert!(slow.is_closed() && idle.is_closed());
    assert!(!matches!(stream.read(&mut [0; 8]), Ok(1..)));
    let close = node.audited_once(|line| is(line, &[("kind", "close"), ("direction", "ingress")]));
    assert!(is(&close, &[("close", "max_lifetime")]), "{close}");
    node.audited(2, |line| is(line, &[("kind", "connection"), ("direction", "ingress"), ("close", "max_lifetime")]));
}

// covers: C10b
#[test]
fn no_endpoint_takes_anothers_share_of_the_processes_connections() {
    // T14: 256 files are 96 connections; of them 16 for each of three endpoints, and 48 for whoever comes first.
    let node = Node::with(Plan { files: Some(256), ..Plan::default() });
    let counts = || node.ask(&serde_json::json!({"op": "ready"})).expect("an answer")["connections"].clone();
    assert_eq!(counts()["budget"], 96);
    assert_eq!((counts()["guaranteed"].as_u64(), counts()["shared"].as_u64()), (Some(16), Some(48)));
    let greedy: Vec<_> = (0..64).map(|_| raw(&node)).collect();
    until("all are counted", || node.open("service-a") == 64);
    assert_eq!(counts()["shared_open"], 48);
    let one_more = data::dial(&node.ip(99), &format!("{}:{RAW}", node.ip(21)));
    node.audited_once(|line| is(line, &[("reason", "limit_process"), ("workload", "service-a")]));
    // The quiet ones have what is theirs.
    let quiet: Vec<_> =
        (0..16).map(|_| data::dial(&node.ip(98), &format!("{}:{HTTPS}", node.ip(31))).expect("connected")).collect();
    until("all are counted", || node.open("b") == 16);
    drop((greedy, one_more));
    until("they are given back", || node.open("service-a") == 0 && counts()["shared_open"] == 0);
    drop(quiet);
}
