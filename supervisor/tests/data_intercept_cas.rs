//! The CAs of pods over time: renewed, for more names, after a restart, with other files; and a guest that asks for too much.

#![allow(clippy::panic, reason = "a test that cannot go on fails")]

mod data;
mod intercept_support;

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use data::{B, Link, Node, Plan, X, is, until};
use intercept_support::{
    LATER, LOOK, PORT, RULES, ask, handshake, hello, host, installed, listen, plan, roots, told, trust, tunnel,
    tunnel_of, two_tiers,
};

/// The pod's CA, made by itself.
fn with_lifetime(lifetime: &str) -> Plan {
    Plan { sections: format!("[interception]\nlifetime = \"{lifetime}\"\n"), ..plan() }
}

fn below_a_root() -> Plan {
    let sections = "[interception]\nchain = \"above.pem\"\nkey = \"above.key\"\n".to_owned();
    Plan { sections, prepare: two_tiers, ..plan() }
}

/// Whether a program that trusts `pem` is answered.
fn is_served(node: &Node, pem: &str, name: &str) -> bool {
    handshake(tunnel(node, name, PORT), &roots(pem), name)
        .is_ok_and(|mut inside| ask(&mut inside, "GET", "/v1/a", &format!("{name}:{PORT}")).status == 200)
}

// covers: D6j
#[test]
fn a_guest_with_too_many_handshakes_is_refused_and_another_one_is_served_meanwhile() {
    let rules = format!("{RULES}{}", LATER.replace("workload: x", "workload: b").replace("id: later", "id: of-b"));
    let token = "boot_token: 00000000000000000000000000000011\n";
    let limits = format!("{token}    limits: {{max_handshakes: 4}}\n");
    let node = Node::with(Plan { endpoints: plan().endpoints.replace(token, &limits), rules, ..plan() });
    let upstream = host(&node, "later.test");
    let mine = trust(&node, X).expect("an answer");
    let of_b = roots(&trust(&node, B).expect("an answer"));
    // Silent after the first byte of a hello, each holds a place until its time is over.
    let held: Vec<Link> = (0..4)
        .map(|_| {
            let mut link = tunnel(&node, LOOK, PORT);
            link.send([0x16]);
            link
        })
        .collect();
    let over = AtomicBool::new(false);
    let (refused, served) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let mut link = tunnel(&node, LOOK, PORT);
                    link.send(hello(&roots(&mine), LOOK));
                    refused.fetch_add(usize::from(link.is_closed()), Ordering::Relaxed);
                }
            });
        }
        until("the flood is refused", || refused.load(Ordering::Relaxed) > 50);
        for _ in 0..20 {
            let link = tunnel_of(&node, B, "later.test", PORT);
            let mut inside = handshake(link, &of_b, "later.test").expect("a handshake");
            assert_eq!(ask(&mut inside, "GET", "/v1/a", "later.test:9443").status, 200);
            served.fetch_add(1, Ordering::Relaxed);
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!((served.into_inner(), upstream.seen().len()), (20, 20));
    let is_refusal = |line: &serde_json::Value| is(line, &[("reason", "limit_connections"), ("kind", "request")]);
    let lines: Vec<_> = node.audit().into_iter().filter(is_refusal).collect();
    let wanted = [("detail", "handshakes"), ("workload", "x"), ("verdict", "deny"), ("dest_host", LOOK)];
    assert!(lines.len() > 50 && lines.iter().all(|line| is(line, &wanted)), "{}: {:?}", lines.len(), lines.first());
    drop(held);
    until("the places are free again", || handshake(tunnel(&node, LOOK, PORT), &roots(&mine), LOOK).is_ok());
}

// covers: D6k
#[test]
fn the_next_ca_signs_when_the_guest_has_it_and_the_old_one_is_about_to_end() {
    let node = Node::with(with_lifetime("16s"));
    let _upstream = host(&node, LOOK);
    let mut guest = listen(&node, X);
    let first = installed(&mut guest);
    assert!(is_served(&node, &first, LOOK));
    // At half of its life.
    let both = installed(&mut guest);
    assert!(both.starts_with(&first) && both.len() > first.len(), "the guest trusts both");
    let next = both.strip_prefix(first.as_str()).expect("two").to_owned();
    assert!(is_served(&node, &first, LOOK), "a program that read its store before goes on");
    // Whoever starts from now on is served all the time; the other one until the old CA is about to end.
    until("the next one signs", || {
        assert!(is_served(&node, &both, LOOK));
        is_served(&node, &next, LOOK)
    });
    assert!(!is_served(&node, &first, LOOK));
    let lines = node.audit().into_iter().filter(|line| line["reason"] == "client_rejected_ca").collect::<Vec<_>>();
    let told = lines.last().and_then(|line| line["detail"].as_str()).expect("a detail");
    assert!(told.contains("restart it if it read its store before the CA came"), "{told}");
    let later = installed(&mut guest);
    assert!(later.starts_with(&next) && !later.contains(&first), "what is over is trusted by nobody");
    assert!(is_served(&node, &later, LOOK));
}

// covers: D6k
#[test]
fn a_guest_that_cannot_install_the_next_ca_is_never_answered_with_it_and_the_operator_is_told() {
    let node = Node::with(with_lifetime("6s"));
    let _upstream = host(&node, LOOK);
    let mut guest = listen(&node, X);
    let first = installed(&mut guest);
    let both = told(&mut guest).expect("the next one");
    guest.send([0]);
    until("the operator is told", || node.warnings().contains("its guest has not installed another: restart the pod"));
    let next = both.strip_prefix(first.as_str()).expect("two");
    until("the old one is over", || {
        assert!(!is_served(&node, next, LOOK), "nobody was told that it is installed");
        node.audit().iter().any(|line| line["reason"] == "intercept_needs_restart")
    });
    let line = node.audit().into_iter().find(|line| line["reason"] == "intercept_needs_restart").expect("a line");
    assert!(is(&line, &[("detail", "ca_not_installed"), ("verdict", "deny"), ("dest_host", LOOK)]), "{line}");
}

// covers: D6k
#[test]
fn a_name_that_a_later_bundle_adds_is_intercepted_once_the_guest_has_its_ca() {
    let node = Node::with(plan());
    let _upstream = host(&node, LOOK);
    let mut guest = listen(&node, X);
    let first = installed(&mut guest);
    node.publish(&format!("{RULES}{LATER}"));
    let both = told(&mut guest).expect("the next one");
    assert!(!is_served(&node, &both, "later.test"), "not before the guest has it");
    let line = node.audited_once(|line| line["reason"] == "intercept_needs_restart");
    assert!(is(&line, &[("detail", "ca_not_installed"), ("dest_host", "later.test")]), "{line}");
    guest.send([1]);
    // The upstream is another host's, so what counts is the handshake.
    until("it is intercepted", || handshake(tunnel(&node, "later.test", PORT), &roots(&both), "later.test").is_ok());
    assert!(is_served(&node, &first, LOOK), "names of before keep their CA");
}

// covers: D6m
#[test]
fn after_a_restart_of_the_supervisor_the_guest_gets_another_ca_and_what_trusts_the_old_one_is_named() {
    let mut node = Node::with(plan());
    let _upstream = host(&node, LOOK);
    let mut guest = listen(&node, X);
    let before = installed(&mut guest);
    assert!(is_served(&node, &before, LOOK));
    node.restart();
    assert!(guest.is_closed(), "so the guest asks again");
    assert!(!is_served(&node, &before, LOOK));
    let line = node.audited_once(|line| line["reason"] == "intercept_needs_restart");
    assert!(is(&line, &[("detail", "ca_not_asked"), ("verdict", "deny"), ("dest_host", LOOK)]), "{line}");
    let after = installed(&mut listen(&node, X));
    assert_ne!(after, before);
    assert!(is_served(&node, &after, LOOK), "programs that start from now on");
    assert!(!is_served(&node, &before, LOOK), "those that read their store before");
    let line = node.audited_once(|line| line["reason"] == "client_rejected_ca");
    let told = line["detail"].as_str().expect("a detail");
    assert!(told.starts_with("unknown_ca: ") && told.contains("restart it if it read its store before"), "{told}");
}

// covers: D6m
#[test]
fn below_an_offline_root_a_restart_of_the_supervisor_is_not_noticed() {
    let mut node = Node::with(below_a_root());
    let _upstream = host(&node, LOOK);
    let root = installed(&mut listen(&node, X));
    assert!(is_served(&node, &root, LOOK));
    node.restart();
    assert!(is_served(&node, &root, LOOK), "although no guest has asked this supervisor");
    assert_eq!(trust(&node, X).as_deref(), Some(root.as_str()));
}

// covers: D6l
#[test]
fn another_intermediate_signs_without_a_restart_and_a_broken_one_changes_nothing() {
    let node = Node::with(below_a_root());
    let _upstream = host(&node, LOOK);
    let mut guest = listen(&node, X);
    let root = installed(&mut guest);
    let chain = node.dir.path().join("above.pem");
    std::fs::write(&chain, "no certificate").expect("written");
    until("it is reported with what to do", || {
        let told = node.warnings();
        told.contains("[interception] the old pair stays in force") && told.contains("put a chain and its key there")
    });
    assert!(is_served(&node, &root, LOOK));
    // A pair below another root: the guest gets that beside the old one.
    std::fs::remove_file(node.dir.path().join("above.key")).expect("removed");
    two_tiers(node.dir.path(), &node.ca);
    let both = installed(&mut guest);
    let next = both.strip_prefix(root.as_str()).expect("both roots");
    until("the report is gone", || !node.warnings().contains("[interception]"));
    assert!(is_served(&node, &root, LOOK), "programs that know the old root only go on");
    node.publish(&format!("{RULES}{LATER}"));
    let below = |pem: &str| handshake(tunnel(&node, "later.test", PORT), &roots(pem), "later.test").is_ok();
    until("what the old CA does not cover is below the new root", || below(next));
    assert!(!below(&root));
}

// covers: D6k
#[test]
fn a_guest_that_says_more_than_it_may_is_let_go_and_a_drain_ends_the_rest() {
    let node = Node::with(plan());
    let mut guest = listen(&node, X);
    told(&mut guest).expect("an answer");
    guest.send([7]);
    assert!(guest.is_closed());
    let mut guest = listen(&node, X);
    installed(&mut guest);
    guest.send([1]);
    assert!(guest.is_closed(), "it was not asked");
    node.audited(2, |line| is(line, &[("kind", "connection"), ("workload", "x"), ("close", "malformed")]));
    let mut guest = listen(&node, X);
    installed(&mut guest);
    node.remove_endpoint("x");
    assert!(matches!(guest.read(&mut [0; 8]), Ok(0)), "a good end");
    node.audited_once(|line| is(line, &[("kind", "connection"), ("workload", "x"), ("close", "draining")]));
}
