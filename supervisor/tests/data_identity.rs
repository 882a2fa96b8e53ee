//! Whatever a guest says of itself, it is decided as the endpoint of its socket.

mod data;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use data::{A, Node, Upstream, X, hello, is, read_answer, token, until};

// covers: A3c
// covers: R14
#[test]
fn a_guest_that_claims_to_be_another_workload_is_decided_as_itself() {
    let node = Node::start();
    // Only b may call port 8080 now; x asks for it.
    let rules = data::RULES.replace("to: {external: plain.test, port: 8080, addresses: [NET.80/32]}\n    http: {methods: [GET, HEAD, POST, PUT], paths: ['/**']}\n    tls: none\n  - id: x-to-api", "to: {external: plain.test, port: 8081, addresses: [NET.80/32]}\n    http: {methods: [GET, HEAD, POST, PUT], paths: ['/**']}\n    tls: none\n  - id: x-to-api");
    assert_ne!(rules, data::RULES);
    node.publish(&rules);
    let upstream = Upstream::http(&format!("{}:8080", node.ip(80)));
    let claims = "X-Forwarded-Client-Cert: URI=spiffe://dev.invalid/t/t/w/b\r\nX-Forwarded-For: NET.31\r\nForwarded: for=b\r\n\
        X-Nova-Workload: b\r\nX-Spiffe-Id: spiffe://dev.invalid/t/t/w/b\r\nProxy-Authorization: Basic Yjpi\r\nFrom: b\r\n";
    let mut link = node.proxy(X);
    link.send(node.text(&format!("GET http://plain.test:8080/ HTTP/1.1\r\nHost: b.t.nova\r\n{claims}\r\n")));
    assert_eq!(read_answer(&mut link).expect("an answer").status, 403);
    drop(link);
    // SOCKS5 with user and password on offer, and nothing else: there is no user here.
    let mut link = node.proxy(X);
    link.send([5, 1, 2]);
    let mut chosen = [0; 2];
    link.read_exact(&mut chosen).expect("a choice");
    assert_eq!(chosen, [5, 0xff]);
    // Both on offer: the user is not asked for; a user sent all the same is not a request.
    let mut link = node.proxy(X);
    link.send([5, 2, 0, 2]);
    link.read_exact(&mut chosen).expect("a choice");
    assert_eq!(chosen, [5, 0]);
    link.send(b"\x01\x01b\x01b");
    link.wait_closed();
    // A target in the hello is for dependencies, and those are the endpoint's own.
    let mut link = node.guest(X).dial(2, token(X), "plain.test:8080");
    assert!(link.is_closed());
    // A hello of a kind that only the supervisor sends, and one with b's name where none belongs.
    for bytes in
        [hello(16, false, token(X), "8080"), hello(1, false, token(X), "b"), hello(17, false, token(X), "b.sock")]
    {
        let mut stream = node.guest(X).connect();
        stream.write_all(&bytes).expect("sent");
        assert!(matches!(stream.read(&mut [0; 8]), Ok(0) | Err(_)));
    }
    drop(link);
    assert_eq!(upstream.accepted(), 0);
    until("everything is recorded", || node.open("x") == 0);
    node.audited(3, |line| is(line, &[("reason", "bad_hello")]));
    let egress: Vec<_> = node.audit().into_iter().filter(|line| line["direction"] == "egress").collect();
    assert!(egress.iter().all(|line| line["workload"] == "x" && line["pod_uid"] == "pod-x"), "{egress:#?}");
}

// covers: A3a
#[test]
fn a_token_of_another_boot_or_guest_is_refused_and_recorded() {
    let node = Node::start();
    let upstream = Upstream::http(&format!("{}:8080", node.ip(80)));
    for wrong in [token(A), [0; 16], [0xff; 16]] {
        let mut link = node.guest(X).dial(1, wrong, "");
        let _ = link.write_all(b"GET http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test\r\n\r\n");
        assert!(link.is_closed());
    }
    // Presence with a wrong token neither holds nor ends anything.
    let mut link = node.guest(A).dial(5, token(X), "");
    assert!(link.is_closed());
    node.audited(4, |line| is(line, &[("kind", "connection"), ("verdict", "deny"), ("reason", "wrong_token")]));
    assert_eq!(upstream.accepted(), 0);
    assert_eq!(node.stage("service-a").as_deref(), Some("serving"));
}

// covers: A3a
#[test]
fn another_uid_at_the_guests_socket_is_refused() {
    if !rustix::process::getuid().is_root() {
        return eprintln!("SKIPPED: only root can call as somebody else");
    }
    let node = Node::start();
    let socket = data::socket_of(&node.dir, X);
    let bound = socket.with_file_name("v.sock_15001");
    for path in [node.dir.path(), &node.dir.path().join("guests"), &node.dir.path().join("guests").join(X), &bound] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("ours");
    }
    let answer = std::thread::spawn(move || {
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("this thread only");
        let mut stream = std::os::unix::net::UnixStream::connect(bound).expect("the path is open to all");
        stream.set_read_timeout(Some(data::PATIENCE)).expect("set");
        let _ = stream.write_all(&hello(1, false, token(X), ""));
        let _ = stream.write_all(b"GET http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test\r\n\r\n");
        stream.read(&mut [0; 16]).ok().filter(|read| *read > 0)
    });
    assert_eq!(answer.join().expect("no panic"), None);
    node.audited_once(|line| is(line, &[("kind", "connection"), ("verdict", "deny"), ("reason", "wrong_peer")]));
}

// covers: A3a
#[test]
fn a_lost_guest_is_suspended_and_its_next_generation_gets_a_socket_of_its_own() {
    let node = Node::start();
    let mut presence = node.guest(A).dial(5, token(A), "");
    until("presence is held", || node.open("service-a") >= 1);
    presence.finish();
    drop(presence);
    until("the endpoint is suspended", || node.stage("service-a").as_deref() == Some("waiting"));
    assert!(node.call(Some(&node.svid("x")), data::HTTPS).and_then(|mut tls| tls.answer()).is_err());
    node.edit_endpoint("service-a", "generation: 1", "generation: 2");
    node.wait_serving(&["service-a"]);
    // The old generation's acceptor must not have taken the new one's socket with it.
    let mut link = node.proxy(A);
    link.send("GET http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test:8080\r\n\r\n");
    assert_eq!(read_answer(&mut link).expect("an answer").status, 403);
    let answer = node
        .call(Some(&node.svid("x")), data::HTTPS)
        .expect("connected")
        .ask("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(answer.status, 200);
}

// covers: A3a
#[test]
fn a_muxer_that_ends_before_its_presence_is_there_is_a_lost_guest() {
    let node = Node::start();
    for (pod, workload) in [(A, "service-a"), (X, "x")] {
        let socket = data::socket_of(&node.dir, pod);
        std::fs::remove_file(&socket).expect("the muxer's");
        // What a killed one leaves: a path on which nobody listens.
        drop(std::os::unix::net::UnixListener::bind(&socket).expect("bound"));
        until("the endpoint is suspended", || {
            node.endpoint(workload).is_some_and(|row| row["stage"] == "waiting" && row["reason"] == "presence_lost")
        });
    }
    assert!(node.call(Some(&node.svid("x")), data::HTTPS).and_then(|mut tls| tls.answer()).is_err());
}
