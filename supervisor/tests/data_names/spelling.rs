//! How a destination may be written: one spelling for policy, log, question and dial, and 400 for what has two readings.

use crate::data::{Node, X, is};
use crate::support::{came, connect, connect_as, dns_of, echo, get, plan, socks, status};

/// Refused as malformed by every way out, and no server is asked.
fn malformed(names: &[&str]) {
    let node = Node::with(plan());
    let dns = dns_of(&node, |asked| asked.addresses(60, &["127.0.0.1"]));
    for name in names {
        assert_eq!(connect(&node, &format!("{name}:8080")), 400, "CONNECT {name:?}");
        assert_eq!(get(&node, &format!("http://{name}:8080/")).status, 400, "GET {name:?}");
        assert_ne!(socks(&node, name.as_bytes(), 8080), Some(0), "SOCKS {name:?}");
    }
    assert_eq!(dns.names(), [""; 0]);
    assert!(!node.audit().iter().any(|line| line["verdict"] == "allow" && line["kind"] == "request"));
}

/// Denied like any destination without a rule, and no server is asked.
fn denied(names: &[&str]) {
    let node = Node::with(plan());
    let dns = dns_of(&node, |asked| asked.addresses(60, &["127.0.0.1"]));
    for name in names {
        assert_eq!(connect(&node, &format!("{name}:8080")), 403, "CONNECT {name:?}");
        assert_eq!(get(&node, &format!("http://{name}:8080/")).status, 403, "GET {name:?}");
    }
    assert_eq!(dns.names(), [""; 0]);
}

/// All of these mean `want`, by every way out; the server is asked once.
fn the_same(want: &str, names: &[&str]) {
    let node = Node::with(plan());
    let home = node.ip(80);
    let dns = dns_of(&node, move |asked| asked.addresses(60, &[&home]));
    let upstream = echo(&format!("{}:8080", node.ip(80)));
    for name in names {
        assert_eq!(connect(&node, &format!("{name}:8080")), 200, "CONNECT {name:?}");
        assert_eq!(socks(&node, name.as_bytes(), 8080), Some(0), "SOCKS {name:?}");
    }
    assert_eq!(dns.names(), [format!("{want}.")]);
    node.audited(2 * names.len(), |line| is(line, &[("kind", "open"), ("dest_host", want)]));
    came(&upstream, 2 * names.len());
}

// covers: D7.19
#[test]
fn a_trailing_dot_changes_nothing_and_two_are_malformed() {
    the_same("a.dns.test", &["a.dns.test", "a.dns.test."]);
    malformed(&["a.dns.test..", "."]);
}

// covers: D7.20
#[test]
fn letter_case_changes_nothing() {
    the_same("a.dns.test", &["A.DNS.TEST", "a.Dns.tesT."]);
}

// covers: D7.21
#[test]
fn brackets_round_a_name_are_malformed() {
    malformed(&["[a.dns.test]", "[127.0.0.1]", "[]", "[a.dns.test", "a.dns.test]"]);
}

// covers: D7.22
// F-DN02
#[test]
fn an_ipv6_address_is_an_address_in_any_spelling_and_a_zone_is_malformed() {
    denied(&["[::1]", "[0:0:0:0:0:0:0:1]", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]"]);
    malformed(&["[fe80::1%25eth0]", "[fe80::1%eth0]", "[::1", "::1", "[:::1]"]);
    let node = Node::with(plan());
    // F-SO01: an address where a name should be.
    for address in ["2a00:1450:4007:816::200e", "127.0.0.1", "::1"] {
        assert_eq!(socks(&node, address.as_bytes(), 443), Some(2), "{address}");
    }
    node.audited(3, |line| is(line, &[("detail", "ip_target_no_cidr_rule")]));
    assert_eq!(connect(&node, "[::ffff:127.0.0.1]:80"), 403);
    node.audited_once(|line| {
        is(line, &[("dest_host", "127.0.0.1"), ("reason", "no_grant")]) && line["dest_port"] == 80
    });
}

// covers: D7.23
// F-DN05
#[test]
fn numbers_that_some_libraries_read_as_addresses_are_malformed() {
    malformed(&[
        "2130706433",
        "017700000001",
        "0x7f.1",
        "0x7f000001",
        "0251.254.169.254",
        "127.1",
        "127.0.0.01",
        "1.2.3",
    ]);
}

// covers: D7.24
#[test]
fn user_information_is_malformed_and_not_written_down() {
    malformed(&["a@a.dns.test", "user:secret@a.dns.test", "a.dns.test@evil.test"]);
    let node = Node::with(plan());
    assert_eq!(get(&node, "http://user:secret@a.dns.test:8080/").status, 400);
    assert!(!node.audit().iter().any(|line| line.to_string().contains("secret")));
}

// covers: D7.25
#[test]
fn punycode_and_underscores_pass_as_they_are_and_raw_unicode_is_malformed() {
    the_same("xn--bcher-kva.dns.test", &["xn--bcher-kva.dns.test", "XN--Bcher-KVA.dns.test"]);
    the_same("_srv.dns.test", &["_srv.dns.test"]);
    malformed(&["b\u{fc}cher.dns.test", "\u{430}.dns.test"]);
}

// covers: D7.26
#[test]
fn empty_labels_and_names_that_are_too_long_are_malformed() {
    let (label, name) = (format!("{}.dns.test", "x".repeat(64)), format!("{}abcdef.dns.test", "abcdefg.".repeat(30)));
    assert!(name.len() > 253);
    malformed(&["a..dns.test", ".dns.test", "-a.dns.test", "a-.dns.test", &label, &name]);
    let node = Node::with(plan());
    // F-SO03
    assert_eq!(socks(&node, b"", 8080), Some(1));
    assert_eq!(socks(&node, "x".repeat(255).as_bytes(), 8080), Some(1));
}

// covers: D7.27
#[test]
fn characters_that_end_an_authority_for_some_parsers_are_malformed() {
    let node = Node::with(plan());
    let dns = dns_of(&node, |asked| asked.addresses(60, &["127.0.0.1"]));
    for bad in ["\0", " ", "\t", "\\", "#", "?", "/", "%2e", "%00", "\r", "\n", "\r\n", ","] {
        for name in [format!("a{bad}.dns.test"), format!("a.dns.test{bad}"), format!("evil.test{bad}.dns.test")] {
            assert_eq!(socks(&node, name.as_bytes(), 8080), Some(1), "SOCKS {name:?}");
            let (status, _) = connect_as(&node, X, &format!("{name}:8080"));
            assert_eq!(status, 400, "CONNECT {name:?}");
            // In a URL some of these end the authority; whatever is left has no rule, or is malformed.
            let mut link = node.proxy(X);
            link.send(format!("GET http://{name}:8080/ HTTP/1.1\r\nHost: x\r\n\r\n"));
            let got = self::status(&mut link);
            assert!([400, 403].contains(&got), "GET {name:?}: {got}");
        }
    }
    assert_eq!(dns.names(), [""; 0]);
}

// covers: D7.28
#[test]
fn names_of_metadata_services_are_never_looked_up() {
    denied(&["metadata.google.internal", "METADATA.google.internal.", "metadata", "instance-data", "metadata.goog"]);
}

// covers: D7.29
#[test]
fn localhost_and_names_that_nobody_gave_are_never_looked_up() {
    denied(&["localhost", "LOCALHOST.", "a.localhost", "ip6-localhost", "x", "service-a", "v.sock"]);
}

// covers: D7.30
#[test]
fn fullwidth_digits_and_dots_are_malformed() {
    malformed(&["\u{ff11}\u{ff12}\u{ff17}.0.0.1", "a\u{3002}dns.test", "a\u{ff0e}dns.test", "\u{ff41}.dns.test"]);
}
