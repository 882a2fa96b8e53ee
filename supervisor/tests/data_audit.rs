//! Every connection and every request has exactly one record, however it ends.

mod data;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use data::{A, B, HTTPS, Node, Plan, RAW, Upstream, X, hello, is, read_answer, read_head, read_request, token, until};
use serde_json::Value;

fn count(lines: &[Value], fields: &[(&str, &str)]) -> usize {
    lines.iter().filter(|line| is(line, fields)).count()
}

/// No two lines about one thing: a decision id stands once, or twice as `open` and `close`.
fn each_once(lines: &[Value]) {
    let mut seen = std::collections::HashMap::<&str, Vec<&str>>::new();
    for line in lines {
        let id = line["decision_id"].as_str().expect("an id");
        seen.entry(id).or_default().push(line["kind"].as_str().expect("a kind"));
    }
    for (id, kinds) in seen {
        assert!(kinds.len() == 1 && kinds[0] != "open" || kinds == ["open", "close"], "{id}: {kinds:?}");
    }
}

// covers: A9a
#[test]
fn what_the_callers_did_is_what_the_log_says() {
    let node = Node::start();
    let _plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    let _tcp = Upstream::start(&format!("{}:5432", node.ip(80)), |mut stream| drop(stream.write_all(b"hi")));
    let x = node.svid("x");
    for _ in 0..7 {
        let mut tls = node.call(Some(&x), HTTPS).expect("connected");
        for path in ["/v1/orders/1", "/v1/orders/2", "/admin"] {
            tls.ask(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        }
    }
    for _ in 0..5 {
        let mut link = node.proxy(X);
        for port in [8080, 8080, 8081] {
            link.send(format!("GET http://plain.test:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n"));
            read_answer(&mut link).expect("an answer");
        }
    }
    for _ in 0..4 {
        let mut link = node.proxy(X);
        link.send("CONNECT tcp.test:5432 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(read_head(&mut link).expect("an answer").starts_with("HTTP/1.1 200"));
        link.finish();
        assert_eq!(link.rest().expect("a good end"), b"hi");
    }
    until("all connections ended", || node.open("x") == 0 && node.open("service-a") == 0);
    node.audited(8, |line| is(line, &[("kind", "open")]) || is(line, &[("kind", "close")]));
    until("the log is whole", || node.audit().len() >= 7 + 21 + 9 + 15 + 8);
    let lines = node.audit();
    each_once(&lines);
    assert_eq!(count(&lines, &[("direction", "ingress"), ("kind", "connection")]), 7);
    assert_eq!(count(&lines, &[("direction", "ingress"), ("kind", "request"), ("verdict", "allow")]), 14);
    assert_eq!(count(&lines, &[("direction", "ingress"), ("kind", "request"), ("verdict", "deny")]), 7);
    assert_eq!(count(&lines, &[("direction", "egress"), ("kind", "connection")]), 9);
    assert_eq!(count(&lines, &[("direction", "egress"), ("kind", "request"), ("verdict", "allow")]), 10);
    assert_eq!(count(&lines, &[("direction", "egress"), ("kind", "request"), ("verdict", "deny")]), 5);
    assert_eq!(count(&lines, &[("kind", "open")]), 4);
    assert_eq!(lines.len(), 7 + 21 + 9 + 15 + 8, "{lines:#?}");
}

/// An app or destination that answers with a head and a piece of 100 bytes, and then nothing.
const BEGIN: &str = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegin";

// covers: A9a
#[test]
fn a_caller_that_goes_in_the_middle_of_an_answer_leaves_one_record_that_says_so() {
    let node = Node::start();
    let gone = Arc::new(AtomicBool::new(false));
    let noticed = Arc::clone(&gone);
    node.guest(A).serve(move |mut link, app| {
        let Ok(request) = read_request(&mut link) else { return };
        app.saw(&request);
        link.send(BEGIN);
        noticed.store(link.is_closed(), Ordering::SeqCst);
    });
    let _plain = Upstream::start(&format!("{}:8080", node.ip(80)), |mut stream| {
        let _ = read_request(&mut stream);
        let _ = stream.write_all(BEGIN.as_bytes());
        let _ = stream.read(&mut [0; 8]);
    });
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    tls.send("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n");
    read_head(&mut tls).expect("a head");
    drop(tls);
    let mut link = node.proxy(X);
    link.send("GET http://plain.test:8080/ HTTP/1.1\r\nHost: x\r\n\r\n");
    read_head(&mut link).expect("a head");
    drop(link);
    for direction in ["ingress", "egress"] {
        let line = node.audited_once(|line| is(line, &[("kind", "request"), ("direction", direction)]));
        let close = line["close"].as_str().expect("a close");
        assert!(line["verdict"] == "allow" && ["reset", "aborted"].contains(&close), "{direction}: {line}");
        node.audited_once(|line| is(line, &[("kind", "connection"), ("direction", direction)]));
    }
    until("the app is told", || gone.load(Ordering::SeqCst));
    each_once(&node.audit());
}

// covers: A9a
#[test]
fn a_caller_that_goes_before_the_answer_leaves_a_record_that_does_not_say_done() {
    let node = Node::start();
    let _plain = Upstream::start(&format!("{}:8080", node.ip(80)), |mut stream| {
        let _ = read_request(&mut stream);
        let _ = stream.read(&mut [0; 8]);
    });
    let mut link = node.proxy(X);
    link.send("GET http://plain.test:8080/ HTTP/1.1\r\nHost: x\r\n\r\n");
    until("it is on its way", || node.open("x") == 1 && _plain.accepted() == 1);
    drop(link);
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("direction", "egress")]));
    assert!(is(&line, &[("close", "aborted"), ("rule", "x-to-plain")]), "{line}");
    until("nothing is left open", || node.open("x") == 0 && node.connections().is_empty());
}

// covers: A9a
#[test]
fn an_app_that_dies_in_the_middle_is_recorded_as_that() {
    let node = Node::start();
    node.guest(A).serve(|mut link, _| {
        if link.target == "15432" {
            let _ = link.read(&mut [0; 8]);
        } else if read_request(&mut link).is_ok() {
            link.send(BEGIN);
        }
    });
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    tls.send("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(read_answer(&mut tls).is_err(), "half an answer does not look whole");
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("direction", "ingress")]));
    assert!(is(&line, &[("verdict", "error"), ("reason", "upstream_closed")]), "{line}");
    assert_eq!(line["bytes_out"], 5);
    let mut raw = data::dial(&node.ip(99), &format!("{}:{RAW}", node.ip(21))).expect("connected");
    raw.write_all(b"x").expect("sent");
    assert!(!matches!(raw.read(&mut [0; 8]), Ok(1..)));
    // The app's end is passed on; the caller's own side is still its own.
    drop(raw);
    node.audited_once(|line| is(line, &[("kind", "open")]));
    node.audited_once(|line| is(line, &[("kind", "close")]));
    each_once(&node.audit());
}

// covers: A9a
// covers: R12
#[test]
fn nothing_is_missing_in_the_log_of_a_supervisor_that_was_stopped() {
    let node = Node::start();
    let _plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    node.guest(A).serve(move |mut link, _| {
        if link.target == "15432" {
            return drop(link.rest());
        }
        while let Ok(request) = read_request(&mut link) {
            if request.contains("/last") {
                link.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n");
                let _ = wait.lock().expect("no panic").recv();
                link.send("last");
            } else {
                link.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
        }
    });
    let x = node.svid("x");
    let mut idle: Vec<_> = (0..10).map(|_| node.call(Some(&x), HTTPS).expect("connected")).collect();
    let mut links: Vec<_> = (0..10).map(|_| node.proxy(X)).collect();
    for (tls, link) in idle.iter_mut().zip(&mut links) {
        assert_eq!(tls.ask("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
        link.send("GET http://plain.test:8080/ HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(read_answer(link).expect("an answer").status, 200);
    }
    // Connections that said nothing yet, and a hello that is not whole.
    let _silent: Vec<_> = (0..5).map(|_| node.proxy(X)).collect();
    let mut half = node.guest(X).connect();
    half.write_all(&hello(1, false, token(X), "")[..10]).expect("sent");
    let mut raw = data::dial(&node.ip(99), &format!("{}:{RAW}", node.ip(21))).expect("connected");
    raw.write_all(b"x").expect("sent");
    let mut last = node.call(Some(&x), HTTPS).expect("connected");
    last.send("GET /v1/orders/last HTTP/1.1\r\nHost: a\r\n\r\n");
    read_head(&mut last).expect("a head");
    until("all are counted", || node.open("x") == 16 && node.open("service-a") == 12);
    node.terminate();
    // The raw stream would go on until the drain's end: its caller ends it.
    assert!(!matches!(idle[0].read(&mut [0; 8]), Ok(1..)), "the drain began");
    drop(raw);
    let open = |workload: &str| node.endpoint(workload).map_or(0, |row| row["connections"].as_u64().expect("a count"));
    until("only the last answer is open", || open("service-a") == 1 && open("x") == 0);
    // It ends, and the process with it at once: before any thread's buffer would be handed over by its clock.
    go.send(()).expect("the app waits");
    last.read_exact(&mut [0; 4]).expect("the whole answer");
    node.wait_exit();
    let lines = node.audit();
    each_once(&lines);
    assert_eq!(count(&lines, &[("kind", "request")]), 21, "{lines:#?}");
    assert_eq!(count(&lines, &[("kind", "connection"), ("direction", "egress")]), 16, "{lines:#?}");
    // The raw one is a pair.
    assert_eq!(count(&lines, &[("kind", "connection"), ("direction", "ingress")]), 11, "{lines:#?}");
    assert_eq!(count(&lines, &[("kind", "open")]), 1);
    assert_eq!(count(&lines, &[("kind", "close")]), 1);
}

/// Lines by the second in which they were written.
fn by_second<'a>(lines: impl IntoIterator<Item = &'a Value>) -> std::collections::BTreeMap<String, usize> {
    let mut seconds = std::collections::BTreeMap::new();
    for line in lines {
        *seconds.entry(line["time"].as_str().expect("a time")[..19].to_owned()).or_default() += 1;
    }
    seconds
}

/// A guest that keeps knocking with a wrong token: so many lines a second and a sum, exact; its neighbour's are all there.
// covers: A9c, D17b
#[test]
fn denials_beyond_the_budget_of_an_endpoint_are_counted_exactly_and_no_other_endpoint_pays() {
    const FLOOD: u64 = 1000;
    let node = Node::with(Plan { audit: "denials_per_second = 20", ..Plan::default() });
    let _plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    let mut neighbour = node.proxy(B);
    for n in 0..FLOOD {
        let mut stream = node.guest(X).connect();
        stream.write_all(&hello(1, false, [9; 16], "")).expect("sent");
        assert!(matches!(stream.read(&mut [0; 8]), Ok(0) | Err(_)));
        if n % 50 == 0 {
            let port = if n == 0 { 8081 } else { 8080 };
            neighbour.send(format!("GET http://plain.test:{port}/{n} HTTP/1.1\r\nHost: plain.test\r\n\r\n"));
            assert_eq!(read_answer(&mut neighbour).expect("an answer").status, if n == 0 { 403 } else { 200 });
        }
    }
    let flood = |kind| {
        let lines = node.audit();
        let fits = move |line: &Value| is(line, &[("workload", "x"), ("reason", "wrong_token"), ("kind", kind)]);
        lines.into_iter().filter(fits).collect::<Vec<_>>()
    };
    let counted = || flood("summary").iter().filter_map(|line| line["count"].as_u64()).sum::<u64>();
    until("every denial is told", || flood("connection").len() as u64 + counted() >= FLOOD);
    assert_eq!(flood("connection").len() as u64 + counted(), FLOOD);
    assert!(counted() > 0);
    assert!(
        by_second(&flood("connection")).values().all(|lines| *lines <= 20),
        "{:?}",
        by_second(&flood("connection"))
    );
    assert!(by_second(&flood("summary")).values().all(|lines| *lines == 1), "{:?}", by_second(&flood("summary")));
    let sum = flood("summary").remove(0);
    assert!(is(&sum, &[("direction", "egress"), ("verdict", "deny"), ("pod_uid", X)]), "{sum}");
    assert!(["decision_id", "bytes_in", "duration_us"].iter().all(|field| sum[*field].is_null()), "{sum}");
    node.audited(20, |line| is(line, &[("workload", "b"), ("kind", "request")]));
}

/// Each of them on a connection of its own, all at once; the guest waits for the ends.
fn denied_at_once(node: &Node, count: usize, kind: u8, target: &str, says: &[u8]) {
    let links: Vec<_> = (0..count)
        .map(|_| {
            let mut link = node.guest(X).dial(kind, token(X), target);
            let _ = link.write_all(says);
            link
        })
        .collect();
    for mut link in links {
        // Who says something is told; a request whose sender has gone need not be.
        if says.is_empty() {
            let _ = link.stream.shutdown(std::net::Shutdown::Write);
        }
        let _ = link.stream.read_to_end(&mut Vec::new());
    }
}

// covers: A9c, D17b
#[test]
fn a_guest_that_is_denied_on_a_connection_each_fills_no_disk_and_is_counted_exactly() {
    const EACH: usize = 120;
    let node = Node::with(Plan { audit: "denials_per_second = 20", ..Plan::default() });
    let plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    let socks = b"\x05\x01\x00\x05\x01\x00\x03\x0aother.test\x01\xbb";
    denied_at_once(&node, EACH, 1, "", socks);
    denied_at_once(&node, EACH, 2, "other.test:443", b"");
    denied_at_once(
        &node,
        EACH,
        1,
        "",
        b"GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n\r\n",
    );
    denied_at_once(&node, EACH, 1, "", b"");
    let of_x = |line: &Value, verdict: &str| is(line, &[("workload", "x"), ("verdict", verdict)]);
    let told = |verdict: &str, kinds: [&str; 2]| {
        let lines = node.audit();
        let fits = |line: &&Value| of_x(line, verdict) && kinds.iter().any(|kind| line["kind"] == *kind);
        lines.iter().filter(fits).map(|line| line["count"].as_u64().unwrap_or(1)).sum::<u64>()
    };
    until("every denial is told", || told("deny", ["request", "summary"]) >= 3 * EACH as u64);
    until("every connection is told", || told("allow", ["connection", "summary"]) >= 4 * EACH as u64);
    assert_eq!(told("deny", ["request", "summary"]), 3 * EACH as u64);
    assert_eq!(told("allow", ["connection", "summary"]), 4 * EACH as u64);
    let lines: Vec<_> =
        node.audit().into_iter().filter(|line| line["workload"] == "x" && line["kind"] != "summary").collect();
    assert!(by_second(&lines).values().all(|lines| *lines <= 20), "{:?}", by_second(&lines));
    // Whatever is allowed has its line and that of its connection.
    for _ in 0..EACH {
        let mut link = node.proxy(X);
        link.send("GET http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test\r\nConnection: close\r\n\r\n");
        assert_eq!(read_answer(&mut link).expect("an answer").status, 200);
    }
    node.audited(EACH, |line| of_x(line, "allow") && line["kind"] == "request");
    assert_eq!(plain.seen().len(), EACH);
    let is_whole = |line: &&Value| of_x(line, "allow") && line["kind"] == "connection" && line["bytes_in"].is_u64();
    until("their connections are told", || told("allow", ["connection", "summary"]) >= 5 * EACH as u64);
    let after = node.audit().iter().filter(is_whole).count();
    assert!(after >= EACH, "{after} connections have a line of their own");
}

/// Denied calls on one connection come no faster than their lines may be written; then none has to be counted.
// covers: A9c, D17b
#[test]
fn who_is_denied_too_often_waits_and_its_neighbour_does_not() {
    let node = Node::with(Plan { audit: "denials_per_second = 40", ..Plan::default() });
    let _plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    let mut flood = node.proxy(X);
    flood.send("GET http://other.test:8080/ HTTP/1.1\r\nHost: other.test\r\n\r\n".repeat(120));
    let mut answers = flood.another();
    let reading = std::thread::spawn(move || {
        (0..120).filter(|_| read_answer(&mut answers).is_ok_and(|answer| answer.status == 403)).count()
    });
    let denied = |line: &Value| is(line, &[("workload", "x"), ("kind", "request"), ("verdict", "deny")]);
    until("the flood is under way", || node.audit().iter().any(denied));
    let mut neighbour = node.proxy(B);
    for _ in 0..10 {
        neighbour.send("GET http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test\r\n\r\n");
        assert_eq!(read_answer(&mut neighbour).expect("an answer").status, 200);
    }
    assert!(!reading.is_finished(), "the flood is held up while the neighbour is served");
    assert_eq!(reading.join().expect("no panic"), 120);
    let lines = node.audited(120, denied);
    let share = 20;
    assert!(by_second(&lines).values().all(|lines| *lines <= share), "{:?}", by_second(&lines));
    assert_eq!(count(&node.audit(), &[("kind", "summary")]), 0);
}

// covers: A9a
#[test]
fn an_end_with_lines_that_no_disk_took_is_no_success_and_says_how_many() {
    let full = |dir: &std::path::Path, _: &_| {
        std::os::unix::fs::symlink("/dev/full", dir.join("audit.jsonl")).expect("linked");
    };
    let node = Node::with(Plan { prepare: full, ..Plan::default() });
    // A caller without a certificate has a line.
    drop(node.call(None, HTTPS));
    until("the call ended", || node.open("service-a") == 0);
    node.terminate();
    assert_eq!(node.wait_exit(), Some(1));
    assert!(node.log().contains("lines are missing in the audit log"), "{}", node.log());
    // One that lacks nothing ends well.
    let node = Node::start();
    node.terminate();
    assert_eq!(node.wait_exit(), Some(0));
}
