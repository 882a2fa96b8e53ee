//! WebSockets of apps towards destinations (F-EH09), and offers of h2c (F-EH10).

use std::io::{Read, Write};

use crate::data::{Link, X, is, read_head, until};
use crate::ways::connect;
use crate::world::{Target, World};

const SOCKETS: &str = "  - {id: sockets, tenant: t, from: {workload: x}, to: {external: ws.test, port: 8081, addresses: [NET.80/32]}, http: {methods: [GET], paths: ['/chat']}, tls: none, upgrade: [websocket]}\n";
const HANDSHAKE: &str = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

fn world() -> (World, crate::data::Upstream) {
    let world = World::with(SOCKETS, &[("ws.test", "NET.80")]);
    let upstream = crate::data::Upstream::start(&format!("{}:8081", world.node.ip(80)), |mut stream| {
        let Ok(head) = read_head(&mut stream) else { return };
        assert!(head.to_ascii_lowercase().contains("upgrade: websocket\r\n"), "{head}");
        // The first frame comes glued to the 101.
        let _ = stream.write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\nfirst",
        );
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..read]).is_err() {
                return;
            }
        }
    });
    (world, upstream)
}

fn carries(link: &mut Link) {
    let head = read_head(link).expect("an answer");
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    let mut first = [0; 10];
    link.read_exact(&mut first).expect("the first frame and the echo");
    assert_eq!(&first, b"firstearly");
}

// covers: D4e
#[test]
fn a_granted_websocket_carries_frames_that_come_with_the_heads() {
    let (world, upstream) = world();
    let [link, other] = ["http", "WS"].map(|scheme| {
        let mut link = world.node.proxy(X);
        link.send(format!("GET {scheme}://ws.test:8081/chat HTTP/1.1\r\nHost: ws.test:8081\r\n{HANDSHAKE}early"));
        carries(&mut link);
        link
    });
    let mut inside = world.node.proxy(X);
    inside.send("CONNECT ws.test:8081 HTTP/1.1\r\nHost: ws.test:8081\r\n\r\n");
    assert!(read_head(&mut inside).expect("an answer").starts_with("HTTP/1.1 200"));
    inside.send(format!("GET /chat HTTP/1.1\r\nHost: ws.test:8081\r\n{HANDSHAKE}early"));
    carries(&mut inside);
    assert_eq!(upstream.accepted(), 3);
    for mut link in [link, other, inside] {
        link.finish();
        assert_eq!(link.rest().expect("a good end"), b"");
    }
    let lines = world.node.audited(3, |line| is(line, &[("kind", "close"), ("rule", "sockets")]));
    assert!(
        lines.iter().all(|line| is(line, &[("close", "done"), ("method", "GET"), ("path", "/chat")])),
        "{lines:#?}"
    );
    assert!(lines.iter().all(|line| line["bytes_in"] == 5 && line["bytes_out"] == 10), "{lines:#?}");
    // What goes on ends with its grant.
    let mut link = world.node.proxy(X);
    link.send(format!("GET http://ws.test:8081/chat HTTP/1.1\r\nHost: ws.test:8081\r\n{HANDSHAKE}early"));
    carries(&mut link);
    world.node.publish(crate::data::RULES);
    link.wait_closed();
    world.node.audited_once(|line| is(line, &[("kind", "close"), ("close", "policy_revoked")]));
    until("nothing is left open", || world.node.open("x") == 0);
}

// covers: D4e
#[test]
fn a_client_that_offers_h2c_with_every_request_is_answered_in_http_1_1() {
    let world = World::start();
    let offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n";
    let mut link = world.node.proxy(X);
    let mut inside = connect(&world.node, Target::Plain);
    for number in 0..3 {
        link.send(format!(
            "GET http://plain.test:8080/v1/orders/{number} HTTP/1.1\r\nHost: plain.test:8080\r\n{offer}"
        ));
        assert_eq!(crate::data::read_answer(&mut link).expect("an answer").status, 200);
        inside.send(format!("GET /v1/orders/{number} HTTP/1.1\r\nHost: plain.test:8080\r\n{offer}"));
        assert_eq!(crate::data::read_answer(&mut inside).expect("an answer").status, 200);
    }
    let seen = world.seen().concat().to_ascii_lowercase();
    assert!(!seen.contains("upgrade") && !seen.contains("http2-settings"), "{seen}");
}
