#![allow(clippy::panic, reason = "a test that finds another value fails")]

use super::*;
use crate::control::convert;
use nova_proto::control as proto;
use nova_proto::control::endpoint::Backend as ProtoBackend;

fn order(pod: &str, generation: u64, ip: &str, cid: u32, wanted: proto::State) -> Order {
    convert::endpoint(proto::Endpoint {
        workload_id: "x".into(),
        spiffe_id: "spiffe://dev.invalid/t/t/w/x".into(),
        pod_uid: pod.into(),
        generation,
        workload_ip: ip.into(),
        backend: Some(ProtoBackend::VsockCid(cid)),
        isolation: "shared".into(),
        state: wanted as i32,
        boot_token: vec![7; 16],
        ..proto::Endpoint::default()
    })
    .expect("valid")
}

fn a(generation: u64) -> Order {
    order("a", generation, "10.0.0.1", 3, proto::State::Ready)
}

fn b(generation: u64) -> Order {
    order("b", generation, "10.0.0.2", 4, proto::State::Ready)
}

fn upsert(order: Order) -> Update {
    Update::Upsert(Box::new(Ok(order)))
}

fn snapshot(epoch: u64, orders: Vec<Order>) -> Update {
    Update::Snapshot { epoch, rows: orders.into_iter().map(Ok).collect() }
}

fn table(orders: Vec<Order>) -> Table {
    let mut table = Table::default();
    let started = table.apply(snapshot(1, orders.clone()));
    assert_eq!(started, orders.into_iter().map(Action::Start).collect::<Vec<_>>());
    table
}

/// The one refusal in `actions`, which must hold nothing else.
fn refusal(actions: &[Action]) -> (Why, &str) {
    match actions {
        [Action::Report(Verdict { phase: Phase::Rejected, why, message, .. })] => (*why, message),
        other => panic!("one refusal and nothing else, not {other:?}"),
    }
}

fn is_drained(action: &Action, pod: &str, generation: u64) -> bool {
    matches!(action, Action::Report(verdict) if verdict.phase == Phase::Drained && verdict.pod == pod
        && verdict.generation == generation)
}

#[test]
fn an_older_generation_is_refused_with_both_numbers() {
    // covers: A2 (F-CS04, T43)
    let mut table = table(vec![a(7)]);
    let actions = table.apply(upsert(a(6)));
    let (why, message) = refusal(&actions);
    assert_eq!(why, Why::OlderGeneration);
    assert!(message.contains('6') && message.contains('7') && message.contains("newer epoch"), "{message}");
    assert_eq!(table.apply(Update::Remove(a(6).key())), [], "a remove for an old generation is ignored");
    assert_eq!(table.apply(upsert(a(7))), [], "a repeat changes nothing");
}

#[test]
fn an_older_generation_is_refused_also_after_the_pod_is_gone() {
    let mut table = table(vec![a(7)]);
    table.apply(Update::Remove(a(7).key()));
    table.ended(&a(7).key());
    assert_eq!(refusal(&table.apply(upsert(a(6)))).0, Why::OlderGeneration);
    assert_eq!(table.apply(upsert(a(7))), [Action::Start(a(7))], "the same generation may come back");
}

#[test]
fn a_newer_generation_closes_the_old_one_and_starts_when_that_has_ended() {
    // covers: A2 (F-CS04)
    let mut table = table(vec![a(7)]);
    assert_eq!(table.apply(upsert(a(8))), [Action::Close(a(7).key(), Why::Superseded)]);
    assert_eq!(table.apply(upsert(a(9))), [], "the newest wins while the old one ends");
    assert_eq!(table.ended(&a(7).key()), [Action::Start(a(9))]);
    assert_eq!(table.ended(&a(7).key()), [], "a second end of the old one means nothing");
}

#[test]
fn a_newer_generation_may_change_everything() {
    let mut table = table(vec![a(7)]);
    let moved = order("a", 8, "10.0.0.9", 30, proto::State::Pending);
    table.apply(upsert(moved.clone()));
    let taker = order("c", 1, "10.0.0.1", 5, proto::State::Ready);
    assert_eq!(refusal(&table.apply(upsert(taker.clone()))).0, Why::IpInUse, "the old one has not ended");
    assert_eq!(table.ended(&a(7).key()), [Action::Start(moved), Action::Start(taker)]);
}

#[test]
fn a_second_owner_of_an_address_or_cid_is_refused_and_the_first_left_alone() {
    // covers: A2 (K11)
    let mut table = table(vec![a(1)]);
    assert_eq!(refusal(&table.apply(upsert(order("b", 1, "10.0.0.1", 4, proto::State::Ready)))).0, Why::IpInUse);
    assert_eq!(refusal(&table.apply(upsert(order("c", 1, "10.0.0.3", 3, proto::State::Ready)))).0, Why::CidInUse);
    assert_eq!(table.apply(upsert(a(1))), []);
}

#[test]
fn the_second_owner_starts_when_the_first_is_removed_and_drained() {
    // covers: A2 (F-CS01)
    let mut table = table(vec![a(5)]);
    let draining = order("a", 5, "10.0.0.1", 3, proto::State::Draining);
    let actions = table.apply(upsert(draining.clone()));
    assert_eq!(actions, [Action::Update(draining.clone()), Action::Drain(a(5).key(), Why::Ordered)]);
    let second = order("b", 1, "10.0.0.1", 4, proto::State::Pending);
    assert_eq!(refusal(&table.apply(upsert(second.clone()))).0, Why::IpInUse);
    assert_eq!(table.ended(&a(5).key()), [], "drained, but not removed: the address is still held");
    assert_eq!(refusal(&table.apply(upsert(second.clone()))).0, Why::IpInUse);
    let actions = table.apply(Update::Remove(a(5).key()));
    let expected = [Action::Repeat(a(5).key()), Action::Forget(a(5).key().pod), Action::Start(second.clone())];
    assert_eq!(actions, expected);
    assert_eq!(table.apply(Update::Remove(a(5).key())).len(), 1, "b is untouched by a late remove of a");
    assert_eq!(table.apply(upsert(second)), []);
}

#[test]
fn two_owners_in_one_snapshot_refuse_the_later() {
    let mut table = Table::default();
    let rival = order("c", 1, "10.0.0.1", 9, proto::State::Ready);
    let actions = table.apply(snapshot(1, vec![a(1), rival.clone(), b(1)]));
    assert_eq!(actions[0], Action::Start(a(1)));
    assert_eq!(refusal(&actions[1..2]).0, Why::IpInUse);
    assert_eq!(actions[2], Action::Start(b(1)));
    // Whoever was first stays first, whatever the order of the next snapshot.
    assert_eq!(refusal(&table.apply(snapshot(1, vec![rival, b(1), a(1)]))).0, Why::IpInUse);
}

#[test]
fn a_refused_owner_that_is_removed_never_starts() {
    let mut table = table(vec![a(1)]);
    let second = order("b", 1, "10.0.0.1", 4, proto::State::Ready);
    table.apply(upsert(second.clone()));
    assert!(is_drained(&table.apply(Update::Remove(second.key()))[0], "b", 1));
    table.apply(Update::Remove(a(1).key()));
    assert_eq!(table.ended(&a(1).key()), [Action::Forget(a(1).key().pod)]);
}

#[test]
fn what_a_generation_is_cannot_change_in_place() {
    let mut table = table(vec![a(1)]);
    let mut moved = a(1);
    moved.spec.ip = "10.0.0.77".parse().expect("valid");
    assert_eq!(refusal(&table.apply(upsert(moved))).0, Why::ChangedInPlace);
    let other_guest = order("a", 1, "10.0.0.1", 33, proto::State::Ready);
    assert_eq!(refusal(&table.apply(upsert(other_guest))).0, Why::ChangedInPlace);
    let back = order("a", 1, "10.0.0.1", 3, proto::State::Pending);
    assert_eq!(refusal(&table.apply(upsert(back))).0, Why::StateGoesBack);
}

#[test]
fn a_pending_generation_may_change_its_guest_but_not_to_anothers() {
    let pending = |cid| order("a", 1, "10.0.0.1", cid, proto::State::Pending);
    let mut table = table(vec![pending(3), b(1)]);
    assert_eq!(refusal(&table.apply(upsert(pending(4)))).0, Why::CidInUse);
    assert_eq!(table.apply(upsert(pending(33))), [Action::Update(pending(33))]);
    let ready = order("a", 1, "10.0.0.1", 33, proto::State::Ready);
    assert_eq!(table.apply(upsert(ready.clone())), [Action::Update(ready)]);
}

#[test]
fn a_draining_generation_does_not_come_back() {
    let mut table = table(vec![a(1)]);
    table.apply(upsert(order("a", 1, "10.0.0.1", 3, proto::State::Draining)));
    assert_eq!(refusal(&table.apply(upsert(a(1)))).0, Why::DrainingAlready);
    let again = table.apply(upsert(order("a", 1, "10.0.0.1", 3, proto::State::Draining)));
    assert_eq!(again, [Action::Repeat(a(1).key())]);
}

#[test]
fn a_snapshot_that_lacks_an_endpoint_drains_it_and_leaves_the_others() {
    // covers: A2 (F-CS02)
    let mut table = table(vec![a(1), b(1)]);
    assert_eq!(table.apply(snapshot(1, vec![a(1)])), [Action::Drain(b(1).key(), Why::Ordered)]);
    assert_eq!(table.ended(&b(1).key()), [Action::Forget(b(1).key().pod)]);
}

#[test]
fn a_row_that_is_refused_does_not_drain_the_endpoint_it_means() {
    let mut table = table(vec![a(1)]);
    let broken = Rejection { pod: "a".into(), generation: 1, why: Why::BadIp, message: String::from("not an address") };
    let actions = table.apply(Update::Snapshot { epoch: 1, rows: vec![Err(broken)] });
    assert_eq!(refusal(&actions).0, Why::BadIp);
}

#[test]
fn a_snapshot_of_an_older_state_is_refused_one_by_one_unless_its_epoch_is_newer() {
    // covers: A2 (F-CS03, T43)
    let mut table = table(vec![a(7)]);
    assert_eq!(refusal(&table.apply(snapshot(1, vec![a(3)]))).0, Why::OlderGeneration);
    assert_eq!(table.apply(snapshot(2, vec![a(3)])), [Action::Close(a(7).key(), Why::Superseded)]);
    assert_eq!(table.ended(&a(7).key()), [Action::Start(a(3))]);
    assert_eq!(refusal(&table.apply(snapshot(2, vec![a(2)]))).0, Why::OlderGeneration);
}

#[test]
fn a_remove_is_answered_with_drained_however_often_it_comes() {
    let mut table = table(vec![a(1)]);
    assert_eq!(table.apply(Update::Remove(a(1).key())), [Action::Drain(a(1).key(), Why::Ordered)]);
    assert_eq!(table.apply(Update::Remove(a(1).key())), []);
    assert_eq!(table.ended(&a(1).key()), [Action::Forget(a(1).key().pod)]);
    assert!(is_drained(&table.apply(Update::Remove(a(1).key()))[0], "a", 1));
}

#[test]
fn a_newer_generation_that_is_removed_before_it_began_is_drained_when_the_old_one_has_ended() {
    let mut table = table(vec![a(1)]);
    table.apply(upsert(a(2)));
    assert_eq!(table.apply(Update::Remove(a(2).key())), [], "the old one still holds the address");
    let actions = table.ended(&a(1).key());
    assert!(is_drained(&actions[0], "a", 2));
    assert_eq!(actions[1..], [Action::Forget(a(1).key().pod)]);
}

#[test]
fn an_endpoint_that_was_never_served_here_has_nothing_to_drain() {
    let mut table = Table::default();
    let actions = table.apply(snapshot(1, vec![order("a", 1, "10.0.0.1", 3, proto::State::Draining)]));
    assert!(actions.iter().any(|action| is_drained(action, "a", 1)), "{actions:?}");
    assert!(!actions.iter().any(|action| matches!(action, Action::Start(_))));
}

#[test]
fn a_lost_guest_serves_again_only_in_a_newer_generation() {
    // covers: A2 (T2)
    let mut table = table(vec![a(1)]);
    assert_eq!(table.presence_lost(&a(0).key()), [], "an older guest's end means nothing");
    assert_eq!(table.presence_lost(&a(1).key()), [Action::Suspend(a(1).key())]);
    assert_eq!(table.presence_lost(&a(1).key()), []);
    table.apply(Update::Remove(a(1).key()));
    table.ended(&a(1).key());
    assert_eq!(refusal(&table.apply(upsert(a(1)))).0, Why::PresenceLost);
    assert_eq!(table.apply(upsert(a(2))), [Action::Start(a(2))]);
}

#[test]
fn shutting_down_drains_everything() {
    let mut table = table(vec![a(1), b(1)]);
    assert_eq!(table.drain_all().len(), 2);
    assert_eq!(table.drain_all().len(), 0);
}
