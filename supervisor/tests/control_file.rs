//! Endpoints from a file: the same service, another source.

mod control_support;

use control_support::{Node, fast, until};
use nova_supervisor::control::file::FileSource;
use nova_supervisor::state::endpoint::Stage;

const ONE: &str = "
endpoints:
  - workload_id: service-a
    tenant: t
    pod_uid: pod-a
    generation: 1
    workload_ip: 127.0.0.21
    backend: {hybrid: {file: v.sock, half_close: false}}
    ports: [{name: https, port: 8443, target_port: 8080, mode: mtls, protocol: http}]
    state: ready
    boot_token: 000102030405060708090a0b0c0d0e0f
";

#[tokio::test]
async fn a_broken_file_changes_nothing_and_a_mended_one_is_followed() {
    // covers: A13, A12
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("endpoints.yaml");
    std::fs::write(&path, ONE).expect("writable");
    let node = Node::start();
    let watcher =
        tokio::spawn(FileSource::new(path.clone(), "node-1".into()).run(node.control.clone(), fast().file_poll));
    until("the endpoint is known", || !node.table.load().is_empty()).await;
    let a = node.endpoint("pod-a");
    until("it serves", || a.stage() == Stage::Serving).await;

    // A second valid endpoint beside a broken row: nothing of the file counts.
    let second = ONE.replace("endpoints:", "").replace("service-a", "service-b").replace("pod-a", "pod-b");
    std::fs::write(&path, format!("{ONE}{second}")).expect("writable");
    assert!(FileSource::new(path.clone(), "node-1".into()).load().is_err(), "two endpoints with one address");
    let renamed = dir.path().join("new");
    let second = second.replace("0.21", "0.22");
    std::fs::write(&renamed, format!("{ONE}{second}")).expect("writable");
    std::fs::rename(&renamed, &path).expect("same folder");
    until("the second serves", || node.table.load().iter().filter(|e| e.stage() == Stage::Serving).count() == 2).await;
    assert!(std::sync::Arc::ptr_eq(&a, &node.endpoint("pod-a")), "the first was not touched");

    std::fs::write(&path, format!("endpoints:{second}")).expect("writable");
    until("the first is drained and gone", || node.table.load().len() == 1).await;
    assert_eq!(a.stage(), Stage::Closed);
    watcher.abort();
}

// covers: C11b
#[tokio::test]
async fn a_drain_waits_for_connections_that_were_accepted_and_are_not_counted_yet() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("endpoints.yaml");
    let node = Node::start();
    let watcher = serving(&path, &node).await;
    let a = node.endpoint("pod-a");
    let accepting = a.accepting();
    std::fs::write(&path, ONE.replace("state: ready", "state: draining")).expect("writable");
    until("it drains", || a.stage() == Stage::Draining).await;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(a.stage(), Stage::Draining, "somebody may be in a queue");
    let late = a.take_connection().expect("one of them");
    drop(accepting);
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(a.stage(), Stage::Draining, "and is served now");
    drop(late);
    until("it is closed", || a.stage() == Stage::Closed).await;
    let status = a.status.load_full().expect("told");
    assert!(status.reason != "drain_timeout", "{status:?}");
    watcher.abort();
}

/// Watches `path` like a running supervisor, until the endpoint of `ONE` serves.
async fn serving(path: &std::path::Path, node: &Node) -> tokio::task::JoinHandle<std::convert::Infallible> {
    std::fs::write(path, ONE).expect("writable");
    let source = FileSource::new(path.to_owned(), "node-1".into());
    let watcher = tokio::spawn(source.run(node.control.clone(), fast().file_poll));
    until("it serves", || node.table.load().iter().any(|endpoint| endpoint.stage() == Stage::Serving)).await;
    watcher
}

#[tokio::test]
async fn half_a_file_that_is_valid_by_itself_ends_no_endpoint() {
    // covers: A12
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("endpoints.yaml");
    let node = Node::start();
    let watcher = serving(&path, &node).await;
    let a = node.endpoint("pod-a");
    // Somebody writes in place and is never done for long: at every look the file is another beginning of a list.
    for round in 0..40 {
        std::fs::write(&path, format!("endpoints: []\n{}", "#\n".repeat(round))).expect("writable");
        tokio::time::sleep(fast().file_poll / 2).await;
    }
    std::fs::write(&path, ONE).expect("writable");
    tokio::time::sleep(fast().file_poll * 5).await;
    assert_eq!(a.stage(), Stage::Serving);
    assert!(std::sync::Arc::ptr_eq(&a, &node.endpoint("pod-a")), "it was not touched");
    watcher.abort();
}

#[tokio::test]
async fn a_pipe_or_a_device_in_place_of_the_file_stops_nothing() {
    // covers: A12
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("endpoints.yaml");
    let node = Node::start();
    let watcher = serving(&path, &node).await;
    std::fs::remove_file(&path).expect("removable");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    assert!(FileSource::new(path.clone(), "node-1".into()).load().is_err(), "a pipe is no list");
    std::fs::remove_file(&path).expect("removable");
    std::os::unix::fs::symlink("/dev/zero", &path).expect("a link");
    assert!(FileSource::new(path.clone(), "node-1".into()).load().is_err(), "a device is no list");
    std::fs::remove_file(&path).expect("removable");
    std::fs::write(&path, ONE.replace("generation: 1", "generation: 2")).expect("writable");
    until("the mended file is followed", || {
        node.table.load().iter().any(|e| e.spec().generation == 2 && e.stage() == Stage::Serving)
    })
    .await;
    watcher.abort();
}
