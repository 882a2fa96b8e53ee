//! An endpoint that goes: what is open finishes, nothing new begins, then its address answers nobody.

mod data;

use std::io::{Read, Write};
use std::sync::mpsc::channel;
use std::time::Instant;

use data::{A, HTTPS, Node, RAW, Upstream, X, is, read_answer, read_head, read_request, until};

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

// covers: R12
#[test]
fn idle_connections_of_the_guest_do_not_hold_up_its_drain() {
    let node = Node::start();
    let _plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    let mut idle = node.proxy(X);
    idle.send("GET http://plain.test:8080/ HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(read_answer(&mut idle).expect("an answer").status, 200);
    let mut silent = node.proxy(X);
    let _presence = node.guest(X).dial(5, data::token(X), "");
    until("all are counted", || node.open("x") == 3);
    let began = Instant::now();
    node.edit_endpoint("x", "state: ready", "state: draining");
    idle.wait_closed();
    silent.wait_closed();
    until("it is drained", || node.endpoint("x").is_none_or(|row| row["phase"] == "DRAINED"));
    assert!(began.elapsed().as_secs() < 6, "the drain took its whole time-out");
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
    until("it is drained", || node.endpoint("service-a").is_none_or(|row| row["phase"] == "DRAINED"));
    assert!(node.connections().is_empty());
}
