//! IPv6 addresses and names that have no other, on every way out.

use hickory_resolver::proto::rr::RecordType;

use crate::data::{Node, Plan, RULES, Upstream, is, until};
use crate::namespace::dual;
use crate::support::{came, connect, dns_of, ended, get, plan, socks, socks_with};
use crate::unshared::inside_with_loopback;

/// Addresses that a rule names. One of addresses that hide others, as NAT64's, does not compile while it holds a forbidden one.
const RULES_BY_ADDRESS: &str = "
  - {id: six, tenant: t, from: {workload: x}, to: {cidr: 'fd00:64::/64', port: 8080}}
  - {id: four, tenant: t, from: {workload: x}, to: {cidr: 'NET.80/32', port: 8080}}
";
/// Addresses that hide another one, which is forbidden, and why.
const HIDING: [(&str, &str); 9] = [
    ("::ffff:a9fe:a9fe", "link_local"),
    ("::a9fe:a9fe", "link_local"),
    ("64:ff9b::a9fe:a9fe", "link_local"),
    ("64:ff9b::6464:64c8", "metadata"),
    ("64:ff9b:1::808:808", "tunnel"),
    ("2002:a9fe:a9fe::1", "link_local"),
    ("2002:e000:1::1", "multicast"),
    ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "tunnel"),
    ("2606:2800::5efe:a9fe:a9fe", "tunnel"),
];

fn octets(address: &str) -> [u8; 16] {
    address.parse::<std::net::Ipv6Addr>().expect("an address").octets()
}

/// The reply to SOCKS5 CONNECT with an IPv6 address.
fn socks_six(node: &Node, address: &str) -> Option<u8> {
    socks_with(node, &[&[5, 1, 0, 4][..], &octets(address), &8080_u16.to_be_bytes()].concat())
}

// covers: D7.6, D7.7, D7.8, D7.9, D7.10, D7.11 (F-DN02, F-EC04)
#[test]
fn an_ipv6_address_that_hides_a_forbidden_one_is_refused_on_every_way_written_out_or_resolved() {
    if !inside_with_loopback(
        "six::an_ipv6_address_that_hides_a_forbidden_one_is_refused_on_every_way_written_out_or_resolved",
    ) {
        return;
    }
    let node = dual(&[], "");
    let _dns = dns_of(&node, |asked| {
        let number = asked.name.trim_start_matches('n').split('.').next();
        let at: usize = number.and_then(|number| number.parse().ok()).expect("a number");
        if asked.kind == RecordType::AAAA { asked.addresses(60, &[HIDING[at].0]) } else { asked.addresses(60, &[]) }
    });
    for (number, (address, why)) in HIDING.into_iter().enumerate() {
        let name = format!("n{number}.dns.test");
        assert_eq!(connect(&node, &format!("{name}:8080")), 403, "CONNECT {address}");
        assert_eq!(get(&node, &format!("http://{name}:8080/")).status, 403, "GET {address}");
        assert_eq!(socks(&node, name.as_bytes(), 8080), Some(2), "SOCKS {address}");
        let lines = node.audited(3, |line| ended(line) && is(line, &[("dest_host", &name)]));
        assert!(lines.iter().all(|line| is(line, &[("reason", "address_forbidden"), ("detail", why)])), "{lines:#?}");
        // Written out it has no rule, on any way.
        assert_eq!(connect(&node, &format!("[{address}]:8080")), 403, "CONNECT {address}");
        assert_eq!(get(&node, &format!("http://[{address}]:8080/")).status, 403, "GET {address}");
        assert_eq!(socks_six(&node, address), Some(2), "SOCKS {address}");
    }
    node.audited(3 * HIDING.len(), |line| ended(line) && is(line, &[("reason", "no_grant")]));
}

// covers: D7.22, D7f (F-EC04, F-SO01)
#[test]
fn a_granted_ipv6_address_is_dialled_from_the_workloads_own_on_every_way_in_every_spelling() {
    let test = "six::a_granted_ipv6_address_is_dialled_from_the_workloads_own_on_every_way_in_every_spelling";
    if !inside_with_loopback(test) {
        return;
    }
    let node = dual(&[], RULES_BY_ADDRESS);
    let v4 = Upstream::http(&format!("{}:8080", node.ip(80)));
    let v6 = Upstream::http("[fd00:64::80]:8080");
    // Refusals first: no brackets, a zone, another port, and what is too short.
    for (authority, status) in [
        ("fd00:64::80:8080", 400),
        ("[fd00:64::80%25eth0]:8080", 400),
        ("[fd00:64::80%eth0]:8080", 400),
        ("[fd00:64::80]8080", 400),
        ("[fd00:64::80]:8081", 403),
        ("[fd00:65::80]:8080", 403),
    ] {
        assert_eq!(connect(&node, authority), status, "{authority}");
        assert_eq!(get(&node, &format!("http://{authority}/")).status, status, "{authority}");
    }
    let spellings = ["fd00:64::80", "FD00:64:0:0:0:0:0:80", "fd00:0064::0080", "fd00:64::0.0.0.128"];
    for (count, spelling) in spellings.iter().enumerate() {
        assert_eq!(connect(&node, &format!("[{spelling}]:8080")), 200, "CONNECT {spelling}");
        let answer = get(&node, &format!("http://[{spelling}]:8080/a"));
        assert_eq!((answer.status, answer.text().as_str()), (200, "GET /a HTTP/1.1"), "{spelling}");
        assert_eq!(socks_six(&node, spelling), Some(0), "SOCKS {spelling}");
        assert_eq!(socks(&node, spelling.as_bytes(), 8080), Some(0), "SOCKS by name {spelling}");
        assert!(v6.seen()[count].to_ascii_lowercase().contains("host: [fd00:64::80]:8080\r\n"), "{:?}", v6.seen());
    }
    let lines = node.audited(4, |line| is(line, &[("kind", "request"), ("rule", "six"), ("method", "GET")]));
    assert!(lines.iter().all(|line| is(line, &[("dest_host", "fd00:64::80"), ("dest_addr", "[fd00:64::80]:8080")])));
    node.audited(12, |line| is(line, &[("kind", "open"), ("rule", "six"), ("dest_host", "fd00:64::80")]));
    assert!(v6.peers.lock().expect("no panic").iter().all(|peer| peer == "fd00:64::11"));
    // A mapped address is the IPv4 address: its rule, and the workload's IPv4 address.
    assert_eq!(v4.accepted(), 0);
    let home = node.ip(80);
    assert_eq!(connect(&node, &format!("[::ffff:{home}]:8080")), 200);
    assert_eq!(socks_six(&node, &format!("::ffff:{home}")), Some(0));
    came(&v4, 2);
    node.audited(2, |line| is(line, &[("kind", "open"), ("rule", "four"), ("dest_host", &home)]));
    assert!(v4.peers.lock().expect("no panic").iter().all(|peer| *peer == node.ip(11)));
}

// covers: D7f
#[test]
fn a_name_with_ipv6_alone_is_reached_by_a_workload_that_has_it_and_by_no_other() {
    if !inside_with_loopback("six::a_name_with_ipv6_alone_is_reached_by_a_workload_that_has_it_and_by_no_other") {
        return;
    }
    let node = dual(&[("fixed.dns.test", "fd00:64::80")], "");
    let _dns = dns_of(&node, |asked| match asked.kind {
        RecordType::AAAA => asked.addresses(60, &["fd00:64::80"]),
        _ => asked.addresses(60, &[]),
    });
    let v6 = Upstream::http("[fd00:64::80]:8080");
    for name in ["six.dns.test", "fixed.dns.test"] {
        assert_eq!(get(&node, &format!("http://{name}:8080/")).status, 200, "{name}");
    }
    // b has an IPv4 address alone.
    for name in ["six.dns.test", "fixed.dns.test"] {
        let (status, _) = crate::support::connect_as(&node, crate::data::B, &format!("{name}:8080"));
        assert_eq!(status, 502, "{name}");
        let line = node.audited_once(|line| {
            ended(line) && is(line, &[("workload", "b"), ("dest_host", name)])
                || is(line, &[("workload", "b"), ("dest_host", name), ("kind", "request")])
        });
        assert!(is(&line, &[("reason", "resolve_failed"), ("detail", "dns_no_address")]), "{line}");
    }
    came(&v6, 2);
}

// covers: D7f
#[test]
fn an_ipv6_address_is_no_destination_of_a_workload_without_one() {
    let rules =
        format!("{RULES}  - {{id: six, tenant: t, from: {{workload: x}}, to: {{cidr: 'fd00:64::/64', port: 8080}}}}\n");
    let node = Node::with(Plan { rules, ..plan() });
    assert_eq!(connect(&node, "[fd00:64::80]:8080"), 502);
    assert_eq!(socks_six(&node, "fd00:64::80"), Some(4), "unreachable");
    until("both are recorded", || node.audit().iter().filter(|line| ended(line)).count() == 2);
    node.audited(2, |line| is(line, &[("reason", "resolve_failed"), ("detail", "dns_no_address")]));
}
