//! A DNS server that answers badly or not at all: every lookup ends in an answer for the app and a reason for the operator.

use std::time::{Duration, Instant};

use hickory_resolver::proto::op::ResponseCode;

use crate::data::{Node, Plan, X, is};
use crate::dns::{Asked, Dns, alias, late, packet, record};
use crate::support::{came, connect, connect_as, dns_of, echo, ended, plan};

/// What came of one dial, and how long it took. Lookups have 2 s here.
struct Outcome {
    status: u16,
    detail: String,
    took: Duration,
    dns: Dns,
    dialled: usize,
}

fn dial(answer: impl Fn(&Asked, &str) -> Vec<Vec<u8>> + Send + Sync + 'static) -> Outcome {
    let node = Node::with(plan());
    let home = node.ip(80);
    let dns = dns_of(&node, move |asked| answer(asked, &home));
    let upstream = echo(&format!("{}:8080", node.ip(80)));
    let started = Instant::now();
    let status = connect_as(&node, X, "a.dns.test:8080").0;
    let took = started.elapsed();
    assert!(took < Duration::from_secs(10), "it hangs: {took:?}");
    let mut detail = String::new();
    if status != 200 {
        let line = node.audited_once(ended);
        assert!(is(&line, &[("verdict", "error"), ("reason", "resolve_failed")]), "{line}");
        detail = line["detail"].as_str().unwrap_or_default().to_owned();
    }
    if status == 200 {
        came(&upstream, 1);
    }
    Outcome { status, detail, took, dns, dialled: upstream.accepted() }
}

fn fails(why: &str, answer: impl Fn(&Asked, &str) -> Vec<Vec<u8>> + Send + Sync + 'static) -> Outcome {
    let outcome = dial(answer);
    assert_eq!((outcome.status, outcome.detail.as_str(), outcome.dialled), (502, why, 0));
    outcome
}

// covers: D7c
#[test]
fn a_name_that_does_not_exist_is_asked_about_once() {
    let outcome = fails("dns_no_name", |asked, _| asked.refused(ResponseCode::NXDomain));
    assert_eq!(outcome.dns.count(), 1);
    assert!(outcome.took < Duration::from_secs(1), "{:?}", outcome.took);
}

// covers: D7c
#[test]
fn a_name_without_addresses_is_asked_about_once() {
    assert_eq!(fails("dns_no_address", |asked, _| packet(&asked.with(Vec::new()))).dns.count(), 1);
}

// covers: D7c
#[test]
fn a_server_that_fails_or_will_not_is_told_apart_from_a_missing_name() {
    fails("dns_server_failed", |asked, _| asked.refused(ResponseCode::ServFail));
    fails("dns_server_failed", |asked, _| asked.refused(ResponseCode::Refused));
}

// covers: D7c
#[test]
fn a_server_that_says_nothing_is_a_reason_and_no_hang() {
    let outcome = fails("dns_timeout", |_, _| Vec::new());
    assert!(outcome.took < Duration::from_secs(5), "{:?}", outcome.took);
}

// covers: D7c
#[test]
fn a_server_that_is_not_there_is_a_reason_and_no_hang() {
    let node = Node::with(plan());
    let started = Instant::now();
    assert_eq!(connect(&node, "a.dns.test:8080"), 502);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    let line = node.audited_once(ended);
    assert!(is(&line, &[("reason", "resolve_failed")]) && line["detail"] != "dns_no_name", "{line}");
}

// covers: D7c
#[test]
fn a_slow_answer_is_waited_for() {
    let outcome = dial(|asked, home| late(Duration::from_millis(700), asked.addresses(60, &[home])));
    assert_eq!((outcome.status, outcome.dialled), (200, 1));
}

// covers: D7c
#[test]
fn a_truncated_answer_is_asked_for_again_over_tcp() {
    let outcome = dial(|asked, home| {
        if asked.tcp {
            return asked.addresses(60, &[home]);
        }
        let mut message = asked.with(Vec::new());
        message.metadata.truncation = true;
        packet(&message)
    });
    assert_eq!((outcome.status, outcome.dialled), (200, 1));
    assert_eq!(outcome.dns.asked().iter().map(|asked| asked.tcp).collect::<Vec<_>>(), [false, true]);
}

// covers: D7c
#[test]
fn an_answer_that_is_truncated_over_tcp_too_is_no_answer() {
    fails("dns_bad_answer", |asked, home| {
        let mut message = asked.with(vec![record(&asked.name, 60, home.parse().expect("an address"))]);
        message.metadata.truncation = true;
        packet(&message)
    });
}

// covers: D7c
#[test]
fn a_server_that_says_nothing_over_tcp_is_a_reason_and_no_hang() {
    let outcome = fails("dns_timeout", |asked, _| {
        let mut message = asked.with(Vec::new());
        message.metadata.truncation = true;
        if asked.tcp { Vec::new() } else { packet(&message) }
    });
    assert!(outcome.took < Duration::from_secs(5), "{:?}", outcome.took);
}

// covers: D7c
#[test]
fn a_second_server_answers_for_one_that_fails_or_is_not_there() {
    let servers = "servers = [\"NET.54:5353\", \"NET.53:5353\"]\ntimeout = \"4s\"";
    let node = Node::with(Plan { resolver: servers, ..plan() });
    let home = node.ip(80);
    let _dns = dns_of(&node, move |asked| asked.addresses(0, &[&home]));
    let upstream = echo(&format!("{}:8080", node.ip(80)));
    assert_eq!(connect(&node, "a.dns.test:8080"), 200);
    let _mute = Dns::start(&format!("{}:5353", node.ip(54)), |_| Vec::new());
    assert_eq!(connect(&node, "b.dns.test:8080"), 200);
    came(&upstream, 2);
}

// covers: D7c
#[test]
fn an_oversized_answer_is_checked_whole_and_dialled_in_part() {
    // 2,000 addresses, over TCP: more than one message over UDP can carry.
    let many = |asked: &Asked, home: &str, last: &str| {
        let mut message = asked.with(Vec::new());
        if asked.tcp {
            let records = (0..2000).map(|_| home).chain([last]);
            message = asked.with(records.map(|text| record(&asked.name, 60, text.parse().expect("one"))).collect());
        } else {
            message.metadata.truncation = true;
        }
        packet(&message)
    };
    let outcome = dial(move |asked, home| many(asked, home, home));
    assert_eq!((outcome.status, outcome.dialled), (200, 1));
    let node = Node::with(plan());
    let home = node.ip(80);
    let _dns = dns_of(&node, move |asked| many(asked, &home, "169.254.169.254"));
    assert_eq!(connect(&node, "a.dns.test:8080"), 403);
    node.audited_once(|line| is(line, &[("reason", "address_forbidden"), ("detail", "link_local")]));
}

// covers: D7c
#[test]
fn names_that_stand_for_each_other_lead_nowhere() {
    let outcome = fails("dns_no_address", |asked, _| {
        let to = if asked.name == "a.dns.test." { "b.dns.test." } else { "a.dns.test." };
        packet(&asked.with(vec![alias(&asked.name, to)]))
    });
    assert!(outcome.dns.count() <= 20, "{:?}", outcome.dns.names());
    let outcome = fails("dns_no_address", |asked, _| {
        packet(&asked.with(vec![alias("a.dns.test.", "b.dns.test."), alias("b.dns.test.", "a.dns.test.")]))
    });
    assert!(outcome.dns.count() <= 20, "{:?}", outcome.dns.names());
}

// covers: D7c
#[test]
fn a_chain_of_aliases_without_end_ends() {
    let outcome = fails("dns_no_address", |asked, _| {
        let next = format!("{}.dns.test.", asked.before + 1);
        packet(&asked.with(vec![alias(&asked.name, &next)]))
    });
    assert!(outcome.dns.count() <= 20, "{:?}", outcome.dns.names());
}

// covers: D7c
#[test]
fn an_answer_with_a_wrong_id_is_not_believed_and_a_right_one_behind_it_is() {
    let forged = |asked: &Asked| {
        let mut packets = asked.addresses(60, &["169.254.169.254"]);
        packets[0][1] ^= 0x55;
        packets
    };
    let outcome = dial(move |asked, home| [forged(asked), asked.addresses(60, &[home])].concat());
    assert_eq!((outcome.status, outcome.dialled), (200, 1));
    fails("dns_timeout", move |asked, _| forged(asked));
}

// covers: D7c
#[test]
fn an_answer_to_another_question_is_not_believed() {
    fails("dns_timeout", |asked, _| {
        let mut message = asked.with(vec![record("evil.test.", 60, "169.254.169.254".parse().expect("one"))]);
        message.queries[0].set_name(hickory_resolver::proto::rr::Name::from_ascii("evil.test.").expect("a name"));
        packet(&message)
    });
}

// covers: D7c
#[test]
fn bytes_that_are_no_message_are_a_reason_and_no_hang() {
    for bytes in [&b"\0\0"[..], &[0xff; 600]] {
        let outcome = dial(move |asked, _| {
            let mut packet = asked.with(Vec::new()).to_vec().expect("a message")[..2].to_vec();
            packet.extend(bytes);
            vec![packet]
        });
        assert_eq!((outcome.status, outcome.dialled), (502, 0), "{}", outcome.detail);
    }
}
