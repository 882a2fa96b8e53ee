//! No descriptors left, or no room for the log: nothing spins or ends, the node says that it is not ready, and serves again
//! afterwards.

mod data;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use data::h2::{Event, find};
use data::{A, HTTPS, Node, Plan, RAW, is, read_request, until};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};

/// Sets the supervisor's limit of open files; the former one comes back.
fn limit_files(node: &Node, most: Option<u64>) -> Option<u64> {
    let pid = Pid::from_raw(i32::try_from(node.pid).expect("a pid"));
    let former = rustix::process::getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current: most, maximum: former };
    prlimit(pid, Resource::Nofile, limit).expect("our own child").current
}

/// The lowest number that no descriptor of the supervisor has, also not for a moment as that of a health check: with this
/// limit it gets no other one.
fn first_free(node: &Node) -> u64 {
    let is_free = |fd: &u64| !std::path::Path::new(&format!("/proc/{}/fd/{fd}", node.pid)).exists();
    let look = |_| {
        std::thread::sleep(Duration::from_millis(5));
        (0..).find(is_free).expect("some number")
    };
    (0..40).map(look).min().expect("looked")
}

/// CPU time that the supervisor has used.
fn cpu_time(node: &Node) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", node.pid)).expect("it runs");
    let fields: Vec<_> = stat[stat.rfind(')').expect("a name") + 2..].split(' ').collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
    let hertz = rustix::param::clock_ticks_per_second();
    Duration::from_millis(ticks * 1000 / hertz)
}

/// An operator who was connected before the lack: asking takes no descriptor, so it leaves none behind either.
struct Operator(BufReader<UnixStream>);

impl Operator {
    fn of(node: &Node) -> Self {
        let stream = UnixStream::connect(node.dir.path().join("admin.sock")).expect("connected");
        stream.set_read_timeout(Some(data::PATIENCE)).expect("set");
        Self(BufReader::new(stream))
    }

    fn ready(&mut self) -> Value {
        writeln!(self.0.get_mut(), "{}", json!({"op": "ready"})).expect("asked");
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        serde_json::from_str::<Value>(&line).expect("JSON")["result"].take()
    }

    fn can_accept(&mut self) -> bool {
        can_accept(&self.ready())
    }
}

fn can_accept(ready: &Value) -> bool {
    let check = ready["checks"].as_array().expect("checks").iter().find(|check| check["name"] == "accept");
    let ok = check.expect("the check")["ok"] == true;
    assert!(ok || ready["ready"] == false, "{ready}");
    ok
}

fn call(node: &Node) -> TcpStream {
    data::dial(&node.ip(99), &format!("{}:{RAW}", node.ip(21))).expect("the kernel accepts")
}

fn is_served(mut caller: TcpStream) -> bool {
    let mut answer = [0; 5];
    caller.write_all(b"hello").and_then(|()| caller.read_exact(&mut answer)).is_ok() && &answer == b"hello"
}

// covers: C10a
#[test]
fn without_descriptors_the_node_rests_says_so_and_serves_those_who_waited() {
    let node = Node::start();
    node.guest(A).serve(|mut link, _| {
        let mut word = [0; 5];
        if link.read_exact(&mut word).is_ok() {
            link.send(word);
        }
        let _ = link.rest();
    });
    let mut operator = Operator::of(&node);
    assert!(is_served(call(&node)) && operator.can_accept());
    until("it is idle", || node.open("service-a") == 0);
    let all = limit_files(&node, Some(first_free(&node)));
    let waiting: Vec<_> = (0..6).map(|_| call(&node)).collect();
    until("it cannot accept", || !operator.can_accept());

    let (before, began) = (cpu_time(&node), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let used = cpu_time(&node) - before;
    assert!(used < Duration::from_millis(300), "{used:?} of {:?}: it spins", began.elapsed());
    assert!(!operator.can_accept(), "as long as the lack lasts");

    limit_files(&node, all);
    until("it can accept again", || operator.can_accept() && operator.ready()["ready"] == true);
    assert!(waiting.into_iter().all(is_served), "who waited was not lost");
    until("nothing is left open", || node.open("service-a") == 0);
    let log = node.log();
    let said = log.matches("connections cannot be accepted").count();
    assert!((1..=4).contains(&said), "{said} times, and not at each try:\n{log}");
}

// covers: C10c
#[test]
fn a_caller_who_took_the_last_descriptor_is_not_cut_for_want_of_one_to_the_app() {
    let node = Node::start();
    node.guest(A).serve(|mut link, _| {
        let mut word = [0; 5];
        if link.read_exact(&mut word).is_ok() {
            link.send(word);
        }
        let _ = link.rest();
    });
    assert!(is_served(call(&node)));
    until("it is idle", || node.open("service-a") == 0);
    let free = first_free(&node);
    let all = limit_files(&node, Some(free + 1));
    let caller = call(&node);
    until("it has the last one", || std::path::Path::new(&format!("/proc/{}/fd/{free}", node.pid)).exists());
    // Long enough for the supervisor to dial and fail.
    std::thread::sleep(Duration::from_millis(300));
    limit_files(&node, all);
    assert!(is_served(caller), "the lack was over in a moment");
}

// covers: C10a
#[test]
fn an_operator_who_comes_when_there_are_no_descriptors_is_answered_all_the_same() {
    let node = Node::start();
    until("it is idle", || node.open("service-a") == 0);
    limit_files(&node, Some(first_free(&node)));
    for _ in 0..3 {
        let ready = node.ask(&json!({"op": "ready"})).expect("an answer");
        assert!(can_accept(&ready), "nobody calls, so nothing is missing: {ready}");
    }
    assert!(node.log().contains("the operator's socket cannot accept a client"), "the limit was reached");
}

// covers: A12
// covers: C10a
#[test]
fn endpoints_that_changed_while_there_were_no_descriptors_are_followed_afterwards() {
    let node = Node::start();
    until("it is idle", || node.open("service-a") == 0);
    let all = limit_files(&node, Some(first_free(&node)));
    node.edit_endpoint("b", "state: ready", "state: draining");
    until("the change cannot be read", || node.log().contains("endpoints file refused"));
    limit_files(&node, all);
    until("it is followed all the same", || node.stage("b").as_deref() != Some("serving"));
    let log = node.log();
    assert!(
        log.contains("raise the limit of open files") && !log.contains("let the supervisor's user read it"),
        "{log}"
    );
}

// covers: C10b
#[test]
fn the_streams_of_one_caller_take_no_more_than_their_endpoints_share() {
    // Of 256 files an endpoint of three has 16 connections of its own, 48 that all share, and 10 spare descriptors.
    let node = Node::with(Plan { files: Some(256), ..Plan::default() });
    let counts = || node.ask(&json!({"op": "ready"})).expect("an answer")["connections"].clone();
    node.guest(A).serve(|mut link, app| {
        if let Ok(request) = read_request(&mut link) {
            app.saw(&request);
            let _ = link.rest();
        }
    });
    let mut greedy = node.call_h2(&node.svid("x"), HTTPS);
    for stream in 0..100 {
        greedy.request(2 * stream + 1, "GET", "/v1/orders/1");
    }
    // One comes with the caller's place, which is one of the 64.
    let fits = 1 + 10 + 63;
    let mut refused = 0;
    while refused < 100 - fits {
        if let Event::Headers { fields, .. } = greedy.event().expect("an answer") {
            assert_eq!(find(&fields, ":status"), Some("503"), "{fields:?}");
            refused += 1;
        }
    }
    until("the others are there", || node.guest(A).app.seen().len() == fits);
    assert!(node.descriptors() < 256 - 32, "{}", node.descriptors());
    let is_refused =
        |line: &Value| is(line, &[("reason", "limit_process"), ("workload", "service-a"), ("kind", "request")]);
    node.audited(100 - fits, is_refused);
    let quiet: Vec<_> =
        (0..16).map(|_| data::dial(&node.ip(98), &format!("{}:{HTTPS}", node.ip(31))).expect("connected")).collect();
    until("the quiet one has its share", || node.open("b") == 16);
    drop((greedy, quiet));
    until("all are given back", || node.open("service-a") == 0 && counts()["shared_open"] == 0);
    let mut again = node.call_h2(&node.svid("x"), HTTPS);
    again.request(1, "GET", "/v1/orders/2");
    until("it is served again", || node.guest(A).app.seen().len() == fits + 1);
}

/// As a caller sees it who may be reset at any moment.
fn is_answered(node: &Node) -> bool {
    data::dial(&node.ip(99), &format!("{}:{RAW}", node.ip(21))).is_ok_and(is_served)
}

// covers: A9a
#[test]
fn a_log_that_may_not_grow_refuses_calls_and_ends_nothing() {
    let node = Node::start();
    node.guest(A).serve(|mut link, _| {
        let mut word = [0; 5];
        if link.read_exact(&mut word).is_ok() {
            link.send(word);
        }
        let _ = link.rest();
    });
    assert!(is_served(call(&node)));
    let pid = Pid::from_raw(i32::try_from(node.pid).expect("a pid"));
    let former = rustix::process::getrlimit(Resource::Fsize);
    prlimit(pid, Resource::Fsize, Rlimit { current: Some(1), maximum: former.maximum }).expect("our own child");
    until("calls are refused for want of a record", || !is_answered(&node));
    assert_eq!(node.ask(&json!({"op": "ready"})).expect("it still runs")["ready"], false);
    prlimit(pid, Resource::Fsize, former).expect("our own child");
    until("it serves again", || is_answered(&node));
}

/// Memory of the supervisor, in KiB.
fn resident(node: &Node) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid)).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a field");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

// covers: C10
#[test]
fn memory_of_answers_that_nobody_reads_is_given_back_with_their_connections() {
    const MIB: u64 = 1024;
    let node = Node::start();
    node.guest(A).serve(|mut link, _| {
        while read_request(&mut link).is_ok() {
            let piece = vec![b'x'; 1 << 20];
            link.send("HTTP/1.1 200 OK\r\nContent-Length: 8388608\r\n\r\n");
            while link.write_all(&piece).is_ok() {}
        }
    });
    let x = node.svid("x");
    // An allocator keeps more after it has seen the first time.
    for _ in 0..2 {
        let before = resident(&node);
        let callers: Vec<_> = (0..100)
            .map(|_| {
                let mut tls = node.call(Some(&x), HTTPS).expect("connected");
                tls.send("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n");
                tls
            })
            .collect();
        until("the answers wait", || resident(&node) > before + 60 * MIB);
        drop(callers);
        until("their memory is given back", || resident(&node) < before + 40 * MIB);
    }
}
