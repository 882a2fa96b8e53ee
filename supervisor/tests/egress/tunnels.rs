//! CONNECT and what comes inside: TLS, servers that speak first, bytes of no protocol.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use rustls::ClientConnection;

use crate::data::{self, Link, Node, Upstream, X, is, read_answer, read_head};
use crate::ways::connect;
use crate::world::{Target, World};

fn tunnel(node: &Node, head: &str) -> Link {
    let mut link = node.proxy(X);
    link.send(head);
    let answer = read_head(&mut link).expect("an answer");
    assert!(answer.get(8..13) == Some(" 200 "), "{head:?}: {answer}");
    link
}

/// A server that says hello first, then echoes.
fn talker(node: &Node) -> Upstream {
    Upstream::start(&format!("{}:5432", node.ip(80)), |mut stream| {
        let _ = stream.write_all(b"220 hi\r\n");
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..read]).is_err() {
                return;
            }
        }
    })
}

// covers: D1a
// covers: D1c
#[test]
fn what_clients_send_with_connect_does_not_matter() {
    let node = Node::start();
    let _upstream = talker(&node);
    for head in [
        "CONNECT tcp.test:5432 HTTP/1.1\r\nHost: tcp.test:5432\r\n\r\n",
        "CONNECT tcp.test:5432 HTTP/1.0\r\n\r\n",
        "CONNECT tcp.test:5432 HTTP/1.0\r\nUser-Agent: old\r\nProxy-Connection: Keep-Alive\r\n\r\n",
        // F-EC01, F-EC03.
        "CONNECT tcp.test:5432 HTTP/1.1\r\nHost: 127.0.0.1:3128\r\nConnection: keep-alive\r\n\r\n",
        "CONNECT TCP.test.:5432 HTTP/1.1\r\nHost: tcp.test\r\nProxy-Authorization: Basic dTpw\r\n\r\n",
    ] {
        let mut link = tunnel(&node, head);
        let mut banner = [0; 8];
        link.read_exact(&mut banner).expect("the server speaks first");
        assert_eq!(&banner, b"220 hi\r\n", "F-EC09, F-EC10");
        link.send("ping");
        let mut back = [0; 4];
        link.read_exact(&mut back).expect("the echo");
        assert_eq!(&back, b"ping");
    }
    let lines = node.audited(5, |line| is(line, &[("kind", "open"), ("dest_host", "tcp.test")]));
    assert_eq!(lines.iter().filter(|line| line["detail"] == "host_mismatch").count(), 1, "{lines:#?}");
    assert!(!node.audit().iter().any(|line| line.to_string().contains("dTpw")));
}

// covers: D1a
#[test]
fn a_connect_that_names_no_one_destination_is_refused() {
    let node = Node::start();
    for target in [
        "www.example.com",
        "www.example.com:",
        "2001:db8::7:443",
        "::1:443",
        "[denied.test]:443",
        "[[denied.test]]:443",
        "[10.0.0.1]:443",
        "u@tcp.test:5432",
        "tcp.test:0",
        "tcp.test:65536",
        "tcp.test:+443",
        "2130706433:80",
        "017700000001:80",
        "0x7f.1:80",
        "127.1:80",
    ] {
        let mut link = node.proxy(X);
        link.send(format!("CONNECT {target} HTTP/1.1\r\nHost: tcp.test:5432\r\n\r\n"));
        let answer = read_answer(&mut link).expect("an answer");
        assert_eq!(answer.status, 400, "F-EC04, F-EC05, F-EC06: {target}: {answer:?}");
        assert_eq!(link.rest().expect("an end in good order"), b"", "{target}");
    }
    for target in ["[::1]:443", "[2001:db8::7]:443"] {
        let mut link = node.proxy(X);
        link.send(format!("CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert_eq!(read_answer(&mut link).expect("an answer").status, 403, "{target}");
    }
    // A body, or what would be one, belongs to the tunnel.
    let mut link = node.proxy(X);
    link.send("CONNECT tcp.test:5432 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(read_answer(&mut link).expect("an answer").status, 400);
}

// covers: D1b
#[test]
fn requests_to_the_proxy_itself_are_refused_with_help_and_the_next_one_is_served() {
    let world = World::start();
    let mut link = world.node.proxy(X);
    let get = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: plain.test:8080\r\n\r\n");
    // In one write: each is answered for itself, in order.
    let targets = [
        "/",
        "http://plain.test:8080/v1/orders/1",
        "https://plain.test:8080/",
        "http://evil.test/",
        "http://plain.test:8080/v1/orders/2",
    ];
    link.send(targets.map(get).concat());
    let answers = targets.map(|_| read_answer(&mut link).expect("an answer"));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [400, 200, 400, 403, 200]);
    assert!(answers[0].text().contains("http://host/path") && answers[2].text().contains("CONNECT host:port"));
    assert_eq!(world.seen().len(), 2);
    assert_eq!(world.accepted(), 1, "the connection is kept");
    // HTTP/1.0 as well, whose connection ends unless it asks otherwise.
    let mut link = world.node.proxy(X);
    link.send("GET http://plain.test:8080/v1/orders/3 HTTP/1.0\r\n\r\n");
    let text = String::from_utf8(link.rest().expect("a good end")).expect("text");
    assert!(text.starts_with("HTTP/1.0 200"), "{text}");
    // HTTP/2 to the proxy itself is no form that it takes.
    let mut link = world.node.proxy(X);
    link.send(data::h2::PREFACE);
    assert_eq!(read_answer(&mut link).expect("an answer").status, 400);
}

fn client_hello(name: &str) -> Vec<u8> {
    let name = name.to_owned().try_into().expect("a name");
    let mut client = ClientConnection::new(data::config(None), name).expect("a client");
    let mut hello = Vec::new();
    client.write_tls(&mut hello).expect("written");
    hello
}

// covers: D4c, D17h
#[test]
fn tls_that_names_another_host_or_nobody_is_closed_before_a_byte_of_it_is_sent_on() {
    let node = Node::start();
    let got = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let note = std::sync::Arc::clone(&got);
    let _upstream = Upstream::start(&format!("{}:5432", node.ip(80)), move |mut stream| {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            note.lock().expect("no panic").extend_from_slice(&buffer[..read]);
        }
    });
    let head = "CONNECT tcp.test:5432 HTTP/1.1\r\nHost: tcp.test:5432\r\n\r\n";
    // F-EC11: another name, none (an address has none), and a hello that never ends.
    let endless = [vec![0x16, 3, 1, 0x3f, 0xff, 1, 0, 0xff, 0xff], vec![0; 20_000]].concat();
    // A warning in front of the hello, which some servers pass over.
    let warned = [&[0x15, 3, 1, 0, 2, 1, 90][..], &client_hello("evil.test")].concat();
    for first in [client_hello("evil.test"), client_hello("192.0.2.1"), endless, warned] {
        let mut link = tunnel(&node, head);
        let _ = link.write_all(&first);
        link.wait_closed();
    }
    let closes = node.audited(4, |line| is(line, &[("kind", "close"), ("reason", "sni_mismatch")]));
    assert!(closes.iter().all(|line| line["bytes_in"] == 0), "{closes:#?}");
    assert!(got.lock().expect("no panic").is_empty());
    // The right name goes on whole: with the CONNECT in one write, and byte by byte.
    let hello = client_hello("tcp.test");
    let mut link = node.proxy(X);
    link.send([head.as_bytes(), &hello].concat());
    data::until("the hello arrives", || *got.lock().expect("no panic") == hello);
    got.lock().expect("no panic").clear();
    let mut link = tunnel(&node, head);
    hello.iter().for_each(|byte| link.send([*byte]));
    data::until("the hello arrives again", || *got.lock().expect("no panic") == hello);
}

// covers: D4d
#[test]
fn bytes_of_no_protocol_pass_where_the_connection_is_granted_and_nowhere_else() {
    let world = World::start();
    let _upstream = talker(&world.node);
    let mut link = tunnel(&world.node, "CONNECT tcp.test:5432 HTTP/1.1\r\nHost: x\r\n\r\n");
    link.send(b"\x00\x01random");
    let mut back = [0; 16];
    link.read_exact(&mut back).expect("the echo");
    assert_eq!(&back, b"220 hi\r\n\x00\x01random");
    for first in [&b"\x00\x01\x02random\r\n\r\n"[..], b"SSH-2.0-x\r\n\r\n", b"*1\r\n$4\r\nPING\r\n\r\n"] {
        let mut link = connect(&world.node, Target::Plain);
        link.send(first);
        link.wait_closed();
        let line = world.next_refusal_of_a_gate("a line about bytes of no protocol");
        assert!(is(&line, &[("reason", "malformed"), ("verdict", "deny")]), "{line}");
    }
    assert_eq!(world.accepted(), 0);
    // An app that waits for its server to speak first waits in vain there, and not for ever.
    let start = Instant::now();
    let mut link = connect(&world.node, Target::Plain);
    link.wait_closed();
    assert!(start.elapsed() > Duration::from_secs(5), "{:?}", start.elapsed());
    world.node.audited_once(|line| is(line, &[("kind", "request"), ("reason", "idle_timeout")]));
}
