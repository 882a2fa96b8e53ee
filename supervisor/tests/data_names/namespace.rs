//! What needs addresses of its own.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use hickory_resolver::proto::rr::RecordType;

use crate::data::{A, Node, Plan, RULES, Tls, is, read_answer};
use crate::support::{came, connect, dns_of, echo, ended, get, plan};
use crate::unshared::{inside_with_loopback, ip};

// covers: D7.12
// covers: D7.13
#[test]
fn no_port_of_the_machine_itself_is_reached_by_any_rule_but_that_of_a_workload() {
    if !inside_with_loopback("namespace::no_port_of_the_machine_itself_is_reached_by_any_rule_but_that_of_a_workload") {
        return;
    }
    ip("addr add 10.77.0.1/24 dev lo");
    ip("route add local 10.78.0.0/24 dev lo");
    let rules = format!(
        "{RULES}
  - {{id: to-range, tenant: t, from: {{workload: x}}, to: {{cidr: 10.0.0.0/8, port: 9000}}}}
  - {{id: to-name, tenant: t, from: {{workload: x}}, to: {{external: own.test, port: 9000, addresses: [10.0.0.0/8]}}}}
"
    );
    let hosts = vec![("own.test".to_owned(), "10.77.0.1".to_owned())];
    let node = Node::with(Plan { rules, hosts, ..Plan::default() });
    // A service of the node, and an address that is only routed here: of a workload of another instance, say.
    let services = ["10.77.0.1:9000", "10.78.0.9:9000"].map(TcpListener::bind);
    assert!(services[0].is_ok());
    for host in ["own.test", "10.77.0.1", "10.78.0.9"] {
        assert_eq!(connect(&node, &format!("{host}:9000")), 403, "{host}");
        let line = node.audited_once(|line| ended(line) && is(line, &[("dest_host", host)]));
        assert!(is(&line, &[("reason", "address_forbidden"), ("detail", "own_address")]), "{line}");
    }
    // An address that is elsewhere is tried, and there is no way to it.
    assert_eq!(connect(&node, "10.99.0.1:9000"), 502);
    for service in services.into_iter().flatten() {
        service.set_nonblocking(true).expect("set");
        assert!(service.accept().is_err(), "somebody came");
    }
}

/// x and service-a with an IPv6 address each, beside that of IPv4; `fd00:64::/64` is here.
pub(crate) fn dual(hosts: &[(&str, &str)], more: &str) -> Node {
    ip("-6 route add local fd00:64::/64 dev lo");
    // What the test itself binds must be an address, not only a route.
    for n in [80, 99] {
        ip(&format!("-6 addr add fd00:64::{n}/128 dev lo nodad"));
    }
    let with = |text: &str, n: u8| {
        let at = format!("workload_ip: NET.{n}\n");
        text.replace(&at, &format!("{at}    additional_ips: ['fd00:64::{n}']\n"))
    };
    let plan = plan();
    let endpoints = with(&with(&plan.endpoints, 11), 21);
    let rules =
        format!("{}{more}", plan.rules).replace("addresses: [NET.0/24]", "addresses: [NET.0/24, 'fd00:64::/64']");
    let sections = "[lab]\nallow_destinations = [\"127.0.0.0/8\", \"fd00:64::/64\"]\n".to_owned();
    let hosts = hosts.iter().map(|(name, address)| ((*name).to_owned(), (*address).to_owned())).collect();
    Node::with(Plan { endpoints, rules, sections, lab: false, hosts, ..plan })
}

// covers: D7f
// covers: D8a
#[test]
fn a_workload_with_both_families_dials_each_from_its_own_address_and_ipv6_first() {
    if !inside_with_loopback("namespace::a_workload_with_both_families_dials_each_from_its_own_address_and_ipv6_first")
    {
        return;
    }
    let node = dual(&[], "");
    let home = node.ip(80);
    let dns = dns_of(&node, move |asked| match (asked.name.as_str(), asked.kind) {
        ("both.dns.test.", _) => asked.addresses(60, &["fd00:64::80", &home]),
        ("gone.dns.test.", _) => asked.addresses(60, &["fd00:64::81", &home]),
        ("nat64.dns.test.", _) => asked.addresses(60, &["64:ff9b::808:808", &home]),
        ("mute.dns.test.", RecordType::AAAA) => Vec::new(),
        ("meant.dns.test.", RecordType::AAAA) => asked.addresses(60, &[&format!("::ffff:{home}")]),
        ("meant.dns.test.", _) => asked.addresses(60, &[]),
        ("mapped.dns.test.", _) => asked.addresses(60, &["::ffff:169.254.169.254", &home]),
        ("tunnel.dns.test.", _) => asked.addresses(60, &["2001:0:4136:e378:8000:63bf:3fff:fdd2", &home]),
        _ => asked.addresses(60, &[&home]),
    });
    let v4 = echo(&format!("{}:8080", node.ip(80)));
    let v6 = echo("[fd00:64::80]:8080");
    assert_eq!(connect(&node, "both.dns.test:8080"), 200);
    let mut kinds: Vec<_> = dns.asked().iter().map(|asked| asked.kind.to_string()).collect();
    kinds.sort();
    assert_eq!(kinds, ["A", "AAAA"], "one question for each family");
    came(&v6, 1);
    came(&v4, 0);
    assert_eq!(*v6.peers.lock().expect("no panic"), ["fd00:64::11"]);
    // An IPv6 address that refuses, or to which there is no way, does not matter while the other family answers.
    // Nor does it that an IPv4 address comes as a mapped one.
    for (count, name) in ["gone", "nat64", "only4", "meant"].into_iter().enumerate() {
        assert_eq!(connect(&node, &format!("{name}.dns.test:8080")), 200, "{name}");
        came(&v4, count + 1);
    }
    // Nor does a server that has no answer for one family.
    let before = Instant::now();
    assert_eq!(connect(&node, "mute.dns.test:8080"), 200);
    assert!(before.elapsed() < Duration::from_millis(1900), "{:?}", before.elapsed());
    assert!(v4.peers.lock().expect("no panic").iter().all(|peer| *peer == node.ip(11)));
    // F-DN02: a forbidden address of either family refuses the name.
    for (name, why) in [("mapped", "link_local"), ("tunnel", "tunnel")] {
        assert_eq!(connect(&node, &format!("{name}.dns.test:8080")), 403, "{name}");
        node.audited_once(|line| is(line, &[("dest_host", &format!("{name}.dns.test")), ("detail", why)]));
    }
    came(&v6, 1);
    came(&v4, 5);
}

// covers: D7f
// covers: D7.12
#[test]
fn a_workload_with_both_families_is_called_at_either_and_by_its_name_only() {
    if !inside_with_loopback("namespace::a_workload_with_both_families_is_called_at_either_and_by_its_name_only") {
        return;
    }
    let node = dual(&[("service-a.t.nova", "fd00:64::21"), ("alias.dns.test", "fd00:64::21")], "");
    for address in [format!("{}:8443", node.ip(21)), "[fd00:64::21]:8443".to_owned()] {
        let from = if address.starts_with('[') { "fd00:64::99".to_owned() } else { node.ip(99) };
        let mut tls = Tls::connect(&from, &address, Some(&node.svid("x"))).expect("connected");
        tls.send("GET /v1/orders/1 HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n");
        assert_eq!(read_answer(&mut tls).expect("an answer").status, 200, "{address}");
    }
    assert_eq!(get(&node, "http://service-a.t.nova:8443/v1/orders/2").status, 200);
    let seen = node.guest(A).app.seen().pop().expect("a request").to_ascii_lowercase();
    assert!(seen.contains("x-forwarded-for: fd00:64::11\r\n"), "{seen}");
    assert_eq!(connect(&node, "alias.dns.test:8080"), 403);
    node.audited_once(|line| is(line, &[("detail", "own_listener"), ("dest_addr", "[fd00:64::21]:8080")]));
}
