//! HTTP towards hosts outside that speak TLS: which version carries a request, and which requests share a connection. Judged
//! by what the host received, and on which connection.

mod data;

use std::io::{Read, Write};
use std::time::Duration;

use data::h2::{Event, GOAWAY, H2};
use data::secure::{Host, Leaf, dns, serve_h2, speaks};
use data::{B, Link, Node, Plan, RULES, X, is, issue, read_answer};

const H2_FIRST: &[&str] = &["h2", "http/1.1"];

fn get(host: &str, path: &str) -> String {
    format!("GET http://{host}{path} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

fn ask(link: &mut Link, request: &str) -> data::Answer {
    link.send(request);
    read_answer(link).expect("an answer")
}

fn api(node: &Node) -> String {
    format!("{}:9443", node.ip(80))
}

fn certificate(node: &Node) -> nova_supervisor::identity::Issued {
    issue(&node.web, "spiffe://web/api", "api.test")
}

// covers: D5d
#[test]
fn requests_of_an_http1_app_share_one_connection_of_a_host_that_picks_http2() {
    let node = Node::start();
    let host = Host::polite(&api(&node), speaks(&certificate(&node), H2_FIRST));
    let mut link = node.proxy(X);
    for number in 0..5 {
        let path = format!("/v1/{number}?q=a%20b");
        link.send(format!(
            "GET http://api.test:9443{path} HTTP/1.1\r\nHost: api.test:9443\r\nConnection: keep-alive, X-Hop\r\n\
             X-Hop: 1\r\nCookie: a=1\r\nX-Kept: yes\r\n\r\n"
        ));
        let answer = read_answer(&mut link).expect("an answer");
        assert_eq!((answer.status, answer.text().as_str()), (200, "0"), "{answer:?}");
    }
    let seen = host.log.all();
    assert_eq!((seen.len(), host.upstream.accepted()), (5, 1));
    for (number, seen) in seen.iter().enumerate() {
        assert_eq!(seen.alpn, "h2");
        let path = format!(":path: /v1/{number}?q=a%20b");
        for line in [":method: GET", ":scheme: https", ":authority: api.test:9443", &path, "cookie: a=1", "x-kept: yes"]
        {
            assert!(seen.has(line), "{line} in {seen:?}");
        }
        for gone in ["host:", "connection:", "x-hop", "keep-alive", "x-forwarded"] {
            assert!(!seen.head.contains(gone), "{gone} in {seen:?}");
        }
    }
    // Each record names the address, also of a request that dialled nothing.
    let lines = node.audited(5, |line| is(line, &[("direction", "egress"), ("kind", "request"), ("verdict", "allow")]));
    assert!(lines.iter().all(|line| line["dest_addr"] == api(&node)), "{lines:#?}");
}

// covers: D5d
#[test]
fn many_requests_at_once_wait_for_one_dial_and_go_out_on_it() {
    let node = Node::start();
    let config = speaks(&certificate(&node), H2_FIRST);
    let host = Host::start(&api(&node), config, |connection, tls| {
        // Whoever dialled again meanwhile would come on a connection of its own.
        std::thread::sleep(Duration::from_millis(300));
        serve_h2(connection, tls, |_, _| vec![(":status", "200")]);
    });
    let mut links: Vec<_> = (0..40).map(|_| node.proxy(X)).collect();
    for link in &mut links {
        link.send(get("api.test:9443", "/v1/a"));
    }
    for link in &mut links {
        assert_eq!(read_answer(link).expect("an answer").status, 200);
    }
    assert_eq!(host.log.all().len(), 40);
    // One for each of the two data-plane threads.
    assert!(host.upstream.accepted() <= 2, "{}", host.upstream.accepted());
}

// covers: D5d
#[test]
fn a_host_that_does_not_pick_http2_is_spoken_to_in_http1() {
    let node = Node::start();
    let host = Host::polite(&api(&node), speaks(&certificate(&node), &["http/1.1"]));
    for alpn in [&["http/1.1"][..], &[]] {
        host.configure(speaks(&certificate(&node), alpn));
        let before = host.upstream.accepted();
        let mut links: Vec<_> = (0..8).map(|_| node.proxy(X)).collect();
        for link in &mut links {
            assert_eq!(ask(link, &get("api.test:9443", "/v1/a")).status, 200);
        }
        let seen = host.log.all().pop().expect("a request");
        assert_eq!(seen.alpn, alpn.first().copied().unwrap_or_default());
        assert!(seen.has("GET /v1/a HTTP/1.1") && seen.has("host: api.test:9443"), "{seen:?}");
        assert!(host.upstream.accepted() - before <= 2, "idle connections are used again");
        node.publish(RULES);
    }
    // The host learns HTTP/2 meanwhile: the next connection uses it.
    host.configure(speaks(&certificate(&node), H2_FIRST));
    node.publish(RULES);
    assert_eq!(ask(&mut node.proxy(X), &get("api.test:9443", "/v1/a")).status, 200);
    assert_eq!(host.log.all().pop().expect("a request").alpn, "h2");
}

// covers: D5e
#[test]
fn no_connection_is_shared_between_workloads() {
    let rules = format!("{RULES}{}", api_rule("b", "api.test"));
    let node = Node::with(Plan { rules: rules.clone(), ..Plan::default() });
    let host = Host::polite(&api(&node), speaks(&certificate(&node), H2_FIRST));
    for alpn in [H2_FIRST, &["http/1.1"]] {
        host.configure(speaks(&certificate(&node), alpn));
        node.publish(&rules);
        for _ in 0..6 {
            for pod in [X, B] {
                let head = format!("GET http://api.test:9443/v1/a HTTP/1.1\r\nHost: a\r\nx-pod: {pod}\r\n\r\n");
                assert_eq!(ask(&mut node.proxy(pod), &head).status, 200);
            }
        }
    }
    let seen = host.log.all();
    assert_eq!(seen.iter().filter(|seen| seen.alpn == "h2").count(), 12);
    assert_eq!(seen.len(), 24);
    for connection in host.log.connections() {
        let of_it: Vec<_> = seen.iter().filter(|seen| seen.connection == connection).collect();
        let is_x = of_it[0].has("x-pod: pod-x");
        let (pod, from) = if is_x { ("x-pod: pod-x", node.ip(11)) } else { ("x-pod: pod-b", node.ip(31)) };
        assert!(of_it.iter().all(|seen| seen.has(pod) && seen.from == from), "{of_it:#?}");
    }
}

fn api_rule(workload: &str, host: &str) -> String {
    format!(
        "  - id: {workload}-to-{}\n    tenant: t\n    from: {{workload: {workload}}}\n    \
         to: {{external: {host}, port: 9443, ca: web-ca, addresses: [NET.80/32]}}\n    \
         http: {{methods: [GET, POST], paths: ['/**']}}\n",
        host.replace('.', "-")
    )
}

// covers: D5e
#[test]
fn hosts_of_one_address_and_certificate_get_connections_of_their_own_and_421_is_returned() {
    let rules = format!("{RULES}{}", api_rule("x", "up.test"));
    let node = Node::with(Plan { rules, ..Plan::default() });
    // A certificate that is good for both names, as of a content delivery network.
    let both = Leaf::of(&node.web, |params| params.subject_alt_names = dns(&["api.test", "up.test"]));
    let host = Host::start(&api(&node), both.speaks(H2_FIRST), |connection, tls| {
        serve_h2(connection, tls, |_, head| {
            vec![(":status", if head.contains("/v1/misdirected") { "421" } else { "200" })]
        });
    });
    let mut link = node.proxy(X);
    assert_eq!(ask(&mut link, &get("api.test:9443", "/v1/a")).text(), "0");
    assert_eq!(ask(&mut link, &get("up.test:9443", "/v1/a")).text(), "1");
    assert_eq!(ask(&mut link, &get("api.test:9443", "/v1/b")).text(), "0");
    let answer = ask(&mut link, &get("api.test:9443", "/v1/misdirected"));
    assert_eq!((answer.status, answer.text().as_str()), (421, "0"));
    let seen = host.log.all();
    assert_eq!((seen.len(), host.upstream.accepted()), (4, 2), "421 was not tried elsewhere");
    for seen in seen {
        let authority = if seen.connection == 0 { ":authority: api.test:9443" } else { ":authority: up.test:9443" };
        assert!(seen.has(authority), "{seen:?}");
    }
}

// covers: D5f
#[test]
fn a_new_bundle_leaves_no_connection_to_be_used_again() {
    let node = Node::start();
    let host = Host::polite(&api(&node), speaks(&certificate(&node), H2_FIRST));
    for (round, alpn) in [H2_FIRST, &["http/1.1"]].into_iter().enumerate() {
        host.configure(speaks(&certificate(&node), alpn));
        for turn in 0..2 {
            node.publish(RULES);
            let mut link = node.proxy(X);
            let fresh = (2 * round + turn).to_string();
            for _ in 0..3 {
                assert_eq!(ask(&mut link, &get("api.test:9443", "/v1/a")).text(), fresh);
            }
        }
    }
    assert_eq!(host.upstream.accepted(), 4);
}

// covers: D5d
#[test]
fn a_connection_that_says_goodbye_takes_no_further_request() {
    let node = Node::start();
    let config = speaks(&certificate(&node), H2_FIRST);
    let host = Host::start(&api(&node), config, |connection, tls| {
        let Ok(mut h2) = H2::server(tls) else { return };
        while let Ok(event) = h2.event() {
            let Event::Headers { stream, fields, .. } = event else { continue };
            connection.saw_fields(&fields);
            h2.headers(stream, &[(":status", "200")], false);
            let mut goodbye = stream.to_be_bytes().to_vec();
            goodbye.extend(0_u32.to_be_bytes());
            h2.send(GOAWAY, 0, 0, &goodbye);
            h2.data(stream, b"bye", true);
        }
    });
    let mut link = node.proxy(X);
    for _ in 0..4 {
        let answer = ask(&mut link, &get("api.test:9443", "/v1/a"));
        assert_eq!((answer.status, answer.text().as_str()), (200, "bye"), "{answer:?}");
    }
    assert_eq!(host.log.connections(), [0, 1, 2, 3]);
}

// covers: D5h
#[test]
fn bodies_stream_both_ways_and_trailers_arrive() {
    let node = Node::start();
    let config = speaks(&certificate(&node), H2_FIRST);
    let host = Host::start(&api(&node), config, |connection, tls| {
        let Ok(mut h2) = H2::server(tls) else { return };
        while let Ok(event) = h2.event() {
            match event {
                Event::Headers { stream, fields, end: false } => {
                    connection.saw_fields(&fields);
                    h2.headers(stream, &[(":status", "200"), ("trailer", "x-sum, grpc-status")], false);
                }
                Event::Headers { stream, fields, end: true } => {
                    connection.saw_fields(&fields);
                    h2.headers(stream, &[("x-sum", "3"), ("grpc-status", "0")], true);
                }
                Event::Data { stream, bytes, end } => {
                    h2.data(stream, &bytes, false);
                    if end {
                        h2.headers(stream, &[("x-sum", "2"), ("grpc-status", "0")], true);
                    }
                }
                _ => {}
            }
        }
    });
    let mut link = node.proxy(X);
    link.send(
        "POST http://api.test:9443/v1/stream HTTP/1.1\r\nHost: api.test:9443\r\nTE: trailers\r\nTrailer: x-end\r\n\
         Transfer-Encoding: chunked\r\n\r\n",
    );
    link.send("4\r\nping\r\n");
    let head = data::read_head(&mut link).expect("the head comes before the request has ended");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(chunk(&mut link), "4\r\nping\r\n");
    link.send("4\r\npong\r\n");
    assert_eq!(chunk(&mut link), "4\r\npong\r\n");
    link.send("0\r\nx-end: 1\r\n\r\n");
    let mut rest = vec![0; "0\r\nx-sum: 3\r\ngrpc-status: 0\r\n\r\n".len()];
    link.read_exact(&mut rest).expect("trailers");
    let rest = String::from_utf8_lossy(&rest).to_ascii_lowercase();
    assert!(rest.starts_with("0\r\n") && rest.contains("x-sum: 3") && rest.contains("grpc-status: 0"), "{rest}");
    let seen = host.log.all();
    assert!(seen[0].has("te: trailers") && seen[1].has("x-end: 1"), "{seen:#?}");
    assert!(!seen[0].head.contains("transfer-encoding"), "{seen:#?}");
}

// covers: D5h
#[test]
fn trailers_behind_an_answer_of_known_length_reach_an_app_of_http1_that_reads_them() {
    let node = Node::start();
    let _host = Host::start(&api(&node), speaks(&certificate(&node), H2_FIRST), |_, tls| {
        let Ok(mut h2) = H2::server(tls) else { return };
        while let Ok(event) = h2.event() {
            let Event::Headers { stream, fields, .. } = event else { continue };
            let announced = data::h2::find(&fields, ":path") == Some("/v1/announced");
            let promise = [("trailer", "x-sum")];
            let head = [&[(":status", "200"), ("content-length", "4")], &promise[..usize::from(announced)]].concat();
            h2.headers(stream, &head, data::h2::find(&fields, ":method") == Some("HEAD"));
            h2.data(stream, b"fine", false);
            h2.headers(stream, &[("x-sum", "4")], true);
        }
    });
    let ask = |path: &str, version: &str, more: &str| {
        let mut link = node.proxy(X);
        link.send(format!("GET http://api.test:9443{path} HTTP/{version}\r\nHost: api.test:9443\r\n{more}\r\n"));
        String::from_utf8_lossy(&link.rest().expect("an answer")).to_ascii_lowercase()
    };
    let reads = "Connection: TE, close\r\nTE: trailers\r\n";
    let answer = ask("/v1/announced", "1.1", reads);
    assert!(answer.ends_with("\r\n\r\n4\r\nfine\r\n0\r\nx-sum: 4\r\n\r\n"), "{answer}");
    assert!(answer.contains("trailer: x-sum") && !answer.contains("content-length"), "{answer}");
    // Who reads none, or is promised none, is told the length.
    for (path, version, more) in [
        ("/v1/announced", "1.1", "Connection: close\r\n"),
        ("/v1/announced", "1.0", reads),
        ("/v1/silent", "1.1", reads),
    ] {
        let answer = ask(path, version, more);
        assert!(answer.contains("content-length: 4") && answer.ends_with("\r\n\r\nfine"), "{path} {version}: {answer}");
    }
}

/// A chunk of ten bytes with its frame.
fn chunk(link: &mut Link) -> String {
    let mut bytes = [0; 9];
    link.read_exact(&mut bytes).expect("a chunk");
    String::from_utf8_lossy(&bytes).into_owned()
}

// covers: D5d
#[test]
fn bytes_that_nobody_looks_at_go_out_in_tls_that_names_no_protocol() {
    let rules = RULES.replace(
        "    to: {external: tcp.test, port: 5432, addresses: [NET.80/32]}\n",
        "    to: {external: tcp.test, port: 5432, ca: web-ca, addresses: [NET.80/32]}\n    tls: originate\n",
    );
    let node = Node::with(Plan { rules, ..Plan::default() });
    let who = issue(&node.web, "spiffe://web/tcp", "tcp.test");
    let host = Host::start(&format!("{}:5432", node.ip(80)), speaks(&who, H2_FIRST), |connection, mut tls| {
        let mut bytes = [0; 4];
        if tls.read_exact(&mut bytes).is_ok() {
            connection.saw(String::from_utf8_lossy(&bytes).into_owned());
            let _ = tls.write_all(b"pong");
        }
    });
    let mut link = node.proxy(X);
    link.send("CONNECT tcp.test:5432 HTTP/1.1\r\nHost: tcp.test:5432\r\n\r\n");
    assert!(data::read_head(&mut link).expect("an answer").starts_with("HTTP/1.1 200"));
    link.send("ping");
    let mut back = [0; 4];
    link.read_exact(&mut back).expect("an answer");
    let seen = host.log.all().remove(0);
    assert_eq!((&back, seen.head.as_str(), seen.alpn.as_str()), (b"pong", "ping", ""));
}

// covers: D5d
#[test]
fn a_call_without_a_port_is_not_taken_to_443_where_nothing_adds_tls() {
    let bare = "  - id: x-to-bare\n    tenant: t\n    from: {workload: x}\n    to: {external: bare.test, port: 443, addresses: \
                [NET.80/32]}\n    http: {methods: [GET], paths: ['/**']}\n    tls: none\n";
    let node = Node::with(Plan {
        rules: format!("{RULES}{bare}"),
        hosts: vec![("bare.test".to_owned(), "NET.80".to_owned())],
        ..Plan::default()
    });
    if std::net::TcpListener::bind(format!("{}:443", node.ip(90))).is_err() {
        return eprintln!("SKIPPED: port 443 needs a right that this user lacks");
    }
    let upstream = data::Upstream::http(&format!("{}:443", node.ip(80)));
    let mut link = node.proxy(X);
    assert_eq!(ask(&mut link, &get("bare.test", "/a")).status, 403);
    let line = node.audited_once(|line| is(line, &[("dest_host", "bare.test"), ("kind", "request")]));
    assert!(is(&line, &[("verdict", "deny"), ("reason", "no_grant")]), "{line}");
    assert_eq!(upstream.accepted(), 0);
    assert_eq!(ask(&mut link, &get("bare.test:443", "/a")).status, 200, "who says so gets what the rule says");
}
