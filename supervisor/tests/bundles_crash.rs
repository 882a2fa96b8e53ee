//! A supervisor that is killed while it stores a bundle. A binary of its own: a child that another test starts would hold
//! the store's lock for the moment between fork and exec.

mod bundles_support;

use std::fs;
use std::time::{Duration, Instant};

use bundles_support::{Node, ONLY_A, now};

/// Killed at any moment of writing, the store holds whole bundles only, and the newest whole one decides.
// covers: A5b
#[test]
fn a_kill_between_write_and_rename_leaves_a_good_store() {
    // This very test is also the child that it kills.
    child_that_stores_for_ever();
    let node = Node::new();
    node.publish(&node.bundle(1, ONLY_A));
    drop(node.feed());
    for serial in [1, 2] {
        fs::write(node.dir.path().join(format!("{serial}.bundle")), node.bundle(serial, ONLY_A)).expect("written");
    }
    for round in 0..20 {
        let child = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "a_kill_between_write_and_rename_leaves_a_good_store", "--nocapture"])
            .env("NOVA_TEST_STORE", &node.config.store)
            .env("NOVA_TEST_BUNDLES", node.dir.path())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn();
        let mut child = child.expect("started");
        // Until it has begun; then a little longer in each round, so that the kill falls on other steps.
        let deadline = Instant::now() + Duration::from_secs(20);
        while !node.config.store.join("bundle-2.tar.gz").exists() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let spins = Instant::now() + Duration::from_micros(137 * round);
        while Instant::now() < spins {
            std::hint::spin_loop();
        }
        child.kill().expect("killed");
        child.wait().expect("ended");
        node.cell.activate(None);
        let feed = node.feed();
        feed.start(now());
        assert_eq!(node.active(), Some(2), "round {round}");
        drop(feed);
        assert!(node.stored().iter().all(|name| name.ends_with(".tar.gz")), "{:?}", node.stored());
        for serial in [1, 2] {
            let stored = fs::read(node.stored_path(serial)).expect("stored");
            assert_eq!(stored, fs::read(node.dir.path().join(format!("{serial}.bundle"))).expect("original"));
        }
        fs::remove_file(node.stored_path(2)).expect("removed");
    }
}

/// Never returns in the child, does nothing in the parent.
fn child_that_stores_for_ever() {
    let (Some(store), Some(bundles)) = (std::env::var_os("NOVA_TEST_STORE"), std::env::var_os("NOVA_TEST_BUNDLES"))
    else {
        return;
    };
    let store = nova_supervisor::bundles::BundleStore::open(store.as_ref()).expect("the store");
    let bundles = std::path::PathBuf::from(bundles);
    let read = |serial: u64| fs::read(bundles.join(format!("{serial}.bundle"))).expect("a bundle");
    let (one, two) = (read(1), read(2));
    loop {
        store.save(1, &one).expect("saved");
        store.save(2, &two).expect("saved");
    }
}
