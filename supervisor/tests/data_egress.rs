//! Every way out of a guest: granted, refused, and tried with tricks.

mod data;

use std::io::{Read, Write};
use std::net::Shutdown;

use data::{A, B, HTTPS, Link, Node, Plan, RULES, Upstream, X, is, read_answer, token, until};
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use serde_json::Value;

fn get(url: &str, host: &str) -> String {
    format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

fn plain(node: &Node) -> Upstream {
    Upstream::http(&format!("{}:8080", node.ip(80)))
}

fn requests(line: &Value) -> bool {
    is(line, &[("direction", "egress"), ("kind", "request")])
}

/// A SOCKS5 request; the reply code.
fn socks(link: &mut Link, methods: &[u8], host: &str, port: u16) -> Result<u8, std::io::Error> {
    let mut greeting = vec![5, u8::try_from(methods.len()).expect("few")];
    greeting.extend(methods);
    link.write_all(&greeting)?;
    let mut chosen = [0; 2];
    link.read_exact(&mut chosen)?;
    if chosen[1] == 0xff {
        return Ok(0xff);
    }
    let mut request = vec![5, 1, 0, 3, u8::try_from(host.len()).expect("short")];
    request.extend(host.as_bytes());
    request.extend(port.to_be_bytes());
    link.write_all(&request)?;
    let mut reply = [0; 10];
    link.read_exact(&mut reply)?;
    Ok(reply[1])
}

/// A server that says hello first, then echoes, and ends when the caller does.
fn talker(address: &str) -> Upstream {
    Upstream::start(address, |mut stream| {
        let _ = stream.write_all(b"220 hi\r\n");
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..read]).is_err() {
                return;
            }
        }
        let _ = stream.write_all(b"bye");
        let _ = stream.shutdown(Shutdown::Write);
    })
}

// covers: A7c
#[test]
fn a_denied_destination_is_never_dialled_by_any_way_out() {
    let node = Node::start();
    let upstream = Upstream::http(&format!("{}:8081", node.ip(80)));
    let denied = [("plain.test", 8081), ("other.test", 8081), ("b.t.nova", HTTPS)];
    let literal = node.ip(80);
    let mut count = 0;
    for (host, port) in denied.into_iter().chain([(literal.as_str(), 8081)]) {
        let answer = ask(&mut node.proxy(X), &get(&format!("http://{host}:{port}/"), host));
        assert_eq!(answer.status, 403, "{host}: {answer:?}");
        let answer = ask(&mut node.proxy(X), &format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"));
        assert_eq!(answer.status, 403, "{host}: {answer:?}");
        assert_eq!(socks(&mut node.proxy(X), &[0], host, port).expect("a reply"), 2, "{host}");
        count += 3;
    }
    // Dependencies: only those of the endpoint's own list, spelt as there.
    for target in ["other.test:5432", "dep.test:5433", "DEP.test:5432", "dep.test:05432", "dep.test", "dep.test:5432:"]
    {
        let mut link = node.guest(X).dial(2, token(X), target);
        assert!(link.is_closed(), "{target}");
        count += 1;
    }
    node.audited(count, |line| requests(line) && is(line, &[("verdict", "deny")]));
    assert_eq!(upstream.accepted(), 0);
    until("nothing is left open", || node.open("x") == 0 && node.connections().is_empty());
}

fn ask(link: &mut Link, request: &str) -> data::Answer {
    link.send(request);
    read_answer(link).expect("an answer")
}

// covers: A7c
// covers: D7.36
// covers: D7.37
#[test]
fn requests_in_forms_that_a_proxy_does_not_take_are_refused_with_help() {
    let node = Node::start();
    let upstream = plain(&node);
    for (request, status) in [
        (get("/v1/things", "plain.test:8080"), 400),
        (get("https://plain.test:8080/", "plain.test:8080"), 400),
        ("TRACE http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test:8080\r\n\r\n".to_owned(), 400),
        (get("http://user:secret@plain.test:8080/", "plain.test:8080"), 400),
        (get("http://plain.test:8080/a/../b", "plain.test:8080"), 400),
        (get("ftp://plain.test:8080/", "plain.test:8080"), 400),
        (get("ws://plain.test:8080/", "plain.test:8080"), 400),
        (get("wss://plain.test:8080/", "plain.test:8080"), 400),
        (get("http://2130706433:8080/", "x"), 400),
        (get("http://0x7f.1:8080/", "x"), 400),
        ("CONNECT plain.test HTTP/1.1\r\nHost: plain.test\r\n\r\n".to_owned(), 400),
        ("CONNECT plain.test: HTTP/1.1\r\nHost: plain.test\r\n\r\n".to_owned(), 400),
        ("CONNECT [plain.test]:8080 HTTP/1.1\r\nHost: plain.test\r\n\r\n".to_owned(), 400),
        ("CONNECT ::1:8080 HTTP/1.1\r\nHost: plain.test\r\n\r\n".to_owned(), 400),
    ] {
        let mut link = node.proxy(X);
        let answer = ask(&mut link, &request);
        assert_eq!(answer.status, status, "{request:?}: {answer:?}");
        assert!(!answer.text().contains("secret"), "{answer:?}");
        if request.starts_with("GET /v1") {
            assert!(answer.text().contains("http://host/path"), "{answer:?}");
        }
    }
    assert_eq!(upstream.accepted(), 0);
    assert!(!node.audit().iter().any(|line| line.to_string().contains("secret")));
}

// covers: A7c (F-EC12, F-EH01, F-EH03)
// covers: A7d
// covers: D7.31
#[test]
fn the_uri_decides_and_host_is_made_from_it() {
    let node = Node::start();
    let upstream = plain(&node);
    let mut link = node.proxy(X);
    let request = "GET http://PLAIN.test:8080/a?q=1 HTTP/1.1\r\nHost: denied.test\r\nProxy-Connection: keep-alive\r\n\
        Proxy-Authorization: Basic ZXZpbA==\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Client-Cert: URI=spiffe://evil\r\n\r\n";
    let answer = ask(&mut link, request);
    assert_eq!((answer.status, answer.text().as_str()), (200, "GET /a?q=1 HTTP/1.1"), "{answer:?}");
    let seen = upstream.seen().remove(0).to_ascii_lowercase();
    assert!(seen.contains("host: plain.test:8080\r\n") && seen.matches("host:").count() == 1, "{seen}");
    for gone in ["denied", "proxy-", "6.6.6.6", "evil", "x-forwarded"] {
        assert!(!seen.contains(gone), "{gone}: {seen}");
    }
    // From the workload's own address.
    assert_eq!(upstream.peers.lock().expect("no panic")[0], node.ip(11));
    // A second request of the same connection is decided on its own, and a pipelined one as well.
    link.send(format!(
        "{}DELETE http://plain.test:8080/b HTTP/1.1\r\nHost: plain.test:8080\r\n\r\n{}",
        get("http://plain.test:8080/a", "plain.test:8080"),
        get("http://other.test:8080/c", "other.test:8080"),
    ));
    let statuses = [(); 3].map(|()| read_answer(&mut link).expect("an answer").status);
    assert_eq!(statuses, [200, 403, 403]);
    assert_eq!(upstream.seen().len(), 2);
    let line = node.audited(2, |line| requests(line) && is(line, &[("verdict", "allow")])).remove(0);
    assert!(is(&line, &[("rule", "x-to-plain"), ("path", "/a"), ("dest_host", "plain.test")]), "{line}");
    assert_eq!(line["dest_addr"], format!("{}:8080", node.ip(80)));
}

// covers: A7c
// covers: D7.32
#[test]
fn a_refused_connect_closes_and_its_payload_is_no_request() {
    for half_close in [true, false] {
        let node = Node::with(Plan { half_close, ..Plan::default() });
        let upstream = plain(&node);
        let mut link = node.proxy(X);
        // F-EC02: the payload follows at once, and there is much of it.
        link.send(format!(
            "CONNECT evil.test:443 HTTP/1.1\r\nHost: plain.test:8080\r\n\r\n{}{}",
            get("http://plain.test:8080/", "plain.test:8080"),
            "x".repeat(100_000)
        ));
        let answer = read_answer(&mut link).expect("the 403 is not reset away");
        assert_eq!(answer.status, 403, "F-EC01: Host does not decide: {answer:?}");
        assert_eq!(answer.header("connection").as_deref(), Some("close"));
        assert_eq!(link.rest().expect("an end in good order"), b"");
        assert_eq!(upstream.accepted(), 0);
        node.audited(1, requests);
    }
}

// covers: A7c
// covers: D12e
#[test]
fn an_opaque_tunnel_carries_both_ways_and_keeps_each_end() {
    for half_close in [true, false] {
        let node = Node::with(Plan { half_close, ..Plan::default() });
        let upstream = talker(&format!("{}:5432", node.ip(80)));
        for way in ["connect", "connect with payload", "socks", "dependency"] {
            let mut link = match way {
                "dependency" => node.guest(X).dial(2, token(X), "dep.test:5432"),
                _ => node.proxy(X),
            };
            match way {
                "socks" => assert_eq!(socks(&mut link, &[2, 0], "TCP.test", 5432).expect("a reply"), 0),
                // F-EC01: the Host of a CONNECT is ignored.
                "connect" | "connect with payload" => {
                    let early = if way == "connect" { "" } else { "early " };
                    link.send(format!("CONNECT tcp.test:5432 HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n{early}"));
                    let head = data::read_head(&mut link).expect("an answer");
                    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
                    assert!(!head.to_ascii_lowercase().contains("content-length"), "{head}");
                }
                _ => {}
            }
            let mut banner = [0; 8];
            link.read_exact(&mut banner).expect("the server speaks first");
            assert_eq!(&banner, b"220 hi\r\n");
            link.send("ping");
            link.finish();
            let wanted = if way == "connect with payload" { "early pingbye" } else { "pingbye" };
            assert_eq!(String::from_utf8_lossy(&link.rest().expect("a good end")), wanted, "{way}");
        }
        assert_eq!(upstream.accepted(), 4);
        node.audited(4, |line| is(line, &[("kind", "open"), ("direction", "egress")]));
        let closes = node.audited(4, |line| is(line, &[("kind", "close"), ("direction", "egress")]));
        for close in closes {
            assert!(is(&close, &[("close", "done"), ("phase", "opaque")]), "{close}");
            assert!(close["bytes_in"].as_u64() >= Some(4) && close["bytes_out"].as_u64() >= Some(15), "{close}");
        }
    }
}

// covers: A7c
// covers: A3c
// covers: D7.33
#[test]
fn tls_in_a_tunnel_must_name_the_tunnels_host() {
    let node = Node::start();
    let cert = data::issue(&node.web, "spiffe://web/tcp", "tcp.test");
    let config = data::server_config(&cert);
    let upstream = Upstream::start(&format!("{}:5432", node.ip(80)), move |stream| {
        let server = ServerConnection::new(config.clone()).expect("a server");
        let mut tls = StreamOwned::new(server, stream);
        let mut byte = [0];
        if tls.read_exact(&mut byte).is_ok() {
            let _ = tls.write_all(&byte);
        }
    });
    let tunnel = || {
        let mut link = node.proxy(X);
        link.send("CONNECT tcp.test:5432 HTTP/1.1\r\nHost: tcp.test:5432\r\n\r\n");
        assert!(data::read_head(&mut link).expect("an answer").starts_with("HTTP/1.1 200"));
        link
    };
    for name in ["evil.test", "service-a.t.nova", "127.0.0.1"] {
        let client = ClientConnection::new(data::config(None), name.to_owned().try_into().expect("a name"));
        let mut tls = StreamOwned::new(client.expect("a client"), tunnel());
        assert!(tls.write_all(b"x").and_then(|()| tls.flush()).is_err() || tls.read(&mut [0]).is_err(), "{name}");
    }
    let closes = node.audited(3, |line| is(line, &[("kind", "close"), ("reason", "sni_mismatch")]));
    assert!(closes.iter().all(|line| line["bytes_in"] == 0), "{closes:#?}");
    let client = ClientConnection::new(data::config(None), "tcp.test".try_into().expect("a name")).expect("a client");
    let mut tls = StreamOwned::new(client, tunnel());
    tls.write_all(b"x").and_then(|()| tls.flush()).expect("sent");
    let mut back = [0];
    tls.read_exact(&mut back).expect("an answer");
    assert_eq!(&back, b"x");
    assert_eq!(upstream.accepted(), 4);
}

// covers: A7c
#[test]
fn an_app_that_speaks_tls_to_a_workload_is_closed() {
    let rules = RULES.replace(
        "rules:",
        "rules:\n  - {id: x-to-b-raw, tenant: t, from: {workload: x}, to: {workload: service-a, port: wrapped}}",
    );
    let rules = rules.replace("  - id: x-to-a-wrapped\n    tenant: t\n    from: {workload: x}\n    to: {workload: service-a, port: wrapped}\n", "");
    let node = Node::with(Plan { rules, ..Plan::default() });
    let mut link = node.proxy(X);
    link.send("CONNECT service-a.t.nova:7443 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(data::read_head(&mut link).expect("an answer").starts_with("HTTP/1.1 200"));
    let client = ClientConnection::new(data::config(None), "service-a.t.nova".try_into().expect("a name"));
    let mut tls = StreamOwned::new(client.expect("a client"), link);
    assert!(tls.write_all(b"x").and_then(|()| tls.flush()).is_err() || tls.read(&mut [0]).is_err());
    node.audited_once(|line| is(line, &[("kind", "close"), ("reason", "app_tls_to_workload")]));
    assert!(node.guest(A).app.seen().is_empty());
    // TLS inside a tunnel whose rules look at requests: nobody could read it.
    let mut link = node.proxy(X);
    link.send("CONNECT service-a.t.nova:8443 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(data::read_head(&mut link).expect("an answer").starts_with("HTTP/1.1 200"));
    link.send([0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3]);
    link.wait_closed();
    node.audited_once(|line| is(line, &[("kind", "request"), ("reason", "app_tls_to_workload")]));
    // The same towards a host outside, whose rules look at requests.
    let mut link = node.proxy(X);
    link.send("CONNECT plain.test:8080 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(data::read_head(&mut link).expect("an answer").starts_with("HTTP/1.1 200"));
    link.send([0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3]);
    link.wait_closed();
    node.audited_once(|line| is(line, &[("direction", "egress"), ("reason", "needs_opaque_grant")]));
}

// covers: A7c
// covers: D7.33
#[test]
fn requests_in_an_inspected_tunnel_are_decided_one_by_one() {
    let node = Node::start();
    let upstream = plain(&node);
    for way in ["connect", "socks"] {
        let mut link = node.proxy(X);
        if way == "socks" {
            assert_eq!(socks(&mut link, &[0], "plain.test", 8080).expect("a reply"), 0);
        } else {
            link.send("CONNECT plain.test:8080 HTTP/1.1\r\nHost: x\r\n\r\n");
            assert!(data::read_head(&mut link).expect("an answer").starts_with("HTTP/1.1 200"));
        }
        let before = upstream.seen().len();
        assert_eq!(ask(&mut link, &get("/a", "plain.test:8080")).status, 200);
        assert_eq!(ask(&mut link, "DELETE /a HTTP/1.1\r\nHost: plain.test:8080\r\n\r\n").status, 403);
        assert_eq!(ask(&mut link, &get("/a/%2e%2e/b", "plain.test:8080")).status, 400);
        assert_eq!(ask(&mut link, &get("/a", "other.test")).status, 400);
        assert_eq!(upstream.seen().len(), before + 1);
        link.finish();
        assert_eq!(link.rest().expect("a good end"), b"");
    }
    // F-EC07: bytes of no protocol do not fall back to a copy.
    for bytes in [&b"\x00\x01\x02random\r\n\r\n"[..], b"SSH-2.0-x\r\n\r\n", b"PRI * HTTP/3.0\r\n\r\nSM\r\n\r\n"] {
        let mut link = node.proxy(X);
        link.send("CONNECT plain.test:8080 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(data::read_head(&mut link).expect("an answer").starts_with("HTTP/1.1 200"));
        let before = upstream.accepted();
        link.send(bytes);
        link.wait_closed();
        assert_eq!(upstream.accepted(), before, "{bytes:?}");
    }
    until("nothing is left open", || node.open("x") == 0 && node.connections().is_empty());
}

// covers: A7c
#[test]
fn tls_is_added_towards_external_hosts_and_a_missing_port_may_become_443() {
    let node = Node::start();
    let api =
        Upstream::https(&format!("{}:9443", node.ip(80)), &data::issue(&node.web, "spiffe://web/api", "api.test"));
    let answer = ask(&mut node.proxy(X), &get("http://api.test:9443/v1/things", "api.test:9443"));
    assert_eq!((answer.status, answer.text().as_str()), (200, "GET /v1/things HTTP/1.1"), "{answer:?}");
    assert_eq!(api.seen().len(), 1);
    if std::net::TcpListener::bind(format!("{}:443", node.ip(90))).is_err() {
        return eprintln!("SKIPPED: port 443 needs a right that this user lacks");
    }
    let up = Upstream::https(&format!("{}:443", node.ip(80)), &data::issue(&node.web, "spiffe://web/up", "up.test"));
    let answer = ask(&mut node.proxy(X), &get("http://up.test/a", "up.test"));
    assert_eq!(answer.status, 200, "{answer:?}");
    let line = node.audited_once(|line| requests(line) && is(line, &[("dest_host", "up.test"), ("verdict", "allow")]));
    assert!(line["upgraded"] == true && line["dest_port"] == 443, "{line}");
    // A port that was named is never changed.
    let answer = ask(&mut node.proxy(X), &get("http://up.test:80/a", "up.test:80"));
    assert_eq!(answer.status, 403, "{answer:?}");
    assert_eq!(up.accepted(), 1);
}

// covers: A7c
#[test]
fn a_destination_with_another_identity_is_refused() {
    let node = Node::start();
    // A certificate of the wrong CA, and one of the right CA for another name.
    let stranger = nova_supervisor::identity::DevCa::generate().expect("a CA");
    let wrong =
        Upstream::https(&format!("{}:9443", node.ip(80)), &data::issue(&stranger, "spiffe://web/api", "api.test"));
    let answer = ask(&mut node.proxy(X), &get("http://api.test:9443/v1/a", "api.test:9443"));
    assert_eq!(answer.status, 502, "{answer:?}");
    let line = node.audited_once(requests);
    assert!(is(&line, &[("verdict", "error"), ("reason", "upstream_identity"), ("rule", "x-to-api")]), "{line}");
    assert!(wrong.seen().is_empty());
}

// covers: A7c
#[test]
fn a_workload_that_is_not_the_callee_gets_nothing() {
    // service-a's name leads to an impostor with a good certificate of the same trust domain: b's.
    let hosts = vec![("service-a.t.nova".to_owned(), "NET.70".to_owned())];
    let node = Node::with(Plan { hosts, ..Plan::default() });
    let impostor = Upstream::https(&format!("{}:8443", node.ip(70)), &node.svid("b"));
    let answer = ask(&mut node.proxy(X), &get("http://service-a.t.nova:8443/v1/orders/1", "service-a.t.nova"));
    assert_eq!(answer.status, 502, "{answer:?}");
    let line = node.audited_once(requests);
    assert!(is(&line, &[("reason", "upstream_identity"), ("rule", "x-to-a")]), "{line}");
    assert!(impostor.accepted() == 1 && impostor.seen().is_empty());
}

// covers: A7c
#[test]
fn a_call_between_workloads_passes_both_checks() {
    for half_close in [true, false] {
        let node = Node::with(Plan { half_close, ..Plan::default() });
        let answer = ask(&mut node.proxy(X), &get("http://service-a.t.nova:8443/v1/orders/1", "service-a.t.nova"));
        assert_eq!(answer.status, 200, "{answer:?}");
        let seen = node.guest(A).app.seen().remove(0);
        assert!(seen.contains("URI=spiffe://dev.invalid/t/t/w/x"), "{seen}");
        assert!(seen.to_ascii_lowercase().contains(&format!("x-forwarded-for: {}\r\n", node.ip(11))), "{seen}");
        let lines = node.audited(2, |line| is(line, &[("kind", "request"), ("verdict", "allow"), ("rule", "x-to-a")]));
        assert_ne!(lines[0]["direction"], lines[1]["direction"]);
        // The declared dependency leads there as well, request by request.
        let mut link = node.guest(X).dial(2, token(X), "service-a.t.nova:8443");
        assert_eq!(ask(&mut link, &get("/v1/orders/2", "service-a.t.nova:8443")).status, 200);
        assert_eq!(ask(&mut link, &get("/admin", "service-a.t.nova:8443")).status, 403);
        assert_eq!(node.guest(A).app.seen().len(), 2);
        assert!(node.guest(B).app.seen().is_empty());
    }
}

// covers: A7c
#[test]
fn names_that_lead_to_special_addresses_are_not_dialled() {
    let rules = "
rules:
  - id: to-names
    tenant: t
    from: {workload: x}
    to: {external: '*.guard.test', port: 8080}
    http: {methods: [GET], paths: ['/**']}
    tls: none
  - {id: x-to-a, tenant: t, from: {workload: x}, to: {workload: service-a, port: https}}
";
    let names = [
        ("loopback", "127.0.0.1"),
        ("metadata", "169.254.169.254"),
        ("mapped", "::ffff:169.254.169.254"),
        ("nat64", "64:ff9b::a9fe:a9fe"),
        ("private", "10.0.0.1"),
        ("own", "NET.21"),
        ("mixed", "1.1.1.1, 127.0.0.1"),
        ("any", "0.0.0.0"),
    ];
    let hosts = names.map(|(name, to)| (format!("{name}.guard.test"), to.to_owned())).into();
    let node = Node::with(Plan { rules: rules.to_owned(), hosts, lab: false, ..Plan::default() });
    let local = Upstream::http(&format!("{}:8080", node.ip(80)));
    for (name, _) in names {
        let url = format!("http://{name}.guard.test:8080/");
        let answer = ask(&mut node.proxy(X), &get(&url, name));
        assert_eq!(answer.status, 403, "{name}: {answer:?}");
    }
    let lines = node.audited(names.len(), requests);
    assert!(lines.iter().all(|line| line["reason"] == "address_forbidden"), "{lines:#?}");
    assert_eq!(local.accepted(), 0);
}

// covers: A7c
// covers: D7.12
// covers: D7.41
#[test]
fn own_listeners_are_reached_by_the_name_of_their_workload_only_even_in_a_lab() {
    let rules = "
rules:
  - id: to-alias
    tenant: t
    from: {workload: x}
    to: {external: alias.test, port: 8443, addresses: [NET.0/24]}
  - {id: to-range, tenant: t, from: {workload: x}, to: {cidr: NET.0/24, port: 8443}}
  - {id: x-to-a, tenant: t, from: {workload: x}, to: {workload: service-a, port: https}}
";
    let hosts = vec![("alias.test".to_owned(), "NET.21".to_owned())];
    let node = Node::with(Plan { rules: rules.to_owned(), hosts, ..Plan::default() });
    for host in ["alias.test".to_owned(), node.ip(21)] {
        let answer = ask(&mut node.proxy(X), &format!("CONNECT {host}:8443 HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert_eq!(answer.status, 403, "{host}: {answer:?}");
    }
    let lines = node.audited(2, requests);
    assert!(lines.iter().all(|line| line["reason"] == "address_forbidden"), "{lines:#?}");
}

// covers: A7c, D17k
#[test]
fn an_upstream_that_is_not_there_or_answers_nonsense_is_a_502_with_its_reason() {
    let node = Node::start();
    let answer = ask(&mut node.proxy(X), &get("http://plain.test:8080/", "plain.test:8080"));
    assert_eq!(answer.status, 502, "{answer:?}");
    node.audited_once(|line| is(line, &[("reason", "upstream_refused"), ("close", "upstream_refused")]));
    let _upstream = Upstream::start(&format!("{}:8080", node.ip(80)), |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ =
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
        let _ = stream.read(&mut [0; 4096]);
    });
    // It was gone a moment ago, which is believed for a second.
    until("nonsense is called that", || {
        let answer = ask(&mut node.proxy(X), &get("http://plain.test:8080/", "plain.test:8080"));
        assert_eq!(answer.status, 502, "{answer:?}");
        node.audit().iter().any(|line| is(line, &[("reason", "upstream_malformed")]))
    });
    assert_eq!(socks(&mut node.proxy(X), &[0], "tcp.test", 5432).expect("a reply"), 5);
}

// covers: A7a
#[test]
fn a_request_body_that_the_gate_refuses_has_one_record_and_is_no_fault_of_the_upstream() {
    let node = Node::start();
    let upstream = plain(&node);
    let mut link = node.proxy(X);
    link.send("POST http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test:8080\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    until("the request is on its way", || upstream.accepted() == 1);
    link.send("zz\r\nGET http://plain.test:8080/smuggled HTTP/1.1\r\n\r\n");
    assert_eq!(read_answer(&mut link).expect("an answer").status, 400);
    link.wait_closed();
    until("nothing is left open", || node.open("x") == 0);
    let line = node.audited_once(requests);
    assert!(is(&line, &[("verdict", "deny"), ("reason", "malformed")]), "{line}");
    assert!(upstream.seen().is_empty());
}

// covers: A7c
#[test]
fn a_socks_request_for_an_ipv6_address_is_decided_and_not_malformed() {
    let node = Node::start();
    let mut link = node.proxy(X);
    link.send([5, 1, 0]);
    link.read_exact(&mut [0; 2]).expect("a choice");
    let mut request = vec![5, 1, 0, 4];
    request.extend("2606:4700::1111".parse::<std::net::Ipv6Addr>().expect("an address").octets());
    request.extend(443_u16.to_be_bytes());
    link.send(request);
    let mut reply = [0; 10];
    link.read_exact(&mut reply).expect("a reply");
    assert_eq!(reply[1], 2, "not allowed by the rules");
    let line = node.audited_once(requests);
    assert!(is(&line, &[("reason", "no_grant"), ("dest_host", "2606:4700::1111")]), "{line}");
    // Only CONNECT is carried.
    for command in [2, 3] {
        let mut link = node.proxy(X);
        link.send([5, 1, 0]);
        link.read_exact(&mut [0; 2]).expect("a choice");
        link.send([5, command, 0, 1, 1, 1, 1, 1, 1, 187]);
        link.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply[1], 7);
    }
    node.audited(2, |line| is(line, &[("reason", "unsupported")]));
}

// covers: A7c
#[test]
fn an_old_client_gets_an_answer_that_it_can_read() {
    let node = Node::start();
    let _upstream = Upstream::start(&format!("{}:8080", node.ip(80)), |mut stream| {
        while data::read_request(&mut stream).is_ok() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nold\r\n0\r\n\r\n");
        }
    });
    let mut link = node.proxy(X);
    link.send("GET http://plain.test:8080/ HTTP/1.0\r\n\r\n");
    let all = String::from_utf8(link.rest().expect("a good end")).expect("text");
    let (head, body) = all.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.0 200") && body == "old", "{all}");
    assert!(!head.to_ascii_lowercase().contains("transfer-encoding"), "{all}");
}

// covers: A7c
#[test]
fn a_long_upload_and_a_long_download_arrive_whole() {
    for half_close in [true, false] {
        let node = Node::with(Plan { half_close, ..Plan::default() });
        let _upstream = Upstream::start(&format!("{}:8080", node.ip(80)), |mut stream| {
            while let Ok(request) = data::read_request(&mut stream) {
                let body = request.split_once("\r\n\r\n").expect("a head").1;
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        let mut link = node.proxy(X);
        let piece = "0123456789".repeat(100_000);
        link.send(
            "PUT http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test:8080\r\nTransfer-Encoding: chunked\r\n\r\n",
        );
        for _ in 0..8 {
            link.send(format!("{:x}\r\n{piece}\r\n", piece.len()));
        }
        link.send("0\r\n\r\n");
        let answer = read_answer(&mut link).expect("an answer");
        let passed = answer.text();
        assert_eq!(answer.status, 200);
        assert_eq!(passed.matches("0123456789").count(), 800_000);
        let line = node.audited_once(requests);
        assert_eq!(line["bytes_in"], 8_000_000, "{line}");
    }
}
