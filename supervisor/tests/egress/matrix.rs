//! Every L7 case on every way out to every kind of destination: rules that hold on one way hold on all.

use crate::cases::{self, Case, Fate};
use crate::data::{is, until};
use crate::ways::{Said, Way};
use crate::world::{Target, World};

fn run(target: Target) {
    let world = World::start();
    for way in Way::all_to(target) {
        for case in cases::all(way, target) {
            judge(&world, way, target, &case);
        }
    }
    until("nothing is left open", || world.node.open("x") == 0);
}

// covers: D4a (F-EH02)
// covers: D13a, D17d
#[test]
fn every_case_on_every_way_to_a_host_without_tls() {
    run(Target::Plain);
}

// covers: D4a
// covers: D13a, D17d
#[test]
fn every_case_on_every_way_to_a_host_with_tls_added() {
    run(Target::Originate);
}

// covers: D4a
// covers: D13a
#[test]
fn every_case_on_every_way_to_a_host_before_which_tls_is_answered() {
    run(Target::Intercept);
}

// covers: D4a
// covers: D13a, D17d
#[test]
fn every_case_on_every_way_to_a_workload() {
    run(Target::Workload);
}

#[test]
fn the_matrix_has_every_way_and_every_target_once() {
    let ways: Vec<_> = Way::all().collect();
    assert!(ways.iter().all(|way| ways.iter().filter(|other| other == &way).count() == 1), "{ways:?}");
    assert_eq!((ways.len(), Target::all().count()), (11, 4));
}

fn judge(world: &World, way: Way, target: Target, case: &Case<'_>) {
    let what = format!("{} on {way:?} to {target:?}", case.name);
    let (before, accepted) = (world.seen().len(), world.accepted());
    let said = way.open(world, target).ask(target, &case.ask);
    let reached = world.seen().split_off(before);
    match &case.fate {
        Fate::Passes(parts) => {
            assert_eq!(said.status(), Some(200), "{what}: {said:?}");
            let [seen] = reached.as_slice() else { panic!("{what}: reached {reached:#?}") };
            passed(&what, parts, seen);
            answered(&what, &said);
        }
        Fate::Refused(status, reason) => {
            assert_eq!(said.status(), Some(*status), "{what}: {said:?}");
            assert!(said.text().contains(&format!("\"status\":{status}")), "{what}: {said:?}");
            refused(world, &what, &said, reason);
            nothing_reached(world, &what, &reached, accepted);
        }
        Fate::GrpcRefused(status, reason) => {
            assert_eq!(said.status(), Some(200), "{what}: {said:?}");
            assert_eq!(said.header("grpc-status"), Some(status.to_string()), "{what}: {said:?}");
            refused(world, &what, &said, reason);
            nothing_reached(world, &what, &reached, accepted);
        }
        Fate::Reset => {
            assert!(matches!(said, Said::Nothing), "{what}: {said:?}");
            nothing_reached(world, &what, &reached, accepted);
        }
    }
}

fn passed(what: &str, parts: &[String], seen: &str) {
    let lower = seen.to_ascii_lowercase();
    assert!(!lower.contains("evil"), "{what}: {seen}");
    assert_eq!(lower.matches("\r\nhost: ").count(), 1, "{what}: {seen}");
    for gone in ["upgrade:", "http2-settings:", "proxy-", "keep-alive:", "connection:"] {
        assert!(!lower.contains(gone), "{what}: {gone} in {seen}");
    }
    for part in parts {
        assert!(lower.contains(&part.to_ascii_lowercase()), "{what}: no {part:?} in {seen}");
    }
}

/// What a destination may say about where else it is, or in our name, does not reach the app.
fn answered(what: &str, said: &Said) {
    assert_eq!(said.header("x-kept").as_deref(), Some("1"), "{what}: {said:?}");
    for gone in ["alt-svc", "x-nova-decision-id"] {
        assert_eq!(said.header(gone), None, "{what}: {said:?}");
    }
}

fn refused(world: &World, what: &str, said: &Said, reason: &str) {
    let line = match said.header("x-nova-decision-id") {
        Some(id) => world.node.audited_once(|line| line["decision_id"] == *id),
        None => world.next_refusal_of_a_gate(what),
    };
    assert!(is(&line, &[("kind", "request"), ("verdict", "deny"), ("reason", reason)]), "{what}: {line}");
    assert!(line["dest_addr"].is_null(), "{what}: something was dialled: {line}");
}

fn nothing_reached(world: &World, what: &str, reached: &[String], accepted: usize) {
    assert!(reached.is_empty(), "{what}: {reached:#?}");
    assert_eq!(world.accepted(), accepted, "{what}: a refused request was dialled");
}
