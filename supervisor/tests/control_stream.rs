//! The control service against a novalet and a data plane of the test.

mod control_support;

use std::path::Path;

use control_support::{DEADLINE, FakeNovalet, Node, Session, endpoint, port, remove, snapshot, until};
use nova_proto::control as proto;
use nova_proto::control::endpoint_update::Op;
use nova_proto::control::{Phase, State};
use nova_supervisor::reason::Reason;
use nova_supervisor::state::endpoint::Stage;
use tokio::io::AsyncReadExt;
use tokio::net::UnixListener;

fn me() -> u32 {
    nix::unistd::getuid().as_raw()
}

/// A node on a stream, with a first snapshot.
async fn with(endpoints: Vec<proto::Endpoint>) -> (Node, FakeNovalet, Session) {
    let mut novalet = FakeNovalet::start();
    let node = Node::start();
    node.call(&novalet.socket, me());
    let (mut session, _) = novalet.session().await;
    session.send(snapshot(endpoints)).await;
    (node, novalet, session)
}

/// A socket that somebody else listens on, and the uid that novalet would have.
fn foreign_socket(path: &Path) -> (UnixListener, u32) {
    if !nix::unistd::getuid().is_root() {
        return (UnixListener::bind(path).expect("the path is free"), me() + 1);
    }
    // Root is believed as well, so the socket must be of neither; a thread may be somebody else.
    let (path, nobody) = (path.to_owned(), rustix::thread::Uid::from_raw(65_534));
    let listener = std::thread::spawn(move || {
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may");
        let listener = std::os::unix::net::UnixListener::bind(path).expect("the path is free");
        listener.set_nonblocking(true).map(|()| listener)
    });
    let listener = listener.join().expect("no panic").expect("a socket");
    (UnixListener::from_std(listener).expect("a runtime"), 1)
}

#[tokio::test]
async fn a_socket_of_somebody_else_gets_no_hello() {
    // covers: A2 (T39)
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).expect("ours");
    let socket = dir.path().join("novalet.sock");
    let (listener, novalet_uid) = foreign_socket(&socket);
    let node = Node::start();
    let call = node.call(&socket, novalet_uid);
    for _ in 0..2 {
        let accepted = tokio::time::timeout(DEADLINE, listener.accept()).await.expect("it calls, and calls again");
        let (mut stream, _) = accepted.expect("a connection");
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut bytes)).await.expect("it hangs up");
        assert_eq!((read.expect("an end"), bytes.len()), (0, 0), "nothing is sent to a stranger");
    }
    call.abort();
}

#[tokio::test]
async fn the_first_acknowledgement_introduces_the_instance() {
    // covers: A2
    let mut novalet = FakeNovalet::start();
    let node = Node::start();
    node.call(&novalet.socket, me());
    let (_, hello) = novalet.session().await;
    assert_eq!((hello.instance.as_str(), hello.slot, hello.bundle_revision.as_str()), ("a", 0, "rev-7"));
    assert_eq!(hello.dedicated_workload, "");
}

#[tokio::test]
async fn every_revision_is_acknowledged_also_one_that_holds_only_refusals() {
    // covers: A2
    let mut bad = endpoint("a", 1, 11, State::Ready);
    bad.backend = Some(proto::endpoint::Backend::VsockCid(2));
    let (_node, _novalet, mut session) = with(vec![bad]).await;
    assert_eq!(session.applied().await, 1);
    session.send(remove("a", 1)).await;
    assert_eq!(session.applied().await, 2);
}

#[tokio::test]
async fn caps_and_rates_are_divided_by_the_instances_that_novalet_says_live() {
    // covers: C9e
    let limits =
        proto::Limits { max_connections: 6, max_handshakes: 16, connections_per_second: 2, ..proto::Limits::default() };
    let row = || proto::Endpoint { limits: Some(limits), ..endpoint("a", 1, 11, State::Ready) };
    let (node, _novalet, mut session) = with(vec![row()]).await;
    session.phase("a", 1, Phase::Serving).await;
    let a = node.endpoint("a");
    let source = |number: u8| [10, 64, 9, number].into();
    // All are held until they are counted.
    let room = || (0..20).map_while(|_| a.take_connection().ok()).collect::<Vec<_>>().len();
    let handshakes = || (0..20).map_while(|number| a.take_handshake(source(number)).ok()).collect::<Vec<_>>().len();
    assert_eq!((room(), handshakes()), (6, 16), "alone");
    session.send_among(2, snapshot(vec![row()])).await;
    until("half of it", || room() == 3).await;
    assert_eq!(handshakes(), 8);
    // One a second now: the first has its turn at once, the second later than it can wait.
    let wait = std::time::Duration::from_millis(500);
    assert!(a.arrive_within(wait).is_some() && a.arrive_within(wait).is_none());
    // The other one is gone; who leaves novalet's stream for a moment keeps what it was told.
    session.send_among(1, snapshot(vec![row()])).await;
    until("all of it", || room() == 6).await;
}

#[tokio::test]
async fn a_stream_that_breaks_its_rules_is_ended_and_called_again() {
    // covers: A2
    let mut novalet = FakeNovalet::start();
    let node = Node::start();
    node.call(&novalet.socket, me());
    let (mut session, _) = novalet.session().await;
    session.send(Op::Upsert(endpoint("a", 1, 11, State::Ready))).await;
    assert!(session.ends().await, "a delta before the snapshot");
    let (mut session, _) = novalet.session().await;
    session.send_as(5, 1, snapshot(vec![endpoint("a", 1, 11, State::Ready)])).await;
    session.phase("a", 1, Phase::Serving).await;
    session.send_as(5, 1, snapshot(vec![])).await;
    assert!(session.ends().await, "a revision that does not grow");
    novalet.session().await;
    assert_eq!(node.endpoint("a").stage(), Stage::Serving, "what a broken stream said last counts for nothing");
}

#[tokio::test]
async fn nobody_may_call_in_before_ready_and_everything_is_prepared_by_then() {
    // covers: A8
    let (node, _novalet, mut session) = with(vec![endpoint("a", 1, 11, State::Pending)]).await;
    let status = session.phase("a", 1, Phase::Healthy).await;
    assert_eq!(status.reason, "waiting_for_order");
    assert_eq!(node.diary.lines(), ["bind a:1 443", "acceptor+ a:1", "route+ 10.64.3.11"]);
    let a = node.endpoint("a");
    assert_eq!(a.stage(), Stage::EgressOnly);
    assert!(a.svid.current().is_some());
    session.send(Op::Upsert(endpoint("a", 1, 11, State::Ready))).await;
    session.phase("a", 1, Phase::Listening).await;
    session.phase("a", 1, Phase::Serving).await;
    assert!(node.diary.has("listen a:1 443"));
    assert_eq!(a.stage(), Stage::Serving);
}

#[tokio::test]
async fn an_endpoint_waits_for_an_app_that_answers_and_a_policy_that_knows_it() {
    // covers: A2 (K38)
    let mut novalet = FakeNovalet::start();
    let node = Node::start();
    node.plane.set_health("a", Err(Reason::GuestRefused));
    node.policy.set_knows(false);
    node.call(&novalet.socket, me());
    let (mut session, _) = novalet.session().await;
    session.send(snapshot(vec![endpoint("a", 1, 11, State::Ready)])).await;
    while session.phase("a", 1, Phase::SvidReady).await.reason != "guest_refused" {}
    node.plane.set_health("a", Ok(()));
    while session.phase("a", 1, Phase::SvidReady).await.reason != "waiting_for_policy" {}
    assert!(!node.diary.has("listen a:1 443"));
    node.policy.set_knows(true);
    session.phase("a", 1, Phase::Serving).await;
}

#[tokio::test]
async fn an_unhealthy_app_is_reported_and_keeps_its_listeners() {
    // covers: A2 (K37)
    let (node, _novalet, mut session) = with(vec![endpoint("a", 1, 11, State::Ready)]).await;
    session.phase("a", 1, Phase::Serving).await;
    node.plane.set_health("a", Err(Reason::GuestRefused));
    let status = session.phase("a", 1, Phase::Unhealthy).await;
    assert_eq!(status.reason, "guest_refused");
    assert_eq!(node.endpoint("a").stage(), Stage::Serving);
    assert!(!node.diary.has("closed a:1 443"));
    node.plane.set_health("a", Ok(()));
    session.phase("a", 1, Phase::Serving).await;
}

#[tokio::test]
async fn an_older_generation_is_refused_and_changes_nothing() {
    // covers: A2 (F-CS04)
    let (node, _novalet, mut session) = with(vec![endpoint("a", 7, 11, State::Ready)]).await;
    session.phase("a", 7, Phase::Serving).await;
    session.send(Op::Upsert(endpoint("a", 6, 12, State::Ready))).await;
    let status = session.phase("a", 6, Phase::Rejected).await;
    assert_eq!(status.reason, "older_generation");
    assert!(status.message.contains('6') && status.message.contains('7'), "{}", status.message);
    session.send(remove("a", 6)).await;
    session.applied().await;
    assert_eq!(node.endpoint("a").stage(), Stage::Serving);
}

#[tokio::test]
async fn a_newer_generation_cuts_the_old_ones_connections_before_it_is_ready() {
    // covers: A2 (F-CS04)
    let (node, _novalet, mut session) = with(vec![endpoint("a", 7, 11, State::Ready)]).await;
    session.phase("a", 7, Phase::Serving).await;
    let old = node.endpoint("a");
    let connection = old.take_connection().expect("below the cap");
    let mut stage = old.watch_stage();
    let diary = node.diary.clone();
    tokio::spawn(async move {
        stage.wait_for(|stage| *stage == Stage::Closed).await.map(drop).expect("the endpoint lives");
        diary.write("cut a:7".into());
        drop(connection);
    });
    session.send(Op::Upsert(endpoint("a", 8, 11, State::Ready))).await;
    assert_eq!(session.phase("a", 7, Phase::Drained).await.reason, "superseded");
    session.phase("a", 8, Phase::Serving).await;
    assert!(node.diary.position("cut a:7") < node.diary.position("bind a:8 443"));
    assert!(node.diary.position("acceptor- a:7") < node.diary.position("acceptor+ a:8"), "they share a socket path");
}

#[tokio::test]
async fn two_endpoints_with_one_address_refuse_the_later_until_the_first_is_gone() {
    // covers: A2 (F-CS01)
    let mut rival = endpoint("b", 1, 12, State::Ready);
    rival.workload_ip = String::from("10.64.3.11");
    let (node, _novalet, mut session) = with(vec![endpoint("a", 1, 11, State::Ready), rival]).await;
    assert_eq!(session.phase("b", 1, Phase::Rejected).await.reason, "ip_in_use");
    session.phase("a", 1, Phase::Serving).await;
    session.send(remove("a", 1)).await;
    session.phase("a", 1, Phase::Drained).await;
    session.phase("b", 1, Phase::Serving).await;
    assert!(node.diary.position("route- 10.64.3.11") < node.diary.position("bind b:1 443"));
}

#[tokio::test]
async fn a_drain_stops_listening_then_waits_for_connections_then_removes_the_route() {
    // covers: A8
    let (node, _novalet, mut session) = with(vec![endpoint("a", 1, 11, State::Ready)]).await;
    session.phase("a", 1, Phase::Serving).await;
    let a = node.endpoint("a");
    let connection = a.take_connection().expect("below the cap");
    session.send(Op::Upsert(endpoint("a", 1, 11, State::Draining))).await;
    let status = session.phase("a", 1, Phase::DrainingNow).await;
    assert_eq!(status.open_connections, 1);
    until("listeners closed", || node.diary.has("closed a:1 443")).await;
    assert_eq!(a.stage(), Stage::Draining);
    assert!(!node.diary.has("route- 10.64.3.11"), "a connection without a route hangs");
    node.diary.write("connection ends".into());
    drop(connection);
    let status = session.phase("a", 1, Phase::Drained).await;
    assert_eq!((status.open_connections, status.reason.as_str()), (0, "ordered"));
    let ends = node.diary.position("connection ends");
    assert!(ends < node.diary.position("acceptor- a:1"), "an open request may still call out");
    assert!(ends < node.diary.position("route- 10.64.3.11"));
    assert_eq!(a.stage(), Stage::Closed);
    assert!(a.svid.current().is_none());
    session.send(remove("a", 1)).await;
    session.phase("a", 1, Phase::Drained).await;
    until("forgotten", || node.table.load().is_empty()).await;
}

#[tokio::test]
async fn a_drain_that_takes_too_long_cuts_what_is_open_and_says_how_much() {
    let mut impatient = endpoint("a", 1, 11, State::Ready);
    impatient.drain_timeout_ms = 30;
    let (node, _novalet, mut session) = with(vec![impatient]).await;
    session.phase("a", 1, Phase::Serving).await;
    let a = node.endpoint("a");
    let connection = a.take_connection().expect("below the cap");
    let mut stage = a.watch_stage();
    tokio::spawn(async move {
        stage.wait_for(|stage| *stage == Stage::Closed).await.map(drop).expect("the endpoint lives");
        drop(connection);
    });
    session.send(remove("a", 1)).await;
    let status = session.phase("a", 1, Phase::Drained).await;
    assert_eq!((status.open_connections, status.reason.as_str()), (1, "drain_timeout"));
}

#[tokio::test]
async fn while_novalet_is_away_everything_is_served_and_its_return_changes_nothing() {
    // covers: A2 (F-CS03)
    let dir = tempfile::tempdir().expect("a folder");
    let socket = dir.path().join("novalet.sock");
    let mut novalet = FakeNovalet::start_at(socket.clone());
    let node = Node::start();
    node.call(&socket, me());
    let (mut session, _) = novalet.session().await;
    session.send(snapshot(vec![endpoint("a", 1, 11, State::Ready), endpoint("b", 1, 12, State::Ready)])).await;
    session.phase("b", 1, Phase::Serving).await;
    until("a serves", || node.endpoint("a").stage() == Stage::Serving).await;
    let before = node.diary.lines();
    let (a, connection) = (node.endpoint("a"), node.endpoint("a").take_connection().expect("below the cap"));

    drop(session);
    novalet.stop();
    let mut novalet = FakeNovalet::start_at(socket.clone());
    let (session, _) = novalet.session().await;
    drop(session);
    let (mut session, _) = novalet.session().await;
    assert_eq!(node.diary.lines(), before, "two streams without a snapshot remove nothing");

    session.send(snapshot(vec![endpoint("a", 1, 11, State::Ready)])).await;
    session.phase("a", 1, Phase::Serving).await;
    // covers: A2 (F-CS02)
    session.phase("b", 1, Phase::Drained).await;
    assert!(std::sync::Arc::ptr_eq(&a, &node.endpoint("a")), "the same endpoint, with its connections");
    assert_eq!(a.open_connections(), 1);
    drop(connection);
    let since: Vec<_> = node.diary.lines().split_off(before.len());
    assert!(since.iter().all(|line| !line.contains("a:1") && !line.ends_with("3.11")), "{since:?}");
}

#[tokio::test]
async fn a_lost_guest_is_suspended_until_a_newer_generation_comes() {
    // covers: A2 (T2)
    let (node, _novalet, mut session) = with(vec![endpoint("a", 1, 11, State::Ready)]).await;
    session.phase("a", 1, Phase::Serving).await;
    let a = node.endpoint("a");
    node.control.presence_lost(&a.spec().pod_uid, 0);
    node.control.presence_lost(&a.spec().pod_uid, 1);
    assert_eq!(session.phase("a", 1, Phase::Waiting).await.reason, "presence_lost");
    assert_eq!(a.stage(), Stage::Waiting);
    assert!(node.diary.has("acceptor- a:1"), "nobody with its CID or socket is let in");
    session.send(Op::Upsert(endpoint("a", 1, 11, State::Ready))).await;
    session.applied().await;
    assert_eq!(a.stage(), Stage::Waiting, "the same generation does not revive it");
    session.send(Op::Upsert(endpoint("a", 2, 11, State::Ready))).await;
    session.phase("a", 2, Phase::Serving).await;
}

#[tokio::test]
async fn a_guest_that_is_gone_without_a_word_is_lost_once_it_was_there() {
    // covers: A2 (T2)
    let portless = proto::Endpoint { ports: Vec::new(), ..endpoint("c", 1, 13, State::Ready) };
    let (node, _novalet, mut session) = with(vec![endpoint("a", 1, 11, State::Ready), portless]).await;
    session.phase("a", 1, Phase::Serving).await;
    until("the other one serves", || node.endpoint("c").stage() == Stage::Serving).await;
    // One that only hangs is not.
    node.plane.set_health("a", Err(Reason::GuestUnreachable));
    assert_eq!(session.phase("a", 1, Phase::Unhealthy).await.reason, "guest_unreachable");
    node.plane.set_gone("a");
    assert_eq!(session.phase("a", 1, Phase::Waiting).await.reason, "presence_lost");
    node.plane.set_gone("c");
    assert_eq!(session.phase("c", 1, Phase::Waiting).await.reason, "presence_lost");
    // One that never came may come.
    node.plane.set_gone("b");
    node.plane.set_health("b", Err(Reason::GuestUnreachable));
    session.send(Op::Upsert(endpoint("b", 1, 12, State::Ready))).await;
    assert_eq!(session.phase("b", 1, Phase::SvidReady).await.reason, "guest_unreachable");
    node.plane.set_health("b", Ok(()));
    session.phase("b", 1, Phase::Serving).await;
}

#[tokio::test]
async fn ports_come_and_go_in_place() {
    // covers: A2
    let (node, _novalet, mut session) = with(vec![endpoint("a", 1, 11, State::Ready)]).await;
    session.phase("a", 1, Phase::Serving).await;
    let mut changed = endpoint("a", 1, 11, State::Ready);
    changed.ports = vec![port("other", 8443)];
    session.send(Op::Upsert(changed)).await;
    until("the new port listens", || node.diary.has("listen a:1 8443")).await;
    assert!(node.diary.has("close a:1 443"));
    assert_eq!(node.diary.lines().iter().filter(|line| line.starts_with("acceptor")).count(), 1);
}

#[tokio::test]
async fn an_endpoint_without_guest_waits_for_it() {
    // covers: A2 (K8)
    let mut early = endpoint("a", 1, 11, State::Pending);
    early.backend = None;
    let (node, _novalet, mut session) = with(vec![early]).await;
    assert_eq!(session.phase("a", 1, Phase::Waiting).await.reason, "waiting_for_backend");
    assert!(node.diary.lines().is_empty());
    session.send(Op::Upsert(endpoint("a", 1, 11, State::Pending))).await;
    session.phase("a", 1, Phase::Healthy).await;
}

#[tokio::test]
async fn shutting_down_gives_everything_back() {
    let (node, _novalet, mut session) = with(vec![endpoint("a", 1, 11, State::Ready)]).await;
    session.phase("a", 1, Phase::Serving).await;
    node.control.shutdown().await;
    assert!(node.diary.has("route- 10.64.3.11") && node.diary.has("acceptor- a:1"));
}
