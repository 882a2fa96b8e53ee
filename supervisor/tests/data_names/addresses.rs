//! One resolution per dial, all answers checked, and the checked address dialled.

use std::io::{Read, Write};

use hickory_resolver::proto::rr::RecordType;

use crate::data::{B, Node, Plan, RULES, Upstream, X, is, issue, server_config};
use crate::dns::{alias, packet, record};
use crate::support::{WILDCARD, came, connect, connect_as, dns_of, echo, ended, get, plan, socks, socks_with};

// covers: D7a
// covers: D7.18
#[test]
fn no_server_is_asked_about_a_name_before_a_rule_allows_it() {
    let node = Node::with(plan());
    let home = node.ip(80);
    let dns = dns_of(&node, move |asked| asked.addresses(60, &[&home]));
    let upstream = echo(&format!("{}:8080", node.ip(80)));
    for denied in ["other.test:8080", "a.dns.test:8081", "dns.test:8080", "xdns.test:8080", "a.dns.test.evil.test:8080"]
    {
        assert_eq!(connect(&node, denied), 403, "{denied}");
        let (host, port) = denied.split_once(':').expect("a port");
        assert_eq!(socks(&node, host.as_bytes(), port.parse().expect("a port")), Some(2), "{denied}");
        assert_eq!(get(&node, &format!("http://{denied}/")).status, 403, "{denied}");
    }
    assert_eq!(dns.names(), [""; 0]);
    assert_eq!(connect(&node, "a.dns.test:8080"), 200);
    // As it is, without search domains, and only for the family that the workload has an address of.
    let asked = dns.asked();
    assert_eq!(dns.names(), ["a.dns.test."]);
    assert_eq!(asked[0].kind, RecordType::A);
    came(&upstream, 1);
}

// covers: D7b
// covers: D7.15
// F-DN01
#[test]
fn a_name_that_moves_to_a_forbidden_address_is_dialled_only_where_it_was_checked() {
    let node = Node::with(plan());
    let home = node.ip(80);
    let dns = dns_of(&node, move |asked| {
        asked.addresses(0, &[if asked.before == 0 { home.as_str() } else { "169.254.169.254" }])
    });
    let upstream = echo(&format!("{}:8080", node.ip(80)));
    let (status, mut link) = connect_as(&node, X, "a.dns.test:8080");
    assert_eq!((status, dns.count()), (200, 1), "one question for one dial");
    link.send("ping");
    let mut back = [0; 4];
    link.read_exact(&mut back).expect("an echo");
    assert_eq!(&back, b"ping");
    let line = node.audited_once(|line| is(line, &[("kind", "open"), ("dest_host", "a.dns.test")]));
    assert_eq!(line["dest_addr"], format!("{}:8080", node.ip(80)));
    assert_eq!((connect(&node, "a.dns.test:8080"), dns.count()), (403, 2));
    let line = node.audited_once(ended);
    assert!(is(&line, &[("reason", "address_forbidden"), ("detail", "link_local")]), "{line}");
    assert_eq!(line["dest_addr"], "169.254.169.254:8080");
    came(&upstream, 1);
}

// covers: D7.14
// F-DN06
#[test]
fn one_forbidden_address_among_good_ones_refuses_the_name() {
    let node = Node::with(plan());
    let home = node.ip(80);
    let _dns = dns_of(&node, move |asked| match asked.name.as_str() {
        "first.dns.test." => asked.addresses(60, &["169.254.169.254", &home]),
        "last.dns.test." => asked.addresses(60, &[&home, "10.0.0.1"]),
        _ => asked.addresses(60, &["192.0.0.192"]),
    });
    let upstream = echo(&format!("{}:8080", node.ip(80)));
    for (name, why) in [("first", "link_local"), ("last", "private"), ("only", "reserved")] {
        assert_eq!(connect(&node, &format!("{name}.dns.test:8080")), 403, "{name}");
        let line = node.audited_once(|line| is(line, &[("dest_host", &format!("{name}.dns.test"))]) && ended(line));
        assert!(is(&line, &[("reason", "address_forbidden"), ("detail", why)]), "{line}");
    }
    assert_eq!(upstream.accepted(), 0);
}

// covers: D7.16
// F-DN06
#[test]
fn an_alias_is_judged_by_the_address_at_its_end() {
    let node = Node::with(plan());
    let (home, own) = (node.ip(80), node.ip(21));
    let _dns = dns_of(&node, move |asked| {
        let (to, address) = match asked.name.as_str() {
            "metadata.dns.test." => ("metadata.internal.", "169.254.169.254"),
            "own.dns.test." => ("service-a.t.nova.", own.as_str()),
            _ => ("cdn.example.", home.as_str()),
        };
        packet(&asked.with(vec![alias(&asked.name, to), record(to, 60, address.parse().expect("an address"))]))
    });
    let upstream = echo(&format!("{}:8080", node.ip(80)));
    for (name, why) in [("metadata", "link_local"), ("own", "own_listener")] {
        assert_eq!(connect(&node, &format!("{name}.dns.test:8080")), 403, "{name}");
        let line = node.audited_once(|line| is(line, &[("dest_host", &format!("{name}.dns.test")), ("detail", why)]));
        assert_eq!(line["dest_canonical"], if name == "own" { "service-a.t.nova" } else { "metadata.internal" });
    }
    // Also when it is known from before.
    for _ in 0..2 {
        assert_eq!(connect(&node, "good.dns.test:8080"), 200);
    }
    let alias = [("kind", "open"), ("dest_host", "good.dns.test"), ("dest_canonical", "cdn.example")];
    node.audited(2, |line| is(line, &alias));
    came(&upstream, 2);
}

// covers: D7.17
#[test]
fn each_dial_asks_about_a_name_without_a_ttl_once_and_about_others_only_when_it_is_over() {
    let node = Node::with(plan());
    let home = node.ip(80);
    let dns =
        dns_of(&node, move |asked| asked.addresses(if asked.name.starts_with("zero") { 0 } else { 300 }, &[&home]));
    let upstream = echo(&format!("{}:8080", node.ip(80)));
    for _ in 0..5 {
        assert_eq!(connect(&node, "zero.dns.test:8080"), 200);
        assert_eq!(connect(&node, "long.dns.test:8080"), 200);
    }
    let count = |name: &str| dns.names().iter().filter(|asked| asked.starts_with(name)).count();
    assert_eq!((count("zero"), count("long")), (5, 1));
    // What one endpoint knows is its own.
    assert_eq!(connect_as(&node, B, "long.dns.test:8080").0, 200);
    assert_eq!(count("long"), 2);
    came(&upstream, 11);
}

// covers: D7d, D17f
// T20
#[test]
fn a_tunnel_through_names_ends_at_three_labels_a_hundred_bytes_and_the_budget() {
    let endpoints =
        Plan::default().endpoints.replacen("ports: []", "ports: []\n    limits: {lookups_per_second: 5}", 1);
    let node = Node::with(Plan { endpoints, ..plan() });
    let home = node.ip(80);
    let dns = dns_of(&node, move |asked| asked.addresses(60, &[&home]));
    let upstream = echo(&format!("{}:8080", node.ip(80)));
    let long = format!("{0}.{0}", "x".repeat(51));
    for (name, why) in [("a.b.c.d", "name_labels"), (long.as_str(), "name_length")] {
        assert_eq!(connect(&node, &format!("{name}.dns.test:8080")), 403, "{name}");
        node.audited_once(|line| is(line, &[("reason", "name_forbidden"), ("detail", why)]));
    }
    assert_eq!(dns.count(), 0, "a name that may not go does not leave");
    let answers: Vec<_> = (0..30).map(|n| connect(&node, &format!("{n}.dns.test:8080"))).collect();
    let refused = answers.iter().filter(|status| **status == 503).count();
    assert!(refused > 0 && answers.iter().all(|status| [200, 503].contains(status)), "{answers:?}");
    assert_eq!(dns.count(), 30 - refused);
    node.audited(refused, |line| is(line, &[("reason", "limit_names")]));
    // Names that are known cost nothing, names of the configuration neither, and others have budgets of their own.
    assert_eq!(connect(&node, "0.dns.test:8080"), 200);
    assert_eq!(connect_as(&node, B, "other.dns.test:8080").0, 200);
    let _plain = Upstream::http(&format!("{}:8088", node.ip(80)));
    assert!(upstream.accepted() > 5);
}

// covers: D7g
#[test]
fn replicas_that_refuse_are_passed_over_before_the_first_byte() {
    let node = Node::with(plan());
    let all = [81, 82, 80].map(|n| node.ip(n));
    let _dns = dns_of(&node, move |asked| asked.addresses(60, &[&all[0], &all[1], &all[2]]));
    let upstream = echo(&format!("{}:8080", node.ip(80)));
    let (status, mut link) = connect_as(&node, X, "a.dns.test:8080");
    assert_eq!(status, 200);
    link.send("ping");
    link.read_exact(&mut [0; 4]).expect("an echo");
    let line = node.audited_once(|line| is(line, &[("kind", "open"), ("direction", "egress")]));
    assert_eq!(line["dest_addr"], format!("{}:8080", node.ip(80)));
    came(&upstream, 1);
}

// covers: D7g
#[test]
fn a_replica_that_breaks_off_before_tls_stands_is_passed_over_and_one_with_a_wrong_certificate_is_not() {
    let hosts =
        vec![("api.test".to_owned(), "NET.81, NET.80".to_owned()), ("up.test".to_owned(), "NET.82, NET.80".to_owned())];
    let rules = RULES.replace("external: up.test, port: 443", "external: up.test, port: 9443");
    let node = Node::with(Plan { hosts, rules: format!("{rules}{WILDCARD}"), ..Plan::default() });
    let good = Upstream::https(&format!("{}:9443", node.ip(80)), &issue(&node.web, "spiffe://web/api", "api.test"));
    let broken = Upstream::start(&format!("{}:9443", node.ip(81)), drop);
    let wrong = issue(&node.partner, "spiffe://web/up", "up.test");
    let config = server_config(&wrong);
    let impostor = Upstream::start(&format!("{}:9443", node.ip(82)), move |stream| {
        let server = rustls::ServerConnection::new(config.clone()).expect("a server");
        let mut tls = rustls::StreamOwned::new(server, stream);
        let _ = tls.write_all(b"x").and_then(|()| tls.flush());
    });
    assert_eq!(get(&node, "http://api.test:9443/v1/a").status, 200);
    came(&broken, 1);
    came(&good, 1);
    assert_eq!(get(&node, "http://up.test:9443/a").status, 502);
    node.audited_once(|line| is(line, &[("reason", "upstream_identity"), ("dest_host", "up.test")]));
    came(&impostor, 1);
    came(&good, 1);
}

// covers: D7h
// F-SO04
#[test]
fn an_app_that_dials_addresses_by_itself_is_refused_with_a_hint_in_the_log_and_no_reverse_lookup() {
    let node = Node::with(plan());
    let home = node.ip(80);
    let dns = dns_of(&node, move |asked| asked.addresses(60, &[&home]));
    let _upstream = echo(&format!("{}:8080", node.ip(80)));
    let octets = node.ip(80).parse::<std::net::Ipv4Addr>().expect("an address").octets();
    assert_eq!(socks_with(&node, &[&[5, 1, 0, 1][..], &octets, &8080_u16.to_be_bytes()].concat()), Some(2));
    let v6 = "2606:4700::1111".parse::<std::net::Ipv6Addr>().expect("an address").octets();
    assert_eq!(socks_with(&node, &[&[5, 1, 0, 4][..], &v6, &8080_u16.to_be_bytes()].concat()), Some(2));
    assert_eq!(connect(&node, &format!("{}:8080", node.ip(80))), 403);
    // Without a port both 80 and 443 are asked about, and the hint stays.
    let answer = get(&node, &format!("http://{}/", node.ip(80)));
    assert_eq!(answer.status, 403);
    assert!(!answer.text().contains("cidr"), "only the log says so: {answer:?}");
    node.audited(4, |line| is(line, &[("reason", "no_grant"), ("detail", "ip_target_no_cidr_rule")]));
    assert_eq!(connect(&node, "other.test:8080"), 403);
    node.audited_once(|line| is(line, &[("dest_host", "other.test")]) && line["detail"].is_null());
    assert_eq!(dns.count(), 0);
    assert_eq!(socks(&node, b"a.dns.test", 8080), Some(0), "socks5h");
}
