//! Tests of the table: what a session is told, in which order, and what an answer counts for.

use super::*;

fn endpoint(pod: &str, generation: u64) -> Endpoint {
    Endpoint {
        pod_uid: pod.into(),
        generation,
        workload_id: pod.into(),
        isolation: "shared".into(),
        ..Endpoint::default()
    }
}

fn hello(slot: u32, dedicated: &str) -> Hello {
    Hello { slot, dedicated_workload: dedicated.into(), ..Hello::default() }
}

fn status(pod: &str, generation: u64, phase: Phase) -> EndpointStatus {
    EndpointStatus { pod_uid: pod.into(), generation, phase: phase as i32, ..EndpointStatus::default() }
}

fn drain(receiver: &mut mpsc::Receiver<EndpointUpdate>) -> Vec<EndpointUpdate> {
    std::iter::from_fn(|| receiver.try_recv().ok()).collect()
}

// covers: A2
#[test]
fn an_answer_about_another_generation_counts_for_nothing() {
    let table = Table::new(1);
    table.upsert(endpoint("p", 2));
    let (id, _updates) = table.join(hello(0, ""));
    table.acknowledge(id, status("p", 1, Phase::Healthy));
    table.acknowledge(id, status("q", 2, Phase::Healthy));
    assert!(!table.any_reached("p", 2, &[Phase::Healthy]));
    table.acknowledge(id, status("p", 2, Phase::Healthy));
    assert!(table.any_reached("p", 2, &[Phase::Healthy]));
}

// covers: A2
#[test]
fn a_remove_for_an_old_generation_is_ignored() {
    let table = Table::new(1);
    table.upsert(endpoint("p", 2));
    let (_, mut updates) = table.join(hello(0, ""));
    assert!(!table.remove("p", 1));
    assert_eq!(drain(&mut updates).len(), 1, "only the snapshot");
}

// covers: A2
#[test]
fn a_snapshot_comes_first_and_every_delta_has_a_higher_revision() {
    let table = Table::new(7);
    table.upsert(endpoint("p", 1));
    let (_, mut updates) = table.join(hello(0, ""));
    table.upsert(endpoint("q", 1));
    assert!(table.remove("p", 1));
    let seen = drain(&mut updates);
    assert!(matches!(&seen[0].op, Some(Op::Snapshot(snapshot)) if snapshot.endpoints.len() == 1));
    assert!(matches!(&seen[1].op, Some(Op::Upsert(endpoint)) if endpoint.pod_uid == "q"));
    assert!(matches!(&seen[2].op, Some(Op::Remove(key)) if key.pod_uid == "p" && key.generation == 1));
    assert!(seen.windows(2).all(|pair| pair[0].revision < pair[1].revision));
    assert!(seen.iter().all(|update| update.epoch == 7));
}

// covers: A2
#[test]
fn a_pod_is_drained_only_when_every_slot_says_so_also_one_that_is_away() {
    let table = Table::new(1);
    table.upsert(endpoint("p", 1));
    assert!(table.is_drained("p", 1), "nobody ever joined, so nobody holds anything");
    let (a, _updates_a) = table.join(hello(0, ""));
    let (b, _updates_b) = table.join(hello(1, ""));
    table.acknowledge(a, status("p", 1, Phase::Drained));
    table.acknowledge(b, status("p", 1, Phase::DrainingNow));
    table.leave(b);
    assert!(!table.is_drained("p", 1));
    let (b, _updates_b) = table.join(hello(1, ""));
    assert!(!table.is_drained("p", 1), "the answer of a former session is gone");
    table.acknowledge(b, status("p", 1, Phase::Drained));
    assert!(table.is_drained("p", 1));
}

// covers: A2
#[test]
fn a_dedicated_workload_is_hidden_from_the_shared_instance() {
    let table = Table::new(1);
    let (_, mut shared) = table.join(hello(0, ""));
    let (_, mut own) = table.join(hello(0, "p"));
    table.upsert(Endpoint { isolation: "dedicated".into(), ..endpoint("p", 1) });
    assert_eq!(drain(&mut shared).len(), 1, "only the empty snapshot");
    assert_eq!(drain(&mut own).len(), 2);
    table.upsert(endpoint("p", 1));
    assert!(matches!(drain(&mut own)[0].op, Some(Op::Remove(_))), "no longer dedicated");
}

// covers: C9e
#[test]
fn whoever_serves_the_same_endpoints_is_told_how_many_they_are() {
    let table = Table::new(1);
    table.upsert(endpoint("p", 1));
    let last = |updates: &mut mpsc::Receiver<EndpointUpdate>| drain(updates).last().map(|update| update.live_slots);
    let (_a, mut to_a) = table.join(hello(0, ""));
    assert_eq!(last(&mut to_a), Some(1));
    let (b, mut to_b) = table.join(hello(1, ""));
    assert_eq!((last(&mut to_a), last(&mut to_b)), (Some(2), Some(2)));
    // An instance of its own shares nothing with them.
    let (_own, mut to_own) = table.join(hello(0, "p"));
    assert_eq!((last(&mut to_own), last(&mut to_a)), (Some(1), None));
    table.upsert(endpoint("q", 1));
    assert_eq!((last(&mut to_a), last(&mut to_b)), (Some(2), Some(2)));
    // Who comes back takes nobody's part.
    let (b_again, mut to_b) = table.join(hello(1, ""));
    assert_eq!((last(&mut to_a), last(&mut to_b)), (None, Some(2)));
    table.leave(b);
    assert_eq!(last(&mut to_a), None, "that session had ended already");
    table.leave(b_again);
    assert_eq!(last(&mut to_a), Some(1));
}

// covers: A2
#[test]
fn a_session_that_does_not_read_is_ended_and_a_second_session_of_a_slot_ends_the_first() {
    let table = Table::new(1);
    let (_, first) = table.join(hello(0, ""));
    let (id, second) = table.join(hello(0, ""));
    assert!(first.is_closed());
    for generation in 0..SESSION_QUEUE as u64 + 1 {
        table.upsert(endpoint("p", generation));
    }
    assert!(second.is_closed());
    table.acknowledge(id, status("p", SESSION_QUEUE as u64, Phase::Healthy));
    assert!(table.slots().values().all(|slot| !slot.live));
}
