//! The control protocol as a supervisor sees it, over a real socket.
#![allow(clippy::panic, reason = "a test says what it saw")]

mod common;

use std::sync::Arc;

use common::Supervisor;
use nova_novalet::{server, sockets, table::Table};
use nova_proto::control::endpoint_update::Op;
use nova_proto::control::supervisor_ack::Kind;
use nova_proto::control::{Applied, Endpoint, Hello, Phase};

struct Setup {
    folder: tempfile::TempDir,
    table: Arc<Table>,
}

impl Setup {
    fn new(uids: Vec<u32>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let table = Arc::new(Table::new(7));
        let listener = sockets::listen(&folder.path().join("c.sock"), 0o660, None).expect("listens");
        tokio::spawn(server::serve(listener, uids, Arc::clone(&table)));
        Self { folder, table }
    }

    fn own() -> Self {
        Self::new(vec![nix::unistd::geteuid().as_raw()])
    }

    fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("c.sock")
    }
}

fn endpoint(pod: &str, generation: u64) -> Endpoint {
    Endpoint { pod_uid: pod.into(), generation, isolation: "shared".into(), ..Endpoint::default() }
}

// covers: A2
#[tokio::test]
async fn a_peer_with_another_uid_is_cut_off_before_it_says_anything() {
    let setup = Setup::new(vec![nix::unistd::geteuid().as_raw() + 1]);
    let hello = Kind::Hello(Hello::default());
    let refused = match Supervisor::connect_with(&setup.socket(), hello).await {
        Ok(mut session) => session.try_next().await.is_err(),
        Err(_) => true,
    };
    assert!(refused);
    assert!(setup.table.slots().is_empty());
}

// covers: A2
#[tokio::test]
async fn a_session_that_does_not_start_with_a_hello_is_refused() {
    let setup = Setup::own();
    let mut session =
        Supervisor::connect_with(&setup.socket(), Kind::Applied(Applied { revision: 1 })).await.expect("a head");
    let status = session.try_next().await.expect_err("refused");
    assert_eq!(status.code(), tonic::Code::FailedPrecondition);
}

// covers: A2
#[tokio::test]
async fn a_supervisor_gets_a_snapshot_and_then_deltas_with_growing_revisions_of_one_epoch() {
    let setup = Setup::own();
    setup.table.upsert(endpoint("p", 1));
    let mut session = Supervisor::connect(&setup.socket(), 0).await;
    let snapshot = session.next().await;
    setup.table.upsert(endpoint("q", 1));
    setup.table.upsert(endpoint("q", 2));
    setup.table.remove("p", 1);
    let mut last = snapshot.revision;
    assert!(matches!(&snapshot.op, Some(Op::Snapshot(all)) if all.endpoints.len() == 1));
    for expected in ["q1", "q2", "-p1"] {
        let update = session.next().await;
        assert!(update.revision > last, "{expected}");
        assert_eq!(update.epoch, 7);
        last = update.revision;
        let got = match update.op {
            Some(Op::Upsert(endpoint)) => format!("{}{}", endpoint.pod_uid, endpoint.generation),
            Some(Op::Remove(key)) => format!("-{}{}", key.pod_uid, key.generation),
            other => panic!("a delta, not {other:?}"),
        };
        assert_eq!(got, expected);
    }
}

// covers: A2
#[tokio::test]
async fn answers_are_kept_per_endpoint_and_slot_and_a_second_session_of_a_slot_takes_its_place() {
    let setup = Setup::own();
    setup.table.upsert(endpoint("p", 1));
    let mut changes = setup.table.changes();
    let mut first = Supervisor::connect(&setup.socket(), 0).await;
    let revision = first.next().await.revision;
    first.ack(&endpoint("p", 1), Phase::Healthy).await;
    first.send(Kind::Applied(Applied { revision })).await;
    let seen = async {
        while !setup.table.slots().values().any(|slot| slot.applied == revision) {
            changes.changed().await.expect("the table lives");
        }
    };
    tokio::time::timeout(common::DEADLINE, seen).await.expect("in time");
    assert!(setup.table.any_reached("p", 1, &[Phase::Healthy]));
    let mut second = Supervisor::connect(&setup.socket(), 0).await;
    assert!(matches!(second.next().await.op, Some(Op::Snapshot(_))));
    let ended = first.try_next().await.expect_err("ended");
    assert_eq!(ended.code(), tonic::Code::Aborted);
    assert!(!setup.table.any_reached("p", 1, &[Phase::Healthy]), "answers of a former session count no more");
}
