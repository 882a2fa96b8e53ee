//! Rules that say `tls: intercept`: the supervisor answers the app's own TLS. Refusals first.

#![allow(clippy::panic, reason = "a test that cannot go on fails")]

mod data;
mod intercept_support;

use std::io::{Read, Write};
use std::sync::Arc;

use data::{A, B, HTTPS, Node, Plan, Upstream, X, is, issue, read_answer, token, until};
use intercept_support::{
    LATER, LOOK, OPAQUE, PORT, RULES, ask, client, handshake, hello, host, plan, roots, roots_of, trust, tunnel,
    two_tiers,
};
use nova_supervisor::identity::DevCa;
use rustls::{ClientConfig, HandshakeKind, StreamOwned};

/// The begin of a ClientHello that would be 20,000 bytes long.
fn long_hello() -> Vec<u8> {
    let message = [&[1, 0, 0x4e, 0x20, 3, 3][..], &[7; 17_000]].concat();
    let records = message.chunks(16_000).map(|part| {
        let length = u16::try_from(part.len()).expect("short").to_be_bytes();
        [&[0x16, 3, 1], &length[..], part].concat()
    });
    records.flatten().collect()
}

/// A hello as one with ECH is seen by those who cannot read it: the name outside is the provider's.
fn ech_hello() -> Vec<u8> {
    let mut message = hello(&roots(""), "ech-provider.test");
    let ech = [0xfe, 0x0d, 0, 11, 0, 0, 1, 0, 1, 9, 0, 0, 0, 1, 7];
    message.extend(ech);
    // Three lengths contain the extension: of the extensions, of the message, of the record.
    let random = 5 + 4 + 2 + 32;
    let session = usize::from(message[random]);
    let suites = random + 1 + session;
    let suites_length = usize::from(u16::from_be_bytes([message[suites], message[suites + 1]]));
    let compressions = suites + 2 + suites_length;
    let extensions = compressions + 1 + usize::from(message[compressions]);
    for at in [3, 7, extensions] {
        let length = u16::from_be_bytes([message[at], message[at + 1]]) + 15;
        message[at..at + 2].copy_from_slice(&length.to_be_bytes());
    }
    message
}

fn no_name(config: &Arc<ClientConfig>) -> Arc<ClientConfig> {
    let mut config = ClientConfig::clone(config);
    config.enable_sni = false;
    Arc::new(config)
}

// covers: D6e, D17h
#[test]
fn t22_a_hello_that_does_not_name_the_tunnels_host_gets_no_answer_and_reaches_nobody() {
    let node = Node::with(plan());
    let upstream = host(&node, LOOK);
    let config = roots(&trust(&node, X).expect("an answer"));
    let hellos = [
        ("another_name", hello(&config, "evil.test")),
        ("no_name", hello(&no_name(&config), LOOK)),
        ("another_name", ech_hello()),
        ("hello_too_long", long_hello()),
    ];
    for (count, (detail, bytes)) in hellos.iter().enumerate() {
        let mut link = tunnel(&node, LOOK, PORT);
        link.send(bytes);
        assert!(link.is_closed(), "{detail}: not a byte comes back");
        let lines = node.audited(count + 1, |line| is(line, &[("verdict", "deny"), ("reason", "sni_mismatch")]));
        let name = ["evil.test", "", "ech-provider.test", ""][count];
        assert_eq!(lines[count]["sni"].as_str().unwrap_or_default(), name);
        assert!(is(&lines[count], &[("detail", detail), ("dest_host", LOOK)]), "{detail} in {:#?}", lines[count]);
    }
    assert_eq!(upstream.accepted(), 0);
}

// covers: D6e
#[test]
fn what_begins_as_tls_and_is_no_hello_is_refused_and_reaches_nobody() {
    let node = Node::with(plan());
    let upstream = host(&node, LOOK);
    let mut link = tunnel(&node, LOOK, PORT);
    link.send([0x16, 3, 1, 0, 4, 9, 9, 9, 9]);
    assert!(link.is_closed(), "not a byte comes back");
    node.audited_once(|line| is(line, &[("reason", "handshake_failed"), ("dest_host", LOOK)]));
    assert_eq!(upstream.accepted(), 0);
}

// covers: D6e
#[test]
fn f_ec11_a_tunnel_for_one_host_carries_no_hello_for_another() {
    let node = Node::with(plan());
    let upstream = Upstream::start(&format!("{}:{PORT}", node.ip(80)), |mut stream| {
        let mut byte = [0];
        assert!(!matches!(stream.read(&mut byte), Ok(1..)), "no byte of the hello goes on");
    });
    let config = roots("");
    for (count, bytes) in
        [hello(&config, "evil.test"), hello(&no_name(&config), OPAQUE), ech_hello(), long_hello()].iter().enumerate()
    {
        let mut link = tunnel(&node, OPAQUE, PORT);
        link.send(bytes);
        assert!(link.is_closed());
        let refused = |line: &serde_json::Value| is(line, &[("kind", "close"), ("reason", "sni_mismatch")]);
        let lines = node.audited(count + 1, refused);
        let name = ["evil.test", "", "ech-provider.test", ""][count];
        assert_eq!(lines[count]["sni"].as_str().unwrap_or_default(), name);
        assert_eq!(lines[count]["dest_host"], OPAQUE);
    }
    until("the tunnels reached the host before their first byte", || upstream.accepted() == 4);
}

// covers: D6e, D17h
#[test]
fn t22_a_hello_in_single_bytes_is_read_to_its_end() {
    let node = Node::with(plan());
    let _upstream = host(&node, LOOK);
    let config = roots(&trust(&node, X).expect("an answer"));
    let mut link = tunnel(&node, LOOK, PORT);
    let mut client = client(&config, LOOK);
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("writes to memory");
    for byte in bytes {
        link.send([byte]);
    }
    while client.is_handshaking() {
        client.complete_io(&mut link).expect("a handshake");
    }
    let mut inside = StreamOwned::new(client, link);
    assert_eq!(ask(&mut inside, "GET", "/v1/a", "look.test:9443").status, 200);
}

// covers: D6e, D17h
#[test]
fn t22_tls_inside_of_tls_and_a_tunnel_inside_of_a_tunnel_reach_nobody() {
    let node = Node::with(plan());
    let upstream = host(&node, LOOK);
    let config = roots(&trust(&node, X).expect("an answer"));
    for bytes in [hello(&config, LOOK), b"\x00\xff random bytes\r\n\r\n".to_vec(), b"SSH-2.0-x\r\n\r\n".to_vec()] {
        let mut inside = handshake(tunnel(&node, LOOK, PORT), &config, LOOK).expect("a handshake");
        inside.write_all(&bytes).expect("sent");
        let mut rest = Vec::new();
        let _ = inside.read_to_end(&mut rest);
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&rest));
    }
    node.audited(3, |line| is(line, &[("verdict", "deny"), ("reason", "malformed")]));
    let mut inside = handshake(tunnel(&node, LOOK, PORT), &config, LOOK).expect("a handshake");
    write!(inside, "CONNECT look.test:9443 HTTP/1.1\r\nHost: look.test:9443\r\n\r\n").expect("sent");
    let refused = data::read_answer_to(&mut inside, false).expect("an answer");
    assert_eq!(refused.status, 400, "{refused:?}");
    assert_eq!(upstream.accepted(), 0);
}

// covers: D6f
#[test]
fn an_app_that_pins_or_does_not_trust_is_named_with_what_to_do() {
    let node = Node::with(plan());
    let upstream = host(&node, LOOK);
    let pem = trust(&node, X).expect("an answer");
    let stranger = DevCa::generate().expect("a CA").certificate_pem();
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        assert!(handshake(tunnel(&node, LOOK, PORT), &roots_of(&stranger, &[version]), LOOK).is_err());
    }
    // As libraries do that compare the certificate themselves.
    drop(handshake(tunnel(&node, LOOK, PORT), &roots(&pem), LOOK).expect("a handshake"));
    // Or that go away without an alert as soon as they have seen it.
    let mut link = tunnel(&node, LOOK, PORT);
    link.send(hello(&roots(&pem), LOOK));
    let mut byte = [0];
    link.read_exact(&mut byte).expect("our side of the handshake");
    drop(link);
    let lines = node.audited(4, |line| line["reason"] == "client_rejected_ca");
    let details: Vec<_> = lines.iter().map(|line| line["detail"].as_str().expect("a text")).collect();
    for sign in ["unknown_ca: ", "closed "] {
        assert_eq!(details.iter().filter(|detail| detail.starts_with(sign)).count(), 2, "{details:#?}");
    }
    for line in &lines {
        assert!(line["detail"].as_str().is_some_and(|detail| detail.contains("use tls: passthrough")), "{line}");
        assert!(is(line, &[("verdict", "error"), ("method", "CONNECT"), ("dest_host", LOOK)]), "{line}");
        assert_eq!(line["intercepted"], true);
    }
    assert_eq!(upstream.accepted(), 0);
}

// covers: D6c
#[test]
fn nobody_else_gets_the_ca_of_a_pod() {
    let node = Node::with(plan());
    let mine = trust(&node, X).expect("an answer");
    assert!(!mine.contains("PRIVATE"), "public material only");
    assert_eq!(trust(&node, X).as_deref(), Some(mine.as_str()), "it is made once");
    assert_eq!(trust(&node, B).as_deref(), Some(""), "no rule of b intercepts");
    let mut link = node.guest(X).dial(6, token(B), "");
    assert!(link.is_closed());
    node.audited_once(|line| is(line, &[("verdict", "deny"), ("reason", "wrong_token")]));
    // And the CA of x is worth nothing for names of other rules.
    let mut link = tunnel(&node, "api.test", PORT);
    link.send(hello(&roots(&mine), "api.test"));
    assert!(link.is_closed());
    node.audited_once(|line| is(line, &[("reason", "needs_opaque_grant"), ("dest_host", "api.test")]));
}

// covers: D6d
#[test]
fn a_name_that_came_after_the_guest_started_needs_a_restart() {
    let node = Node::with(plan());
    let upstream = host(&node, LOOK);
    let config = roots(&trust(&node, X).expect("an answer"));
    node.publish(&format!("{RULES}{LATER}"));
    assert!(handshake(tunnel(&node, "later.test", PORT), &config, "later.test").is_err());
    let line = node.audited_once(|line| line["reason"] == "intercept_needs_restart");
    assert!(is(&line, &[("verdict", "deny"), ("dest_host", "later.test")]), "{line}");
    // The names that it covers go on.
    let mut inside = handshake(tunnel(&node, LOOK, PORT), &config, LOOK).expect("a handshake");
    assert_eq!(ask(&mut inside, "GET", "/v1/a", "look.test:9443").status, 200);
    assert_eq!(upstream.accepted(), 1);
}

// covers: D6d
#[test]
fn a_guest_that_never_asked_has_nothing_that_it_could_trust() {
    let node = Node::with(plan());
    assert!(handshake(tunnel(&node, LOOK, PORT), &roots(""), LOOK).is_err());
    node.audited_once(|line| is(line, &[("verdict", "deny"), ("reason", "intercept_needs_restart")]));
}

// covers: D6e
#[test]
fn every_request_inside_is_decided_and_recorded_as_intercepted() {
    let node = Node::with(plan());
    let upstream = host(&node, LOOK);
    let pem = trust(&node, X).expect("an answer");
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let config = roots_of(&pem, &[version]);
        let mut inside = handshake(tunnel(&node, LOOK, PORT), &config, LOOK).expect("a handshake");
        assert_eq!(inside.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        assert_eq!(ask(&mut inside, "GET", "/v1/a?secret=1", "look.test:9443").text(), "GET /v1/a?secret=1 HTTP/1.1");
        assert_eq!(ask(&mut inside, "GET", "/admin", "look.test:9443").status, 403);
        assert_eq!(ask(&mut inside, "DELETE", "/v1/a", "look.test:9443").status, 403);
        assert_eq!(ask(&mut inside, "GET", "/v1/a", "api.test:9443").status, 400, "another host");
        assert_eq!(ask(&mut inside, "GET", "https://api.test:9443/v1/a", "look.test:9443").status, 400);
        assert_eq!(ask(&mut inside, "GET", "/v1/b", "look.test:9443").status, 200);
    }
    let seen = upstream.seen();
    let firsts: Vec<_> = seen.iter().map(|request| request.lines().next().unwrap_or_default()).collect();
    let each = ["GET /v1/a?secret=1 HTTP/1.1", "GET /v1/b HTTP/1.1"];
    assert_eq!(firsts, [each, each].concat());
    let inside = node.audited(12, |line| line["intercepted"] == true && line["method"] != "CONNECT");
    assert_eq!(inside.iter().filter(|line| is(line, &[("verdict", "allow"), ("rule", "look")])).count(), 4);
    assert!(inside.iter().all(|line| !line.to_string().contains("secret=1")));
    node.audited(2, |line| line["intercepted"] == true && line["method"] == "CONNECT");
}

// covers: D9a
#[test]
fn an_intercepted_request_gets_its_credential() {
    let granted = "paths: ['/v1/**']}, credential: key, tls: intercept}";
    let rules = RULES.replacen("paths: ['/v1/**']}, tls: intercept}", granted, 1);
    let token = "boot_token: 00000000000000000000000000000011\n";
    let node = Node::with(Plan {
        rules: format!("credentials: [{{name: key, form: bearer, hosts: [look.test], owner: o}}]{rules}"),
        endpoints: plan().endpoints.replace(token, &format!("{token}    credentials: [key]\n")),
        sections: "[credentials]\ndir = \"secrets\"\n".to_owned(),
        prepare: |dir, _| {
            std::fs::create_dir(dir.join("secrets")).expect("made");
            std::fs::write(dir.join("secrets/key"), "s3cr3t").expect("written");
            let owner = std::os::unix::fs::PermissionsExt::from_mode(0o400);
            std::fs::set_permissions(dir.join("secrets/key"), owner).expect("allowed");
        },
        ..plan()
    });
    let upstream = host(&node, LOOK);
    let config = roots(&trust(&node, X).expect("an answer"));
    let mut inside = handshake(tunnel(&node, LOOK, PORT), &config, LOOK).expect("a handshake");
    let request = "GET /v1/a HTTP/1.1\r\nHost: look.test:9443\r\nAuthorization: Bearer own\r\n\r\n";
    inside.write_all(request.as_bytes()).expect("sent");
    assert_eq!(read_answer(&mut inside).expect("an answer").status, 200);
    let seen = upstream.seen().remove(0);
    assert_eq!(data::header(&seen, "authorization").as_deref(), Some("Bearer s3cr3t"), "{seen}");
    node.audited_once(|line| is(line, &[("credential", "key"), ("verdict", "allow")]) && line["intercepted"] == true);
}

// covers: D6e
#[test]
fn every_way_into_a_tunnel_can_be_intercepted_and_plaintext_passes_as_before() {
    let node = Node::with(plan());
    let upstream = Upstream::https(&format!("{}:5432", node.ip(80)), &issue(&node.web, "spiffe://web/dep", "dep.test"));
    let config = roots(&trust(&node, X).expect("an answer"));
    let dependency = node.guest(X).dial(2, token(X), "dep.test:5432");
    let mut socks = node.proxy(X);
    socks.send(b"\x05\x01\x00");
    socks.read_exact(&mut [0; 2]).expect("chosen");
    socks.send([b"\x05\x01\x00\x03\x08dep.test", &5432u16.to_be_bytes()[..]].concat());
    socks.read_exact(&mut [0; 10]).expect("a reply");
    for link in [dependency, socks, tunnel(&node, "dep.test", 5432)] {
        let mut inside = handshake(link, &config, "dep.test").expect("a handshake");
        assert_eq!(ask(&mut inside, "GET", "/v1/a", "dep.test:5432").status, 200);
        assert_eq!(ask(&mut inside, "GET", "/other", "dep.test:5432").status, 403);
    }
    let mut plain = tunnel(&node, "dep.test", 5432);
    plain.send("GET /v1/plain HTTP/1.1\r\nHost: dep.test:5432\r\n\r\n");
    assert_eq!(read_answer(&mut plain).expect("an answer").status, 200);
    let line = node.audited_once(|line| line["path"] == "/v1/plain");
    assert!(line["intercepted"].is_null(), "{line}");
    assert_eq!(upstream.seen().len(), 4);
}

// covers: D6g
#[test]
fn https_to_a_workload_is_intercepted_where_its_rule_says_so() {
    let node = Node::with(plan());
    let config = roots(&trust(&node, X).expect("an answer"));
    let name = "service-a.t.nova";
    let mut inside = handshake(tunnel(&node, name, HTTPS), &config, name).expect("a handshake");
    assert_eq!(ask(&mut inside, "GET", "/v1/orders/1", "service-a.t.nova:8443").status, 200);
    assert_eq!(ask(&mut inside, "GET", "/v2", "service-a.t.nova:8443").status, 403);
    let seen = node.guest(A).app.seen();
    assert_eq!(seen.len(), 1);
    let caller = data::header(&seen[0], "x-forwarded-client-cert").expect("the callee knows its caller");
    assert!(caller.contains("URI=spiffe://dev.invalid/t/t/w/x"), "{caller}");
}

// covers: D6e
#[test]
fn no_session_is_taken_up_again() {
    let node = Node::with(plan());
    let _upstream = host(&node, LOOK);
    let pem = trust(&node, X).expect("an answer");
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let config = roots_of(&pem, &[version]);
        for _ in 0..2 {
            let mut inside = handshake(tunnel(&node, LOOK, PORT), &config, LOOK).expect("a handshake");
            assert_eq!(ask(&mut inside, "GET", "/v1/a", "look.test:9443").status, 200);
            assert!(matches!(
                inside.conn.handshake_kind(),
                Some(HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest)
            ));
            assert_eq!(inside.conn.tls13_tickets_received(), 0);
        }
    }
}

// covers: D6d
#[test]
fn the_ca_goes_with_the_endpoint_and_the_framed_link_carries_it_whole() {
    let node = Node::with(Plan { half_close: false, ..plan() });
    let _upstream = host(&node, LOOK);
    let pem = trust(&node, X).expect("an answer");
    let mut inside = handshake(tunnel(&node, LOOK, PORT), &roots(&pem), LOOK).expect("a handshake");
    assert_eq!(ask(&mut inside, "GET", "/v1/a", "look.test:9443").status, 200);
    drop(inside);
    node.edit_endpoint("x", "generation: 1", "generation: 2");
    until("the next generation may call out", || {
        node.endpoint("x").is_some_and(|row| row["generation"] == 2 && row["stage"] != "waiting")
    });
    let next = trust(&node, X).expect("an answer");
    assert!(!next.is_empty() && next != pem, "a restarted pod gets a CA of its own");
}

// covers: D6h
#[test]
fn below_an_offline_root_new_names_and_a_guest_that_did_not_ask_need_no_restart() {
    let sections = "[interception]\nchain = \"above.pem\"\nkey = \"above.key\"\n".to_owned();
    let node = Node::with(Plan { sections, prepare: two_tiers, ..plan() });
    let _upstream = host(&node, LOOK);
    let chain = std::fs::read_to_string(node.dir.path().join("above.pem")).expect("written");
    let root = &chain[chain.rfind("-----BEGIN").expect("a certificate")..];
    // As a guest has it that asked the supervisor before this one, or the other instance.
    let config = roots(root);
    let mut inside = handshake(tunnel(&node, LOOK, PORT), &config, LOOK).expect("a handshake");
    assert_eq!(ask(&mut inside, "GET", "/v1/a", "look.test:9443").status, 200);
    assert_eq!(trust(&node, X).expect("an answer").replace("\r\n", "\n"), root.replace("\r\n", "\n"));
    node.publish(&format!("{RULES}{LATER}"));
    let inside = handshake(tunnel(&node, "later.test", PORT), &config, "later.test").expect("a handshake");
    let presented = inside.conn.peer_certificates().expect("a chain");
    assert_eq!(presented.len(), 3, "leaf, CA of the pod, intermediate; the root is the guest's own");
}

// covers: D6e
#[test]
fn http_2_inside_is_decided_stream_by_stream() {
    let node = Node::with(plan());
    let upstream = host(&node, LOOK);
    let mut config = ClientConfig::clone(&roots(&trust(&node, X).expect("an answer")));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let inside = handshake(tunnel(&node, LOOK, PORT), &Arc::new(config), LOOK).expect("a handshake");
    assert_eq!(inside.conn.alpn_protocol(), Some(&b"h2"[..]));
    let mut client = data::h2::H2::client(inside);
    let asked = [
        (1, "GET", "/v1/a", "look.test:9443", 200),
        (3, "GET", "/admin", "look.test:9443", 403),
        (5, "GET", "/v1/b", "api.test:9443", 400),
        (7, "GET", "/v1/c", "look.test:9443", 200),
    ];
    for (stream, method, path, authority, status) in asked {
        let fields = [(":method", method), (":scheme", "https"), (":authority", authority), (":path", path)];
        client.headers(stream, &fields, true);
        assert_eq!(client.reply(stream).status(), status, "{path}");
    }
    let seen = upstream.seen();
    assert!(seen.len() == 2 && seen.iter().all(|request| request.contains("look.test:9443")), "{seen:#?}");
    node.audited(4, |line| line["intercepted"] == true && line["method"] == "GET");
}
