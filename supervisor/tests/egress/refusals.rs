//! What an app learns of a refusal, and that nothing else happens.

use std::io::{Read, Write};

use rustls::ClientConnection;
use serde_json::Value;

use crate::data::{self, HTTPS, Link, Node, Plan, RULES, X, header, is, read_answer, read_head, token, until};
use crate::ways::{Way, connect, named, socks_request};
use crate::world::{Target, World};

fn problem(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| panic!("no problem details: {text}"))
}

// covers: D14a
#[test]
fn a_refusal_says_what_was_asked_who_decided_and_what_to_do() {
    let world = World::start();
    for way in Way::all_to(Target::Plain) {
        let ask = crate::ways::Ask {
            method: "DELETE",
            path: "/v1/orders/1?secret=1",
            fields: Vec::new(),
            host: None,
            body: "",
        };
        let said = way.open(&world, Target::Plain).ask(Target::Plain, &ask);
        assert_eq!(said.header("content-type").as_deref(), Some("application/problem+json"), "{way:?}: {said:?}");
        let problem = problem(&said.text());
        let id = said.header("x-nova-decision-id").expect("an id");
        assert_eq!(
            (&problem["status"], &problem["decision_id"]),
            (&Value::from(403), &Value::from(id.clone())),
            "{problem}"
        );
        assert!(
            problem["call"].as_str().is_some_and(|call| call.starts_with("DELETE ") && call.ends_with("/v1/orders/1")),
            "{problem}"
        );
        assert_eq!(problem["explain"], format!("nova-supervisor replay {id}"), "{problem}");
        assert!(
            problem["detail"].as_str().is_some_and(|text| text.contains("ask the owner of the policy")),
            "{problem}"
        );
        world.node.audited_once(|line| line["decision_id"] == *id);
    }
}

// covers: D14b
#[test]
fn every_refused_tunnel_is_told_and_ends_without_a_dial() {
    let world = World::start();
    for host in ["evil.test", "plain.test", "10.0.0.1"] {
        let mut link = world.node.proxy(X);
        link.send(format!("CONNECT {host}:444 HTTP/1.1\r\nHost: {host}:444\r\n\r\n"));
        let answer = read_answer(&mut link).expect("an answer");
        assert_eq!((answer.status, answer.header("connection").as_deref()), (403, Some("close")), "{answer:?}");
        assert_eq!(problem(&answer.text())["call"], format!("CONNECT {host}:444"));
        assert_eq!(link.rest().expect("an end in good order"), b"");
        let mut link = world.node.proxy(X);
        assert_eq!(socks_request(&mut link, 1, 3, &named(host), 444), [5, 2, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(link.rest().expect("an end in good order"), b"");
    }
    let lines = world.node.audited(6, |line| is(line, &[("kind", "request"), ("reason", "no_grant")]));
    assert!(lines.iter().all(|line| line["dest_addr"].is_null()), "{lines:#?}");
    // F-SO04: who resolves names itself learns why that does not work.
    world.node.audited(2, |line| line["detail"] == "ip_target_no_cidr_rule");
    assert_eq!(world.accepted(), 0);
}

// covers: D14c
#[test]
fn a_refused_name_is_not_even_resolved() {
    // Names that nobody has granted go to a resolver that would be seen to be asked: there is none, and asking it fails with
    // another reason than the refusal.
    let world = World::start();
    for (request, status) in [
        ("GET http://nobody.invalid/ HTTP/1.1\r\nHost: nobody.invalid\r\n\r\n", 403),
        ("CONNECT nobody.invalid:443 HTTP/1.1\r\nHost: nobody.invalid\r\n\r\n", 403),
    ] {
        let mut link = world.node.proxy(X);
        link.send(request);
        assert_eq!(read_answer(&mut link).expect("an answer").status, status);
    }
    assert!(world.node.guest(X).dial(2, token(X), "nobody.invalid:443").is_closed());
    let lines = world.node.audited(3, |line| is(line, &[("kind", "request"), ("verdict", "deny")]));
    assert!(lines.iter().all(|line| line["reason"] == "no_grant" || line["reason"] == "bad_destination"), "{lines:#?}");
}

// covers: D16a
#[test]
fn udp_is_refused_however_it_is_asked_for() {
    let world = World::start();
    // SOCKS: UDP ASSOCIATE and BIND.
    for command in [2, 3] {
        let mut link = world.node.proxy(X);
        assert_eq!(socks_request(&mut link, command, 1, &[0; 4], 0), [5, 7, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(link.rest().expect("an end in good order"), b"");
    }
    world.node.audited(2, |line| is(line, &[("kind", "request"), ("reason", "unsupported"), ("method", "SOCKS5")]));
    // CONNECT-UDP, to the proxy and through it.
    for target in ["/.well-known/masque/udp/1.1.1.1/443/", "http://plain.test:8080/.well-known/masque/udp/1.1.1.1/443/"]
    {
        let mut link = world.node.proxy(X);
        link.send(format!(
            "GET {target} HTTP/1.1\r\nHost: plain.test:8080\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\nCapsule-Protocol: ?1\r\n\r\n"
        ));
        let answer = read_answer(&mut link).expect("an answer");
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(answer.text().contains("no UDP"), "{answer:?}");
    }
    assert_eq!(world.accepted(), 0);
}

/// What an app gets back that begins TLS, and the end of its connection.
fn told(mut link: Link) -> String {
    let name = "service-a.t.nova".try_into().expect("a name");
    let mut client = ClientConnection::new(data::config(None), name).expect("a client");
    let mut hello = Vec::new();
    client.write_tls(&mut hello).expect("written");
    link.send(&hello);
    let text = String::from_utf8(link.rest().expect("an end in good order")).expect("text");
    // A TLS library reads that as what it is: no TLS.
    let error = client.read_tls(&mut text.as_bytes()).map(|_| client.process_new_packets());
    assert!(matches!(error, Ok(Err(_))), "{error:?}");
    text
}

// covers: D16b
#[test]
fn tls_to_a_workload_is_answered_with_the_advice_to_use_http() {
    // One rule looks at requests, the other one copies bytes.
    let rules = RULES.replace("methods: [GET, HEAD, POST, PUT], paths: ['/v1/orders/**']", "methods: [GET]");
    let node = Node::with(Plan { rules, ..Plan::default() });
    for port in [HTTPS, 7443] {
        let mut link = node.proxy(X);
        link.send(format!("CONNECT service-a.t.nova:{port} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(read_head(&mut link).expect("an answer").starts_with("HTTP/1.1 200"));
        let text = told(link);
        assert!(text.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{text}");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(
            problem(body)["detail"].as_str().is_some_and(|text| text.contains("with http:// instead of https://")),
            "{body}"
        );
        let id = header(head, "x-nova-decision-id").expect("an id");
        let line = node.audited_once(|line| line["decision_id"] == *id && line["kind"] != "open");
        assert!(is(&line, &[("reason", "app_tls_to_workload"), ("verdict", "deny")]), "{line}");
    }
    until("nothing is left open", || node.open("x") == 0);
    // To a host outside whose rules look at requests nobody can be told anything: the app may well be right to use TLS.
    let world = World::start();
    let mut link = connect(&world.node, Target::Plain);
    link.send([0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3]);
    assert!(!matches!(link.read(&mut [0; 16]), Ok(1..)));
    let _ = link.flush();
    world.node.audited_once(|line| is(line, &[("kind", "request"), ("reason", "needs_opaque_grant")]));
}
