//! No policy decides: nothing new is allowed, the node says that it is not ready, and what is open stays.

mod data;

use std::io::{Read, Write};
use std::sync::Mutex;

use data::{A, HTTPS, Node, Plan, RAW, RULES, Upstream, X, is, read_answer, read_head, read_request, until};
use serde_json::{Value, json};

/// A piece of a chunked answer.
const PIECE: &str = "5\r\npiece\r\n";

fn ready(node: &Node) -> Value {
    node.ask(&json!({"op": "ready"})).expect("an answer")
}

/// Whether a new request of the app is answered, and with which reason the log says so.
fn request(node: &Node) -> u16 {
    let mut link = node.proxy(X);
    link.send("GET http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test\r\n\r\n");
    read_answer(&mut link).expect("an answer").status
}

// covers: B7c
// covers: B7e
#[test]
fn past_expiry_and_grace_new_calls_are_refused_and_open_ones_stay() {
    let node = Node::with(Plan { policy: "stale_grace = \"8s\"", ..Plan::default() });
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    // An app that goes on with its answer when it is told to.
    node.guest(A).serve(move |mut link, app| {
        if link.target == "15432" {
            let mut byte = [0];
            while link.read(&mut byte).is_ok_and(|read| read == 1) {
                link.send(byte);
            }
        } else if let Ok(request) = read_request(&mut link) {
            app.saw(&request);
            link.send(format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{PIECE}"));
            let _ = wait.lock().expect("no panic").recv();
            link.send(format!("{PIECE}0\r\n\r\n"));
        }
    });
    let (more, waits) = std::sync::mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let plain = Upstream::start(&format!("{}:8080", node.ip(80)), move |mut stream| {
        while let Ok(request) = read_request(&mut stream) {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            let _ = stream.write_all(format!("{head}{PIECE}").as_bytes());
            if request.starts_with("GET /long") {
                let _ = waits.lock().expect("no panic").recv();
            }
            let _ = stream.write_all(format!("{PIECE}0\r\n\r\n").as_bytes());
        }
    });
    let _tcp = Upstream::start(&format!("{}:5432", node.ip(80)), |mut stream| {
        let mut byte = [0];
        while stream.read(&mut byte).is_ok_and(|read| read == 1) && stream.write_all(&byte).is_ok() {}
    });
    // One of each kind is open: an exchange and a stream in both directions, and a tunnel whose app said nothing yet.
    let x = node.svid("x");
    let mut busy = node.call(Some(&x), HTTPS).expect("connected");
    busy.send("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(read_head(&mut busy).expect("a head").starts_with("HTTP/1.1 200"));
    let mut raw = data::dial(&node.ip(99), &format!("{}:{RAW}", node.ip(21))).expect("connected");
    let mut download = node.proxy(X);
    download.send("GET http://plain.test:8080/long HTTP/1.1\r\nHost: plain.test\r\n\r\n");
    assert!(read_head(&mut download).expect("a head").starts_with("HTTP/1.1 200"));
    let tunnel = || {
        let mut link = node.proxy(X);
        link.send("CONNECT tcp.test:5432 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(read_head(&mut link).expect("a head").starts_with("HTTP/1.1 200"));
        link
    };
    let (mut spoken, mut silent) = (tunnel(), tunnel());
    echo(&mut raw);
    echo(&mut spoken);
    node.audited(3, |line| is(line, &[("kind", "open")]));

    // A bundle for a moment, with the same rules: it decides, then it decides with a warning.
    node.publish_until(RULES, 4);
    until("the node warns", || ready(&node)["warnings"].to_string().contains("has expired"));
    assert!(ready(&node)["ready"] == true && request(&node) == 200, "within its grace it decides: {}", ready(&node));
    until("nothing decides any more", || ready(&node)["ready"] == false);
    assert!(ready(&node)["checks"].to_string().contains("no policy is active"), "{}", ready(&node));

    // New ones are refused, also on a connection that is open.
    assert_eq!(request(&node), 503);
    let refused = node.audited_once(|line| is(line, &[("reason", "no_policy"), ("kind", "request")]));
    assert!(refused["revision"].is_null() && refused["rule"].is_null(), "nothing decided it: {refused}");
    assert!(!raw_is_served(&node), "a raw connection is reset");
    let tls = node.call(Some(&x), HTTPS);
    assert!(tls.is_err() || tls.is_ok_and(|mut tls| tls.is_closed()), "the pair may not even connect");

    // Open ones stay, and end as they would have.
    echo(&mut raw);
    echo(&mut spoken);
    echo(&mut silent);
    for sender in [go, more] {
        sender.send(()).expect("somebody waits");
    }
    let chunks = format!("{PIECE}{PIECE}0\r\n\r\n");
    assert_eq!(exactly(&mut busy, chunks.len()), chunks);
    assert_eq!(exactly(&mut download, chunks.len()), chunks);
    busy.send("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(busy.answer().expect("an answer").status, 503, "the next request of an open connection");
    let done = node.audited(3, |line| is(line, &[("kind", "request"), ("close", "done"), ("verdict", "allow")]));
    assert!(done.iter().any(|line| is(line, &[("direction", "ingress")])), "{done:#?}");
    assert_eq!(node.audit().iter().filter(|line| line["close"] == "policy_revoked").count(), 0);
    assert!(plain.accepted() > 0);

    // A fresh bundle without the grants is a decision, and ends them.
    node.publish("rules:\n  - {id: b-to-a, tenant: t, from: {workload: b}, to: {workload: service-a, port: https}}\n");
    assert!(!matches!(raw.read(&mut [0; 1]), Ok(1..)));
    spoken.wait_closed();
    silent.wait_closed();
    assert!(ready(&node)["ready"] == true && request(&node) == 403);
}

fn raw_is_served(node: &Node) -> bool {
    let raw = data::dial(&node.ip(99), &format!("{}:{RAW}", node.ip(21)));
    raw.and_then(|mut raw| {
        raw.write_all(b"x")?;
        raw.read_exact(&mut [0])
    })
    .is_ok()
}

fn echo(stream: &mut (impl Read + Write)) {
    stream.write_all(b"x").expect("sent");
    let mut byte = [0];
    stream.read_exact(&mut byte).expect("the stream is open");
    assert_eq!(byte, *b"x");
}

fn exactly(stream: &mut impl Read, bytes: usize) -> String {
    let mut text = vec![0; bytes];
    stream.read_exact(&mut text).expect("the rest of the answer");
    String::from_utf8(text).expect("text")
}
