//! `Expect: 100-continue` on its way out (F-EH07).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::data::{Node, Upstream, X, read_answer, read_head, until};

const ASK: &str = "PUT http://plain.test:8080/k HTTP/1.1\r\nHost: plain.test:8080\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
const FINE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine";

fn upstream(node: &Node, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Upstream {
    Upstream::start(&format!("{}:8080", node.ip(80)), serve)
}

/// Answers with 200 when it has the head and these four bytes.
fn takes_body(stream: &mut TcpStream) {
    let mut body = [0; 4];
    stream.read_exact(&mut body).expect("the body");
    assert_eq!(&body, b"data");
    stream.write_all(FINE.as_bytes()).expect("sent");
}

// covers: D4f
#[test]
fn a_destination_that_wants_the_body_is_asked_for_it_and_the_app_is_told() {
    let node = Node::start();
    let _upstream = upstream(&node, |mut stream| {
        while let Ok(head) = read_head(&mut stream) {
            assert!(head.to_ascii_lowercase().contains("expect: 100-continue\r\n"), "{head}");
            stream.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
            assert!(stream.read(&mut [0; 4]).is_err(), "a body that nobody asked for");
            stream.set_read_timeout(None).expect("set");
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").expect("sent");
            takes_body(&mut stream);
        }
    });
    let mut link = node.proxy(X);
    // Twice on one connection: it stays in order.
    for _ in 0..2 {
        link.send(ASK);
        assert!(read_head(&mut link).expect("an interim answer").starts_with("HTTP/1.1 100"));
        link.send("data");
        let answer = read_answer(&mut link).expect("an answer");
        assert_eq!((answer.status, answer.text().as_str()), (200, "fine"), "{answer:?}");
    }
}

// covers: D4f
#[test]
fn a_destination_that_refuses_spares_the_body() {
    let node = Node::start();
    let upstream = upstream(&node, |mut stream| {
        if read_head(&mut stream).is_ok() {
            let _ = stream.write_all(b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 2\r\n\r\nno");
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            assert_eq!(rest, b"", "a body behind a refusal");
        }
    });
    let mut link = node.proxy(X);
    link.send(ASK);
    // The first head is the final one: no 100 was said.
    let head = read_head(&mut link).expect("an answer");
    assert!(head.starts_with("HTTP/1.1 417"), "{head}");
    let mut body = [0; 2];
    link.read_exact(&mut body).expect("its body");
    assert_eq!(&body, b"no");
    // Whether the app sends the body now is not known, so nothing that comes is a request.
    link.wait_closed();
    assert_eq!(upstream.accepted(), 1);
    until("nothing is left open", || node.open("x") == 0);
}

// covers: D4f
#[test]
fn a_destination_that_keeps_silent_gets_the_body_after_a_second() {
    let node = Node::start();
    let _upstream = upstream(&node, |mut stream| {
        read_head(&mut stream).expect("a head");
        takes_body(&mut stream);
    });
    let mut link = node.proxy(X);
    let start = Instant::now();
    link.send(ASK);
    assert!(read_head(&mut link).expect("an interim answer").starts_with("HTTP/1.1 100"));
    assert!(start.elapsed() >= Duration::from_millis(900), "{:?}", start.elapsed());
    link.send("data");
    assert_eq!(read_answer(&mut link).expect("an answer").status, 200);
}

// covers: D4f
#[test]
fn a_refused_request_is_never_told_to_go_on() {
    let node = Node::start();
    let mut link = node.proxy(X);
    link.send(ASK.replace("PUT", "DELETE"));
    let head = read_head(&mut link).expect("an answer");
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
}
