//! An endpoint that goes: what is open finishes, nothing new begins, then its address answers nobody.

mod data;

use std::io::{ErrorKind, Read, Write};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use data::h2::{Event, GOAWAY, H2, NO_ERROR, find};
use data::secure::{Host, TlsServer, speaks};
use data::{
    A, HTTPS, Link, Node, Plan, RAW, RULES, Upstream, X, is, issue, read_answer, read_head, read_request, until,
};

/// A port without TLS on which HTTP is spoken.
const PLAIN: u16 = 8080;

// covers: R12
#[test]
fn a_slow_answer_finishes_whole_while_the_endpoint_drains_and_new_callers_find_nobody() {
    let node = Node::start();
    let (go, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    node.guest(A).serve(move |mut link, app| {
        let Ok(request) = read_request(&mut link) else { return };
        app.saw(&request);
        link.send("HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n");
        // Pieces, each on the test's word.
        for piece in 0..4 {
            let _ = wait.lock().expect("no panic").recv();
            link.send(format!("piece {piece}..."));
        }
        let _ = link.rest();
    });
    let x = node.svid("x");
    let mut idle = node.call(Some(&x), HTTPS).expect("connected");
    let mut slow = node.call(Some(&x), HTTPS).expect("connected");
    slow.send("GET /v1/orders/slow HTTP/1.1\r\nHost: a\r\n\r\n");
    read_head(&mut slow).expect("a head");
    go.send(()).expect("the app waits");
    node.edit_endpoint("service-a", "state: ready", "state: draining");
    until("it drains", || node.stage("service-a").as_deref() == Some("draining"));
    // F-DU01: who never asked for anything does not hold it up.
    assert!(!matches!(idle.read(&mut [0; 8]), Ok(1..)));
    until("only the slow one is left", || node.open("service-a") == 1);
    assert!(
        node.call(Some(&x), HTTPS).is_err() && data::dial(&node.ip(99), &format!("{}:{RAW}", node.ip(21))).is_err()
    );
    for _ in 0..3 {
        go.send(()).expect("the app waits");
    }
    let mut body = [0; 40];
    slow.read_exact(&mut body).expect("the whole answer");
    assert_eq!(&body[30..], b"piece 3...");
    // Then the connection ends in good order, and with it the endpoint.
    assert_eq!(slow.read(&mut [0; 8]).expect("a good end"), 0);
    until("it is drained", || node.endpoint("service-a").is_none_or(|row| row["phase"] == "DRAINED"));
    assert!(node.guest(A).try_connect().is_err(), "the guest's socket is gone");
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("direction", "ingress")]));
    assert!(is(&line, &[("close", "done")]) && line["bytes_out"] == 40, "{line}");
    // The others go on.
    assert_eq!(node.stage("b").as_deref(), Some("serving"));
}

/// Service-a with a port without TLS, and so many new callers a second.
fn at_a_rate(rate: u32) -> Plan {
    let plan = Plan::default();
    let raw = "      - {name: raw, port: 5432";
    let port = format!("      - {{name: plain, port: {PLAIN}, target_port: 18080, mode: tcp, protocol: http}}\n");
    let token = "    boot_token: 00000000000000000000000000000021\n";
    let limits = format!("    limits: {{connections_per_second: {rate}}}\n");
    let rule = "  - id: outside-to-a-plain
    tenant: t
    from: {cidr: NET.96/28}
    to: {workload: service-a, port: plain}
    http: {methods: [GET], paths: ['/v1/orders/**']}
";
    Plan {
        endpoints: plan.endpoints.replacen(raw, &format!("{port}{raw}"), 1).replace(token, &format!("{token}{limits}")),
        rules: format!("{RULES}{rule}"),
        log: "info",
        ..plan
    }
}

fn plain(node: &Node) -> std::net::TcpStream {
    data::dial(&node.ip(99), &format!("{}:{PLAIN}", node.ip(21))).expect("connected")
}

// covers: C11b
// covers: C9b
#[test]
fn callers_who_wait_for_their_turn_when_the_drain_begins_are_served() {
    let node = Node::with(at_a_rate(2));
    let mut waiting: Vec<_> = (0..60).map(|_| plain(&node)).collect();
    // Some have sent their request, in either version; the others are about to.
    for caller in &mut waiting[..20] {
        caller.write_all(b"GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
    }
    let mut streams: Vec<_> = waiting.drain(20..40).map(H2::client).collect();
    for h2 in &mut streams {
        h2.request(1, "GET", "/v1/orders/2");
    }
    node.edit_endpoint("service-a", "state: ready", "state: draining");
    until("it drains", || node.stage("service-a").as_deref() == Some("draining"));
    for caller in &mut waiting[20..] {
        caller.write_all(b"GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
    }
    for (index, caller) in waiting.iter_mut().enumerate() {
        let answer = read_answer(caller).expect("an answer");
        // The first ones had their turn before the drain.
        let says_close = answer.header("connection").as_deref() == Some("close");
        assert!(answer.status == 200 && (says_close || index < 20), "{index}: {}", answer.head);
        assert_eq!(caller.read(&mut [0; 8]).expect("a good end"), 0);
    }
    for h2 in &mut streams {
        assert_eq!(h2.reply(1).status(), 200);
    }
    drop(streams);
    until("it is drained", || node.log().contains("DRAINED"));
    assert!(!node.log().contains("drain_timeout"), "{}", node.log());
}

// covers: R12
#[test]
fn idle_connections_of_the_guest_do_not_hold_up_its_drain() {
    let node = Node::start();
    let _plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    let mut idle = node.proxy(X);
    idle.send("GET http://plain.test:8080/ HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(read_answer(&mut idle).expect("an answer").status, 200);
    let mut silent = node.proxy(X);
    let mut tunnel = node.proxy(X);
    tunnel.send("CONNECT api.test:9443 HTTP/1.1\r\nHost: x\r\n\r\n");
    read_head(&mut tunnel).expect("a tunnel whose requests are decided");
    let _presence = node.guest(X).dial(5, data::token(X), "");
    until("all are counted", || node.open("x") == 4);
    let began = Instant::now();
    node.edit_endpoint("x", "state: ready", "state: draining");
    idle.wait_closed();
    silent.wait_closed();
    tunnel.wait_closed();
    until("it is drained", || node.endpoint("x").is_none_or(|row| row["phase"] == "DRAINED"));
    assert!(began.elapsed().as_secs() < 6, "the drain took its whole time-out");
    let tunnel = node.audited_once(|line| is(line, &[("kind", "request"), ("method", "CONNECT")]));
    assert!(is(&tunnel, &[("verdict", "allow"), ("close", "draining")]), "{tunnel}");
}

// covers: R12
#[test]
fn what_outlasts_the_drain_is_cut_and_recorded() {
    let node = Node::start();
    node.guest(A).serve(|mut link, _| drop(link.rest()));
    let mut raw = data::dial(&node.ip(99), &format!("{}:{RAW}", node.ip(21))).expect("connected");
    raw.write_all(b"x").expect("sent");
    // A caller in the middle of its handshake holds nothing up either.
    let mut handshake = data::dial(&node.ip(99), &format!("{}:{HTTPS}", node.ip(21))).expect("connected");
    handshake.write_all(&[0x16]).expect("sent");
    until("both are counted", || node.open("service-a") == 2);
    let began = Instant::now();
    node.edit_endpoint("service-a", "drain_timeout_ms: 8000", "drain_timeout_ms: 500");
    node.edit_endpoint("service-a", "state: ready", "state: draining");
    assert!(!matches!(raw.read(&mut [0; 8]), Ok(1..)));
    assert!(!matches!(handshake.read(&mut [0; 8]), Ok(1..)));
    assert!(began.elapsed().as_secs() < 6, "a handshake outlived its endpoint");
    let close = node.audited_once(|line| is(line, &[("kind", "close"), ("direction", "ingress")]));
    assert!(is(&close, &[("close", "draining")]), "{close}");
    let unfinished = [("kind", "connection"), ("verdict", "deny"), ("reason", "draining")];
    node.audited_once(|line| is(line, &unfinished));
    until("it is drained", || node.endpoint("service-a").is_none_or(|row| row["phase"] == "DRAINED"));
    assert!(node.connections().is_empty());
}

// covers: C11b
#[test]
fn an_answer_that_ends_three_seconds_after_the_drain_began_arrives_whole_and_says_close() {
    let node = Node::start();
    let (go, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    node.guest(A).serve(move |mut link, _| {
        let Ok(_) = read_request(&mut link) else { return };
        let _ = wait.lock().expect("no panic").recv();
        link.send("HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n");
        for _ in 0..30 {
            std::thread::sleep(Duration::from_millis(100));
            link.send([b'x'; 10_000]);
        }
        let _ = link.rest();
    });
    let mut slow = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    slow.send("GET /v1/orders/slow HTTP/1.1\r\nHost: a\r\n\r\n");
    until("it is on its way", || node.open("service-a") == 1);
    node.edit_endpoint("service-a", "state: ready", "state: draining");
    until("it drains", || node.stage("service-a").as_deref() == Some("draining"));
    let began = Instant::now();
    go.send(()).expect("the app waits");
    let answer = slow.answer().expect("the whole answer");
    assert!(began.elapsed() >= Duration::from_secs(3));
    assert_eq!((answer.status, answer.body.len()), (200, 300_000));
    assert_eq!(answer.header("connection").as_deref(), Some("close"), "{}", answer.head);
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("direction", "ingress")]));
    assert!(is(&line, &[("close", "done")]) && line["bytes_out"] == 300_000, "{line}");
}

// covers: C11b
#[test]
fn idle_connections_into_a_draining_guest_are_closed_at_once() {
    let node = Node::start();
    let ended = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&ended);
    node.guest(A).serve(move |mut link, app| {
        if link.target == "15432" {
            return drop(link.rest());
        }
        while let Ok(request) = read_request(&mut link) {
            app.saw(&request);
            link.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
        count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    });
    let mut caller = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    assert_eq!(caller.ask("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    // Something else that is open keeps the endpoint from ending.
    let mut stream = data::dial(&node.ip(99), &format!("{}:{RAW}", node.ip(21))).expect("connected");
    stream.write_all(b"x").expect("sent");
    until("both are counted", || node.open("service-a") == 2);
    let began = Instant::now();
    node.edit_endpoint("service-a", "state: ready", "state: draining");
    until("the app sees the end", || ended.load(std::sync::atomic::Ordering::SeqCst) == 1);
    // An idle connection is kept for four seconds where nothing drains; the file is looked at five times a second.
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(node.stage("service-a").as_deref(), Some("draining"));
}

fn resets(tcp: &std::net::TcpStream) {
    socket2::SockRef::from(tcp).set_linger(Some(Duration::ZERO)).expect("set");
}

// covers: C11e
#[test]
fn a_reset_is_carried_as_a_reset_and_an_end_as_an_end_both_ways() {
    // Links that carry records can say both; on a plain one a reset is an end.
    let node = Node::with(Plan { half_close: false, ..Plan::default() });
    let (saw, seen) = channel();
    let saw = std::sync::Mutex::new(saw);
    node.guest(A).serve(move |mut link, _| {
        let mut word = [0; 5];
        let _ = link.read_exact(&mut word);
        match &word {
            b"reset" => {
                let _ = link.stream.write_all(&[2, 0, 0]);
            }
            b"ended" => link.finish(),
            _ => {}
        }
        let end = link.read(&mut word).map_err(|error| error.kind());
        link.finish();
        let _ = saw.lock().expect("no panic").send(end);
    });
    let call = |word: &[u8]| {
        let mut tcp = data::dial(&node.ip(99), &format!("{}:{RAW}", node.ip(21))).expect("connected");
        tcp.write_all(word).expect("sent");
        tcp
    };
    let next = || seen.recv_timeout(data::PATIENCE).expect("the app saw an end");
    let caller = call(b"hello");
    until("it is carried", || node.open("service-a") == 1);
    resets(&caller);
    drop(caller);
    assert_eq!(next(), Err(ErrorKind::ConnectionReset), "of the caller");
    let caller = call(b"hello");
    caller.shutdown(std::net::Shutdown::Write).expect("ended");
    assert_eq!(next(), Ok(0), "of the caller");
    drop(caller);
    let mut caller = call(b"reset");
    assert_eq!(caller.read(&mut [0; 8]).map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset), "of the app");
    let _ = next();
    let mut caller = call(b"ended");
    assert_eq!(caller.read(&mut [0; 8]).expect("in good order"), 0, "of the app");
    caller.write_all(b"!").expect("the other way is open");
    assert_eq!(next(), Ok(1));
    let closes = node.audited(3, |line| is(line, &[("kind", "close"), ("direction", "ingress")]));
    let ends: Vec<_> = closes.iter().map(|line| line["close"].as_str().expect("a reason")).collect();
    assert_eq!(ends.iter().filter(|end| **end == "reset").count(), 2, "{ends:?}");
}

/// `api.test`, which keeps its answer to the first stream of a connection open until the second one ends, and sends back what
/// comes on that.
fn patient_host(node: &Node) -> Host {
    let certificate = issue(&node.web, "spiffe://web/api", "api.test");
    Host::start(&format!("{}:9443", node.ip(80)), speaks(&certificate, &["h2"]), |connection, tls: TlsServer| {
        let Ok(mut h2) = H2::server(tls) else { return };
        let mut kept = None;
        while let Ok(event) = h2.event() {
            match event {
                Event::Headers { stream, fields, end } => {
                    connection.saw_fields(&fields);
                    h2.headers(stream, &[(":status", "200")], false);
                    if end {
                        h2.data(stream, b"first ", false);
                        kept = Some(stream);
                    }
                }
                Event::Data { stream, bytes, end } => {
                    h2.data(stream, &bytes, end);
                    if let Some(kept) = kept.filter(|_| end) {
                        h2.data(kept, b"second", true);
                    }
                }
                Event::Reset { .. } | Event::GoAway { .. } => {}
            }
        }
    })
}

/// The two ways on which an app of x speaks HTTP/2 to `api.test`, each with an answer and an upload that have begun.
fn streams_of_x(node: &Node) -> [H2<Link>; 2] {
    let mut tunnel = node.proxy(X);
    tunnel.send("CONNECT api.test:9443 HTTP/1.1\r\nHost: api.test:9443\r\n\r\n");
    assert!(read_head(&mut tunnel).expect("an answer").starts_with("HTTP/1.1 200"));
    let socket = node.guest(X).dial(4, data::token(X), "egress.sock");
    [tunnel, socket].map(|link| {
        let mut h2 = H2::client(link);
        h2.headers(1, &to_api("GET", "/v1/slow"), true);
        assert_eq!(received(&mut h2, 1, 6), b"first ");
        h2.headers(3, &to_api("POST", "/v1/upload"), false);
        h2.data(3, b"ping", false);
        assert_eq!(received(&mut h2, 3, 4), b"ping");
        h2
    })
}

fn to_api<'a>(method: &'a str, path: &'a str) -> [(&'a str, &'a str); 4] {
    [(":method", method), (":scheme", "http"), (":authority", "api.test:9443"), (":path", path)]
}

/// So many bytes of the answer to a stream, whose head must be a good one.
fn received(h2: &mut H2<Link>, wanted: u32, length: usize) -> Vec<u8> {
    let mut got = Vec::new();
    while got.len() < length {
        match h2.event().expect("an answer") {
            Event::Headers { stream, fields, .. } if stream == wanted => {
                assert_eq!(find(&fields, ":status"), Some("200"))
            }
            Event::Data { stream, bytes, .. } if stream == wanted => got.extend(bytes),
            other => unreachable!("{other:?}"),
        }
    }
    got
}

/// Reads until the last word on which streams are still served.
fn goodbye(h2: &mut H2<Link>) -> u32 {
    loop {
        let frame = h2.frame().expect("a goodbye");
        if frame.kind != GOAWAY {
            continue;
        }
        let number = |at: usize| u32::from_be_bytes(frame.payload[at..at + 4].try_into().expect("four bytes"));
        assert_eq!(number(4), NO_ERROR);
        if number(0) < 0x7fff_ffff {
            return number(0);
        }
    }
}

// covers: R12
// covers: D4b (F-DU03)
#[test]
fn streams_of_an_app_to_the_outside_finish_whole_while_its_endpoint_drains_and_no_new_one_begins() {
    let node = Node::start();
    let host = patient_host(&node);
    let mut ways = streams_of_x(&node);
    let began = Instant::now();
    node.edit_endpoint("x", "state: ready", "state: draining");
    for h2 in &mut ways {
        assert_eq!(goodbye(h2), 3);
        // Too late.
        h2.headers(5, &to_api("GET", "/v1/new"), true);
        h2.data(3, b"pong", true);
        let (mut upload, mut answer) = (Vec::new(), Vec::new());
        let mut ended = 0;
        while let Ok(event) = h2.event() {
            match event {
                Event::Data { stream, bytes, end } => {
                    ended += u32::from(end);
                    if stream == 1 { answer.extend(bytes) } else { upload.extend(bytes) }
                }
                Event::GoAway { code: NO_ERROR, .. } => {}
                other => unreachable!("{other:?}"),
            }
        }
        assert_eq!((upload.as_slice(), answer.as_slice(), ended), (&b"pong"[..], &b"second"[..], 2));
    }
    until("it is drained", || node.endpoint("x").is_none_or(|row| row["phase"] == "DRAINED"));
    assert!(began.elapsed() < Duration::from_secs(7), "the drain took its whole time-out");
    assert!(!host.log.all().iter().any(|seen| seen.has(":path: /v1/new")), "{:#?}", host.log.all());
    for path in ["/v1/slow", "/v1/upload"] {
        let lines = node.audited(2, |line| is(line, &[("kind", "request"), ("path", path)]));
        assert!(lines.iter().all(|line| is(line, &[("verdict", "allow"), ("close", "done")])), "{lines:#?}");
    }
    assert!(!node.audit().iter().any(|line| line["path"] == "/v1/new"), "it never was a request");
}

// covers: R12
// covers: D4b (F-DU03, F-DU04)
#[test]
fn streams_of_an_app_that_outlast_the_drain_are_cut_at_its_end_and_recorded() {
    let node = Node::start();
    let _host = patient_host(&node);
    let mut ways = streams_of_x(&node);
    node.edit_endpoint("x", "drain_timeout_ms: 8000", "drain_timeout_ms: 1500");
    let began = Instant::now();
    node.edit_endpoint("x", "state: ready", "state: draining");
    for h2 in &mut ways {
        assert_eq!(goodbye(h2), 3);
    }
    // Alive until the end.
    ways[0].data(3, b"pong", false);
    assert_eq!(received(&mut ways[0], 3, 4), b"pong");
    for h2 in &mut ways {
        while h2.event().is_ok() {}
    }
    assert!(began.elapsed() >= Duration::from_millis(1500), "cut after {:?}", began.elapsed());
    until("it is drained", || node.endpoint("x").is_none_or(|row| row["phase"] == "DRAINED"));
    let lines = node.audited(4, |line| line["path"].as_str().is_some_and(|path| path.starts_with("/v1/")));
    assert!(lines.iter().all(|line| is(line, &[("verdict", "allow"), ("close", "draining")])), "{lines:#?}");
}

// covers: R12
#[test]
fn a_hangup_changes_nothing_and_a_quit_drains() {
    let node = Node::with(Plan { log: "info", ..Plan::default() });
    let signal = |signal| {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(node.pid).expect("a pid"));
        nix::sys::signal::kill(pid, signal).expect("it runs");
    };
    signal(nix::sys::signal::SIGHUP);
    until("it says so", || node.log().contains("SIGHUP changes nothing"));
    assert_eq!(node.stage("service-a").as_deref(), Some("serving"));
    signal(nix::sys::signal::SIGQUIT);
    assert_eq!(node.wait_exit(), Some(0));
    let log = node.log();
    assert_eq!(log.matches("phase=\"DRAINED\"").count(), 3, "{log}");
    assert!(!log.contains('\u{1b}'), "colours in a file: {log}");
}
