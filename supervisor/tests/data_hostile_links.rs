//! A guest that does its worst with connections: too many, unread, and with two names in one.

mod data;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use data::{B, Node, Plan, Shared, Upstream, X, hello, is, many_descriptors, read_answer, settles, token, until};

const FROM_B: &str = "GET http://plain.test:8080/b HTTP/1.1\r\nHost: plain.test:8080\r\n\r\n";

fn node_and_plain(plan: Plan) -> (Node, Upstream) {
    let node = Node::with(plan);
    let plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    (node, plain)
}

/// What one in a hundred of `calls` calls of B takes at least.
fn p99(node: &Node, calls: usize) -> Duration {
    let mut times: Vec<_> = (0..calls)
        .map(|_| {
            let began = Instant::now();
            let mut link = node.proxy(B);
            link.send(FROM_B);
            assert_eq!(read_answer(&mut link).expect("an answer").status, 200);
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[calls * 99 / 100]
}

// covers: A12b, C9d, C10b, D17a
#[test]
fn a_guest_that_connects_without_a_pause_takes_its_own_places_alone_and_slows_nobody() {
    many_descriptors();
    let plan = Plan::default();
    let endpoints = plan.endpoints.replace(
        "boot_token: 00000000000000000000000000000011",
        "boot_token: 00000000000000000000000000000011\n    limits: {max_connections: 50}",
    );
    let (node, _plain) = node_and_plain(Plan { endpoints, audit: "denials_per_second = 1000000", ..plan });
    p99(&node, 20);
    let (quiet, before) = (p99(&node, 100), node.descriptors());
    let stop = AtomicBool::new(false);
    let (busy, most, made) = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let (mut made, mut most) = (0, 0);
            while !stop.load(Ordering::Relaxed) {
                // A hello and the end at once: nobody waits for it.
                let _ = node.guest(X).connect().write_all(&hello(1, false, token(X), ""));
                made += 1;
                if made % 500 == 0 {
                    most = most.max(node.descriptors());
                }
            }
            (most, made)
        });
        let busy = p99(&node, 200);
        stop.store(true, Ordering::Relaxed);
        let (most, made) = flood.join().expect("no panic");
        (busy, most, made)
    });
    eprintln!("{made} connections: {most} descriptors, {before} before; p99 {busy:?}, {quiet:?} before");
    assert!(made > 1000, "a flood of {made} is none");
    // Its cap, the one that is being accepted, and what B's calls have open.
    assert!(most <= before + 60, "{most} descriptors, {before} before");
    // The flood shares the machine with the supervisor, so some milliseconds are its own.
    assert!(busy <= (quiet * 2).max(quiet + Duration::from_millis(50)), "p99 {busy:?}, {quiet:?} before");
    settles(&node, before);
}

// covers: A12b, C10b
#[test]
fn a_guest_that_reads_nothing_holds_no_descriptor_that_is_not_counted() {
    // On a framed link an end is a record, which has room or not.
    let (node, _plain) = node_and_plain(Plan { half_close: false, ..Plan::default() });
    let before = node.descriptors();
    // Where the kernel's buffer is full with the last answer, and where it is not yet or was before.
    let unread: Vec<_> = (274..=280)
        .flat_map(|answers| [answers; 4])
        .map(|answers| {
            let mut link = node.proxy(X);
            link.send("GET http://plain.test:8080/ HTTP/1.1\r\nHost: a\r\n\r\n".repeat(answers));
            link.send("CONNECT evil.test:443 HTTP/1.1\r\nHost: a\r\n\r\n");
            link
        })
        .collect();
    // Pooled connections to the destination go after some seconds.
    until("every descriptor is counted", || {
        let open = usize::try_from(node.open("x")).expect("few");
        node.descriptors() <= before + open + 2
    });
    drop(unread);
    settles(&node, before);
}

const CHANGE_CIPHER_SPEC: [u8; 6] = [0x14, 3, 3, 0, 1, 1];

/// The begin of TLS to a host of this name.
fn client_hello(name: &str) -> Vec<u8> {
    let name = name.to_owned().try_into().expect("a name");
    let mut client = rustls::ClientConnection::new(data::config(None), name).expect("a client");
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("writes to memory");
    bytes
}

/// A server of TLS that asks for a second ClientHello, and keeps what came.
fn retrying(node: &Node, came: &Shared<Vec<u8>>) -> Upstream {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.kx_groups = vec![rustls::crypto::aws_lc_rs::kx_group::SECP384R1];
    let who = data::issue(&node.web, "spiffe://web/tcp", "tcp.test");
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(who.key_der().to_vec());
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(who.chain.clone(), key.into())
        .expect("a usable key");
    let (config, came) = (Arc::new(config), Arc::clone(came));
    Upstream::start(&format!("{}:5432", node.ip(80)), move |mut stream| {
        let mut server = rustls::ServerConnection::new(Arc::clone(&config)).expect("a server");
        let mut piece = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut piece) {
            came.lock().expect("no panic").extend_from_slice(&piece[..read]);
            let mut rest = &piece[..read];
            while !rest.is_empty() && server.read_tls(&mut rest).is_ok() {
                let _ = server.process_new_packets();
            }
            let mut said = [0; 16];
            if let Ok(read @ 1..) = server.reader().read(&mut said) {
                server.writer().write_all(&said[..read]).expect("kept");
            }
            while server.wants_write() && server.write_tls(&mut stream).is_ok() {}
        }
    })
}

// covers: D17h, A7c
#[test]
fn a_second_hello_must_name_the_tunnels_host_as_the_first_one() {
    let node = Node::start();
    let came = Shared::<Vec<u8>>::default();
    let _upstream = retrying(&node, &came);
    let tunnel = || {
        let mut link = node.proxy(X);
        link.send("CONNECT tcp.test:5432 HTTP/1.1\r\nHost: tcp.test:5432\r\n\r\n");
        assert!(data::read_head(&mut link).expect("an answer").starts_with("HTTP/1.1 200"));
        link
    };
    let evil = [&CHANGE_CIPHER_SPEC[..], &client_hello("evil.test")].concat();
    let mut asked = tunnel();
    asked.send(client_hello("tcp.test"));
    let mut retry = [0; 11 + 32];
    asked.read_exact(&mut retry).expect("an answer");
    assert_eq!(retry[11..15], [0xcf, 0x21, 0xad, 0x74], "a HelloRetryRequest");
    asked.send(&evil);
    asked.wait_closed();
    // It need not wait to be asked.
    let mut unasked = tunnel();
    unasked.send([client_hello("tcp.test"), evil].concat());
    unasked.wait_closed();
    let closes = node.audited(2, |line| is(line, &[("kind", "close"), ("reason", "sni_mismatch")]));
    assert!(closes.iter().all(|line| is(line, &[("detail", "another_name"), ("sni", "evil.test")])), "{closes:#?}");
    let came = || String::from_utf8_lossy(&came.lock().expect("no panic")).into_owned();
    assert!(came().contains("tcp.test") && !came().contains("evil.test"));
    // A client that means it is served.
    let client = rustls::ClientConnection::new(data::config(None), "tcp.test".try_into().expect("a name"));
    let mut tls = rustls::StreamOwned::new(client.expect("a client"), tunnel());
    tls.write_all(b"x").and_then(|()| tls.flush()).expect("sent");
    let mut back = [0];
    tls.read_exact(&mut back).expect("an answer");
    assert_eq!(&back, b"x");
    assert_eq!(tls.conn.handshake_kind(), Some(rustls::HandshakeKind::FullWithHelloRetryRequest));
}
