//! Whom the supervisor believes to be a destination. Refusals first; each is judged by what the destination received.

mod data;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use data::h2::{DATA, Event, H2, HEADERS, frame};
use data::secure::{Connection, Host, Leaf, TlsServer, dns, speaks, speaks_versions, uri};
use data::{HTTPS, Link, Node, PATIENCE, Plan, RULES, X, is, issue, read_answer, until};
use nova_proto::ids::SpiffeId;
use nova_supervisor::identity::DevCa;
use rcgen::ExtendedKeyUsagePurpose::ClientAuth;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::ServerConfig;
use serde_json::Value;

const API: &str = "GET http://api.test:9443/v1/a HTTP/1.1\r\nHost: api.test:9443\r\n\r\n";
const A: &str = "GET http://service-a.t.nova:8443/v1/orders/1 HTTP/1.1\r\nHost: service-a.t.nova:8443\r\n\r\n";

fn ask(link: &mut Link, request: &str) -> data::Answer {
    link.send(request);
    read_answer(link).expect("an answer")
}

/// The egress record of the request with this answer.
fn record(node: &Node, answer: &data::Answer) -> Value {
    let id = answer.decision_id();
    node.audited_once(|line| is(line, &[("direction", "egress"), ("kind", "request"), ("decision_id", &id)]))
}

/// Every server is refused with this reason and detail, and gets nothing.
fn all_refused(node: &Node, address: &str, request: &str, servers: Vec<(&'static str, Arc<ServerConfig>)>) {
    let host = Host::polite(address, Arc::clone(&servers[0].1));
    for (count, (detail, config)) in servers.into_iter().enumerate() {
        host.configure(config);
        let answer = ask(&mut node.proxy(X), request);
        assert_eq!(answer.status, 502, "{count} {detail}: {answer:?}");
        assert!(!answer.text().contains(detail), "the app learns no details: {answer:?}");
        let line = record(node, &answer);
        assert!(is(&line, &[("verdict", "error"), ("reason", "upstream_identity"), ("detail", detail)]), "{line}");
        assert_eq!(host.upstream.accepted(), count + 1, "{detail}");
    }
    assert_eq!((host.log.all().len(), host.payload.load(Ordering::SeqCst)), (0, 0), "not a byte of a request");
}

// covers: D5a
#[test]
fn a_host_is_believed_by_the_ca_that_its_rule_names_in_the_active_bundle() {
    let node = Node::start();
    let certificate = issue(&node.web, "spiffe://web/api", "api.test");
    let host = Host::polite(&format!("{}:9443", node.ip(80)), speaks(&certificate, &["h2", "http/1.1"]));
    let mut link = node.proxy(X);
    assert_eq!(ask(&mut link, API).status, 200);
    for (from, to) in [
        ("port: 9443, ca: web-ca", "port: 9443, ca: partner-ca"),
        // The same name, another CA.
        ("{name: web-ca, pem_file: web-ca.pem}", "{name: web-ca, pem_file: partner-ca.pem}"),
    ] {
        assert!(RULES.contains(from));
        node.publish(&RULES.replace(from, to));
        let answer = ask(&mut link, API);
        assert_eq!(answer.status, 502, "{to}");
        assert!(is(&record(&node, &answer), &[("reason", "upstream_identity"), ("detail", "unknown_issuer")]), "{to}");
        node.publish(RULES);
        assert_eq!(ask(&mut link, API).status, 200, "{to}");
    }
    assert_eq!(host.log.all().len(), 3);
}

// covers: D5a
#[test]
fn a_host_without_the_right_certificate_gets_nothing_and_the_record_says_why() {
    let node = Node::start();
    let stranger = DevCa::generate().expect("a CA");
    let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
    let id = SpiffeId::new("spiffe://web/api").expect("an id");
    let expired = node.web.issue_between(&id, "api.test", now - 2 * hour, now - hour).expect("issued");
    let future = node.web.issue_between(&id, "api.test", now + hour, now + 2 * hour).expect("issued");
    let protocols = &["h2", "http/1.1"];
    let named = |names: &'static [&'static str]| {
        Leaf::of(&node.web, |params| params.subject_alt_names = dns(names)).speaks(protocols)
    };
    let servers = vec![
        ("unknown_issuer", speaks(&issue(&stranger, "spiffe://web/api", "api.test"), protocols)),
        ("unknown_issuer", Leaf::self_signed(|params| params.subject_alt_names = dns(&["api.test"])).speaks(protocols)),
        // Of the own trust domain's CA, which vouches for workloads only.
        ("unknown_issuer", speaks(&issue(&node.ca, "spiffe://dev.invalid/t/t/w/x", "api.test"), protocols)),
        ("wrong_identity", named(&["other.test"])),
        ("wrong_identity", named(&["api.test.evil.test", "xapi.test", "*.api.test"])),
        ("wrong_identity", named(&[])),
        ("peer_expired", speaks(&expired, protocols)),
        ("peer_expired", speaks(&future, protocols)),
        (
            "extended_key_usage",
            Leaf::of(&node.web, |params| {
                params.subject_alt_names = dns(&["api.test"]);
                params.extended_key_usages = vec![ClientAuth];
            })
            .speaks(protocols),
        ),
    ];
    all_refused(&node, &format!("{}:9443", node.ip(80)), API, servers);
}

/// Asks `api.test` all the time on one connection, so that nothing is given up because it is idle, until it is not answered with
/// 200; says what it was answered with, and when it was asked for the last time with success.
fn ask_until_refused(node: &Node) -> (data::Answer, SystemTime) {
    let mut link = node.proxy(X);
    let mut served = None;
    let deadline = SystemTime::now() + PATIENCE;
    loop {
        let now = SystemTime::now();
        let answer = ask(&mut link, API);
        if answer.status != 200 {
            return (answer, served.expect("it was served at first"));
        }
        assert!(now < deadline, "it is served for ever");
        served = Some(now);
        std::thread::sleep(Duration::from_millis(50));
    }
}

// covers: D5f
#[test]
fn a_connection_takes_no_request_once_the_certificate_that_it_began_with_has_ended() {
    for protocols in [&["h2"], &["http/1.1"]] {
        let node = Node::start();
        let id = SpiffeId::new("spiffe://web/api").expect("an id");
        let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
        let end = now + Duration::from_secs(5);
        let ending = node.web.issue_between(&id, "api.test", now - hour, end).expect("issued");
        let host = Host::polite(&format!("{}:9443", node.ip(80)), speaks(&ending, protocols));
        let (refused, served) = ask_until_refused(&node);
        // Certificates end on a whole second.
        assert!(
            served < end + Duration::from_secs(1),
            "{protocols:?}: served {:?} too late",
            served.duration_since(end)
        );
        assert_eq!(refused.status, 502, "{protocols:?}: {refused:?}");
        let line = record(&node, &refused);
        assert!(is(&line, &[("reason", "upstream_identity"), ("detail", "peer_expired")]), "{line}");
        assert_eq!(host.upstream.accepted(), 2, "one for all that was served, and one that was refused");
        host.configure(speaks(&issue(&node.web, "spiffe://web/api", "api.test"), protocols));
        until("a renewed one is believed", || ask(&mut node.proxy(X), API).status == 200);
    }
}

/// A CA that ends at `end`.
fn ca_until(end: SystemTime) -> DevCa {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "a CA that ends");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.not_after = end.into();
    let certificate = params.self_signed(&key).expect("signed");
    DevCa::from_pem(format!("{}{}", certificate.pem(), key.serialize_pem()).as_bytes()).expect("a CA")
}

// covers: D5c
#[test]
fn the_own_ca_of_a_rule_is_believed_until_it_ends_also_where_certificates_outlive_it() {
    let mut node = Node::start();
    let end = SystemTime::now() + Duration::from_secs(6);
    node.web = ca_until(end);
    node.publish(RULES);
    let leaf = Leaf::of(&node.web, |params| params.subject_alt_names = dns(&["api.test"]));
    let host = Host::start(&format!("{}:9443", node.ip(80)), leaf.speaks(&[]), |_, mut tls| {
        if data::read_request(&mut tls).is_ok() {
            let _ = tls.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    let (refused, served) = ask_until_refused(&node);
    assert!(served < end + Duration::from_secs(1), "served {:?} too late", served.duration_since(end));
    assert!(host.upstream.accepted() > 2, "each request on a connection of its own");
    let line = record(&node, &refused);
    assert_eq!(refused.status, 502, "{refused:?}");
    assert!(is(&line, &[("verdict", "error"), ("reason", "upstream_identity"), ("detail", "ca_expired")]), "{line}");
}

// covers: D5b
#[test]
fn a_callee_that_is_not_exactly_the_workload_gets_nothing_and_the_record_says_why() {
    let hosts = vec![("service-a.t.nova".to_owned(), "NET.70".to_owned())];
    let node = Node::with(Plan { hosts, ..Plan::default() });
    let stranger = DevCa::generate().expect("a CA");
    let own = "spiffe://dev.invalid/t/t/w/service-a";
    let san = |ids: &'static [&'static str]| {
        Leaf::of(&node.ca, |params| params.subject_alt_names = ids.iter().map(|id| uri(id)).collect()).speaks(&[])
    };
    let servers = vec![
        ("wrong_identity", speaks(&node.svid("b"), &[])),
        // The caller's own certificate, mirrored.
        ("wrong_identity", speaks(&node.svid("x"), &[])),
        ("unknown_issuer", speaks(&issue(&stranger, own, "service-a.t.nova"), &[])),
        // An external CA of the rules, which vouches for others and never for us.
        ("own_domain_from_foreign_ca", speaks(&issue(&node.partner, own, "service-a.t.nova"), &[])),
        ("wrong_identity", speaks(&issue(&node.partner, "spiffe://partner/service-a", "service-a.t.nova"), &[])),
        // Another trust domain, signed by our own CA.
        ("unknown_issuer", san(&["spiffe://other.test/t/t/w/service-a"])),
        ("bad_san", san(&["spiffe://dev.invalid/t/t/w/service-a", "spiffe://dev.invalid/t/t/w/b"])),
        (
            "peer_expired",
            Leaf::of(&node.ca, |params| {
                params.subject_alt_names = vec![uri("spiffe://dev.invalid/t/t/w/service-a")];
                (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2020, 1, 2));
            })
            .speaks(&[]),
        ),
        (
            "extended_key_usage",
            Leaf::of(&node.ca, |params| {
                params.subject_alt_names = vec![uri("spiffe://dev.invalid/t/t/w/service-a")];
                params.extended_key_usages = vec![ClientAuth];
            })
            .speaks(&[]),
        ),
    ];
    all_refused(&node, &format!("{}:{HTTPS}", node.ip(70)), A, servers);
}

// covers: D5b
#[test]
fn a_callee_that_speaks_no_tls_1_3_is_no_workload() {
    let hosts = vec![("service-a.t.nova".to_owned(), "NET.70".to_owned())];
    let node = Node::with(Plan { hosts, ..Plan::default() });
    let who = node.svid("service-a");
    let old = speaks_versions(who.chain.clone(), who.key_der(), &[], &[&rustls::version::TLS12]);
    let host = Host::polite(&format!("{}:{HTTPS}", node.ip(70)), old);
    let answer = ask(&mut node.proxy(X), A);
    let line = record(&node, &answer);
    assert!(is(&line, &[("reason", "upstream_malformed"), ("detail", "protocol")]), "{line}");
    host.configure(speaks(&who, &[]));
    assert_eq!(ask(&mut node.proxy(X), A).status, 200);
}

// covers: D5h
#[test]
fn a_grpc_server_that_does_not_speak_http2_gets_no_call() {
    let rules = format!(
        "{RULES}  - id: x-to-rpc\n    tenant: t\n    from: {{workload: x}}\n    to: {{external: api.test, port: 9444, ca: \
         web-ca, addresses: [NET.80/32]}}\n    grpc: {{services: [orders.v1.Orders], methods: [Get]}}\n"
    );
    let node = Node::with(Plan { rules, ..Plan::default() });
    let who = issue(&node.web, "spiffe://web/api", "api.test");
    let call = "POST http://api.test:9444/orders.v1.Orders/Get HTTP/1.1\r\nHost: api.test:9444\r\nTE: trailers\r\n\
                Content-Length: 3\r\n\r\nask";
    let host = Host::polite(&format!("{}:9444", node.ip(80)), speaks(&who, &["http/1.1"]));
    for (alpn, detail) in [(&["http/1.1"][..], "protocol"), (&[], "no_http2")] {
        host.configure(speaks(&who, alpn));
        let answer = ask(&mut node.proxy(X), call);
        let line = record(&node, &answer);
        assert!(is(&line, &[("reason", "upstream_malformed"), ("detail", detail)]), "{line}");
    }
    assert!(host.log.all().is_empty());
    host.configure(speaks(&who, &["h2", "http/1.1"]));
    assert_eq!(ask(&mut node.proxy(X), call).status, 200);
    let seen = host.log.all().remove(0);
    assert!(seen.alpn == "h2" && seen.has(":path: /orders.v1.Orders/Get") && seen.has("te: trailers"), "{seen:?}");
}

/// Hands each request's stream to `answer`.
fn scripted(connection: &Connection, tls: TlsServer, answer: impl Fn(&mut H2<TlsServer>, u32)) {
    let Ok(mut h2) = H2::server(tls) else { return };
    while let Ok(event) = h2.event() {
        if let Event::Headers { stream, fields, .. } = event {
            connection.saw_fields(&fields);
            answer(&mut h2, stream);
        }
    }
}

// covers: D5i
#[test]
fn answers_in_http2_that_break_the_rules_of_messages_do_not_reach_the_app() {
    let node = Node::start();
    let who = issue(&node.web, "spiffe://web/api", "api.test");
    let ok = (":status", "200");
    let answers: Vec<Vec<(&'static str, &'static str)>> = vec![
        vec![ok, ("connection", "close")],
        vec![ok, ("transfer-encoding", "chunked")],
        vec![ok, ("content-length", "1"), ("content-length", "2")],
        vec![ok, ("content-length", "+1")],
        vec![(":status", "101"), ("upgrade", "websocket")],
        vec![(":status", "99")],
        vec![("x", "no status")],
        vec![ok, ("x", "a\rb")],
        vec![ok, ("X-Upper", "a")],
    ];
    let wrong = answers.clone();
    let host = Host::start(&format!("{}:9443", node.ip(80)), speaks(&who, &["h2"]), move |connection, tls| {
        let fields = wrong[connection.number % wrong.len()].clone();
        scripted(connection, tls, move |h2, stream| {
            let block = data::hpack_of(&fields);
            let _ = h2.try_bytes(&frame(HEADERS, 4, stream, &block));
            let _ = h2.try_bytes(&frame(DATA, 1, stream, b"smuggled"));
        });
    });
    for fields in &answers {
        // Each on a connection of its own: the bundle's revision is part of what may be shared.
        node.publish(RULES);
        let mut link = node.proxy(X);
        link.send(API);
        let answer = read_answer(&mut link).expect("an answer");
        assert_eq!(answer.status, 502, "{fields:?}: {answer:?}");
        let line = record(&node, &answer);
        assert!(is(&line, &[("verdict", "error")]), "{fields:?}: {line}");
        assert!(["upstream_malformed", "upstream_closed"].contains(&line["reason"].as_str().expect("text")), "{line}");
    }
    assert_eq!(host.upstream.accepted(), answers.len());
}

// covers: D5i
#[test]
fn floods_of_interim_answers_and_giant_trailers_end_the_exchange() {
    let node = Node::start();
    let who = issue(&node.web, "spiffe://web/api", "api.test");
    let giant: String = "t".repeat(20_000);
    let _host = Host::start(&format!("{}:9443", node.ip(80)), speaks(&who, &["h2"]), move |connection, tls| {
        let (number, giant) = (connection.number, giant.clone());
        scripted(connection, tls, move |h2, stream| {
            if number == 0 {
                let block = data::hpack_of(&[(":status", "103"), ("x", "y")]);
                while h2.try_bytes(&frame(HEADERS, 4, stream, &block)).is_ok() {}
            } else {
                let block = data::hpack_of(&[(":status", "200")]);
                let _ = h2.try_bytes(&frame(HEADERS, 4, stream, &block));
                let _ = h2.try_bytes(&frame(DATA, 0, stream, b"body"));
                let _ = h2.try_bytes(&frame(HEADERS, 5, stream, &data::hpack_of(&[("x", &giant[..16_000])])));
            }
        });
    });
    let answer = ask(&mut node.proxy(X), API);
    assert_eq!(answer.status, 502, "{answer:?}");
    node.publish(RULES);
    let mut link = node.proxy(X);
    link.send("GET http://api.test:9443/v1/a HTTP/1.1\r\nHost: api.test:9443\r\nTE: trailers\r\n\r\n");
    let text = String::from_utf8_lossy(&link.rest().unwrap_or_default()).into_owned();
    assert!(!text.contains("tttt") && !text.ends_with("0\r\n\r\n"), "{text}");
    let is_cut = |line: &Value| is(line, &[("direction", "egress"), ("close", "upstream_malformed")]);
    node.audited_once(|line| is_cut(line) && line["status"] == 200);
}

// covers: D5g
#[test]
fn a_host_that_knows_no_better_than_tls_1_2_is_called_unless_that_is_switched_off() {
    for (sections, status) in [("", 200), ("[egress]\ntls12 = true\n", 200), ("[egress]\ntls12 = false\n", 502)] {
        let node = Node::with(Plan { sections: sections.to_owned(), ..Plan::default() });
        let who = issue(&node.web, "spiffe://web/api", "api.test");
        let old = speaks_versions(who.chain.clone(), who.key_der(), &["h2", "http/1.1"], &[&rustls::version::TLS12]);
        let host = Host::polite(&format!("{}:9443", node.ip(80)), old);
        let answer = ask(&mut node.proxy(X), API);
        assert_eq!(answer.status, status, "{sections}: {answer:?}");
        if status == 502 {
            let line = record(&node, &answer);
            assert!(is(&line, &[("reason", "upstream_malformed"), ("detail", "protocol")]), "{line}");
            assert!(host.log.all().is_empty());
        }
    }
}

// covers: D5c
#[test]
fn the_webs_cas_are_those_of_the_system_and_a_rules_own_ca_stands_in_their_place() {
    let without_ca = RULES.replace("port: 9443, ca: web-ca, ", "port: 9443, ");
    let node = Node::with(Plan {
        rules: without_ca,
        prepare: |dir, ca| std::fs::write(dir.join("roots.pem"), ca.certificate_pem()).expect("written"),
        env: vec![("SSL_CERT_FILE", "DIR/roots.pem")],
        ..Plan::default()
    });
    let of_system = speaks(&issue(&node.ca, "spiffe://web/api", "api.test"), &[]);
    let of_rule = speaks(&issue(&node.web, "spiffe://web/api", "api.test"), &[]);
    let host = Host::polite(&format!("{}:9443", node.ip(80)), Arc::clone(&of_rule));
    let refused = |config: &Arc<ServerConfig>| {
        host.configure(Arc::clone(config));
        let answer = ask(&mut node.proxy(X), API);
        assert!(
            is(&record(&node, &answer), &[("reason", "upstream_identity"), ("detail", "unknown_issuer")]),
            "{answer:?}"
        );
    };
    refused(&of_rule);
    host.configure(Arc::clone(&of_system));
    assert_eq!(ask(&mut node.proxy(X), API).status, 200);
    node.publish(RULES);
    refused(&of_system);
    host.configure(of_rule);
    assert_eq!(ask(&mut node.proxy(X), API).status, 200);
}

// covers: D5c
#[test]
fn a_system_whose_cas_are_named_and_not_there_believes_no_host_outside() {
    let rules = RULES.replace("port: 9443, ca: web-ca, ", "port: 9443, ");
    let node = Node::with(Plan { rules, env: vec![("SSL_CERT_FILE", "DIR/nothing.pem")], ..Plan::default() });
    let who = speaks(&issue(&node.web, "spiffe://web/api", "api.test"), &[]);
    let host = Host::polite(&format!("{}:9443", node.ip(80)), who);
    let answer = ask(&mut node.proxy(X), API);
    assert!(is(&record(&node, &answer), &[("reason", "upstream_identity")]), "{answer:?}");
    assert!(host.log.all().is_empty());
    assert!(node.warnings().contains("SSL_CERT_FILE"), "{}", node.warnings());
}
