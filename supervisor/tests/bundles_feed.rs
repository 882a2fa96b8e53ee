//! The bundle feed: what is refused, and that what was active stays; what is stored; what happens at start and at expiry.

mod bundles_support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bundles_support::{ALSO_B, HOUR, Node, ONLY_A, X_READS_A, X_READS_B, later, now, put, signed};
use nova_policy::bundle::{KeyPair, SigningKey};
use nova_supervisor::bundles::{BundleFeed, KEPT, Outcome, StoreError};

/// A node where serial 5 is active.
fn node_with_5() -> (Node, BundleFeed) {
    let node = Node::new();
    node.publish(&node.bundle(5, ONLY_A));
    let feed = node.feed();
    assert_eq!(feed.start(now()), Outcome::Activated(5));
    (node, feed)
}

/// `bytes` are refused for this reason, and serial 5 goes on deciding; the refusal is counted and told.
fn assert_refused(node: &Node, feed: &BundleFeed, bytes: &[u8], reason: &'static str) {
    node.publish(bytes);
    assert_eq!(feed.poll(now()), Outcome::Refused(reason));
    assert_eq!(node.active(), Some(5), "the old one must stay");
    assert!(node.allows(X_READS_A) && !node.allows(X_READS_B));
    let status = feed.status(now());
    assert_eq!(status.serial, Some(5));
    assert_eq!(status.last_error.map(|error| error.reason), Some(reason));
    assert!(status.failures[reason] > 0);
    assert_eq!(node.stored(), ["bundle-5.tar.gz"], "nothing refused is stored");
}

/// Takes the signature out of a bundle and packs the rest again.
fn unsigned(bundle: &[u8]) -> Vec<u8> {
    let mut packed = tar::Archive::new(flate2::read::GzDecoder::new(bundle));
    let mut rest = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    for entry in packed.entries().expect("a bundle") {
        let mut entry = entry.expect("an entry");
        let path = entry.path().expect("a name").into_owned();
        if path.as_os_str() != ".signatures.json" {
            let mut header = entry.header().clone();
            rest.append_data(&mut header, path, &mut entry).expect("memory");
        }
    }
    rest.into_inner().and_then(flate2::write::GzEncoder::finish).expect("memory")
}

// covers: A5b
#[test]
fn an_unsigned_bundle_is_refused_and_the_old_one_stays() {
    let (node, feed) = node_with_5();
    assert_refused(&node, &feed, &unsigned(&node.bundle(6, ALSO_B)), "unsigned");
}

// covers: A5b
#[test]
fn a_bundle_of_another_key_is_refused_and_the_old_one_stays() {
    let (node, feed) = node_with_5();
    let other = KeyPair::es256().expect("a key");
    let other = SigningKey::from_pem(other.private_pem.as_bytes()).expect("a signing key");
    let forged = signed(&other, bundles_support::NODE, 6, ALSO_B, HOUR);
    assert_refused(&node, &feed, &forged, "bad_signature");
}

// covers: A5b
#[test]
fn a_bundle_cut_off_anywhere_is_refused_and_the_old_one_stays() {
    let (node, feed) = node_with_5();
    let whole = node.bundle(6, ALSO_B);
    for cut in [0, 1, whole.len() / 3, whole.len() * 6 / 10, whole.len() - 1] {
        assert_refused(&node, &feed, &whole[..cut], "bad_archive");
    }
    node.publish(&whole);
    assert_eq!(feed.poll(now()), Outcome::Activated(6), "the whole one is taken at once");
}

// covers: A5b
#[test]
fn a_bundle_for_another_node_or_with_an_older_serial_is_refused() {
    let (node, feed) = node_with_5();
    assert_refused(&node, &feed, &node.bundle(4, ALSO_B), "older_serial");
    assert_refused(&node, &feed, &node.bundle(5, ALSO_B), "older_serial");
    let pair = KeyPair::es256().expect("a key");
    node.trust(&pair);
    let key = SigningKey::from_pem(pair.private_pem.as_bytes()).expect("a signing key");
    assert_refused(&node, &feed, &signed(&key, "node-2", 6, ALSO_B, HOUR), "scope_mismatch");
}

#[test]
fn a_bundle_that_is_no_file_or_has_gone_is_refused() {
    let (node, feed) = node_with_5();
    fs::remove_file(&node.file).expect("removed");
    assert_eq!(feed.poll(now()), Outcome::Refused("bundle_missing"));
    nix::unistd::mkfifo(&node.file, nix::sys::stat::Mode::S_IRUSR).expect("a pipe");
    assert_eq!(feed.poll(now()), Outcome::Refused("bundle_unreadable"), "and a pipe does not hang the feed");
    fs::remove_file(&node.file).expect("removed");
    let huge = fs::File::create(&node.file).expect("created");
    huge.set_len(nova_supervisor::bundles::MAX_BYTES + 1).expect("a sparse file");
    assert_eq!(feed.poll(now()), Outcome::Refused("too_large"));
    assert_eq!(node.active(), Some(5));
}

#[test]
fn one_bad_file_is_one_failure_until_it_changes() {
    let (node, feed) = node_with_5();
    node.publish(b"nonsense");
    assert_eq!(feed.poll(now()), Outcome::Refused("bad_archive"));
    for second in 1..100 {
        assert_eq!(feed.poll(later(second)), Outcome::Unchanged);
    }
    assert_eq!(feed.status(now()).failures["bad_archive"], 1);
}

// covers: A5b
#[test]
fn a_new_bundle_is_taken_without_a_restart_and_can_be_taken_back() {
    let (node, feed) = node_with_5();
    let mut changes = node.cell.watch();
    changes.mark_unchanged();
    node.publish(&node.bundle(6, ALSO_B));
    assert_eq!(feed.poll(now()), Outcome::Activated(6));
    assert!(changes.has_changed().expect("the cell lives"), "live connections are woken");
    assert!(node.allows(X_READS_B));
    node.publish(&node.bundle(7, ONLY_A));
    assert_eq!(feed.poll(now()), Outcome::Activated(7));
    assert!(!node.allows(X_READS_B) && node.allows(X_READS_A));
    assert!(feed.status(now()).last_error.is_none());
    let told = node.told.lock().expect("no panic").clone();
    assert_eq!(told, ["node-1@5", "node-1@6", "node-1@7"], "the hook hears of each policy");
}

#[test]
fn the_same_bytes_again_change_nothing() {
    let (node, feed) = node_with_5();
    let changes = node.cell.watch();
    node.publish(&fs::read(&node.file).expect("the bundle"));
    assert_eq!(feed.poll(now()), Outcome::Unchanged);
    assert!(!changes.has_changed().expect("the cell lives"));
    assert!(feed.status(now()).last_error.is_none());
}

// covers: A5b
#[test]
fn without_keys_everything_is_denied_until_they_come() {
    let node = Node::new();
    let keys = fs::read(&node.config.keys).expect("keys");
    put(&node.config.keys, b"");
    node.publish(&node.bundle(5, ONLY_A));
    let feed = node.feed();
    assert_eq!(feed.start(now()), Outcome::Refused("verification_keys"));
    assert_eq!(node.active(), None);
    put(&node.config.keys, &keys);
    assert_eq!(feed.poll(now()), Outcome::Activated(5), "no restart is needed");
}

// covers: A5b
#[test]
fn the_last_good_bundle_decides_after_a_restart_although_the_file_is_broken() {
    let (node, feed) = node_with_5();
    node.publish(b"nonsense");
    drop(feed);
    node.cell.activate(None);
    let feed = node.feed();
    assert_eq!(feed.start(now()), Outcome::Refused("bad_archive"));
    assert_eq!(node.active(), Some(5));
    assert_eq!(fs::read(node.stored_path(5)).expect("stored").len(), node_size(&node), "byte for byte as signed");
}

fn node_size(node: &Node) -> usize {
    let meta = fs::metadata(node.stored_path(5)).expect("stored");
    assert_eq!(meta.mode() & 0o7777, 0o600);
    usize::try_from(meta.size()).expect("fits")
}

#[test]
fn a_stored_bundle_that_was_tampered_with_is_passed_over_and_may_come_again() {
    let (node, feed) = node_with_5();
    let six = node.bundle(6, ALSO_B);
    node.publish(&six);
    assert_eq!(feed.poll(now()), Outcome::Activated(6));
    drop(feed);
    let mut damaged = six.clone();
    damaged.truncate(six.len() * 6 / 10);
    fs::write(node.stored_path(6), damaged).expect("damaged");
    node.publish(&node.bundle(4, ONLY_A));
    let feed = node.feed();
    assert_eq!(feed.start(now()), Outcome::Refused("older_serial"), "the mark survives the damage");
    assert_eq!(node.active(), Some(5), "the one before it decides");
    node.publish(&six);
    assert_eq!(feed.poll(now()), Outcome::Activated(6), "the damaged one may come again");
    drop(feed);
    assert_eq!(node.feed().start(now()), Outcome::Activated(6), "and is whole in the store");
}

#[test]
fn a_stored_bundle_under_another_name_is_refused() {
    let (node, feed) = node_with_5();
    drop(feed);
    fs::rename(node.stored_path(5), node.stored_path(9)).expect("renamed");
    fs::remove_file(&node.file).expect("removed");
    node.cell.activate(None);
    node.feed().start(now());
    assert_eq!(node.active(), None);
}

// covers: A5b
// covers: B7e
#[test]
fn an_expired_bundle_is_never_activated_from_its_file() {
    let node = Node::new();
    node.publish(&node.bundle_until(5, ONLY_A, HOUR));
    let feed = node.feed();
    assert_eq!(feed.start(later(HOUR)), Outcome::Refused("expired"));
    assert_eq!(node.active(), None);
    assert!(node.stored().is_empty());
}

// covers: A5b
// covers: B7e
#[test]
fn an_active_bundle_past_its_expiry_decides_for_its_grace_and_not_longer() {
    let node = Node::new();
    node.publish(&node.bundle_until(5, ONLY_A, HOUR));
    let feed = node.feed();
    assert_eq!(feed.start(now()), Outcome::Activated(5));
    assert_eq!(feed.poll(later(HOUR)), Outcome::Unchanged);
    let status = feed.status(later(HOUR));
    assert!(status.stale && status.denies_at.is_some(), "{status:?}");
    assert_eq!(feed.poll(later(2 * HOUR - 1)), Outcome::Unchanged);
    assert_eq!(node.active(), Some(5));
    assert_eq!(feed.poll(later(2 * HOUR)), Outcome::Expired);
    assert_eq!(node.active(), None, "nothing decides, so everything is denied");
    assert_eq!(feed.status(later(2 * HOUR)).last_error.map(|error| error.reason), Some("expired"));
    node.publish(&node.bundle_until(6, ONLY_A, 10 * HOUR));
    assert_eq!(feed.poll(later(2 * HOUR)), Outcome::Activated(6), "a fresh one ends it");
}

#[test]
fn the_grace_survives_a_restart_and_ends_when_it_would_have() {
    let node = Node::new();
    node.publish(&node.bundle_until(5, ONLY_A, HOUR));
    let feed = node.feed();
    feed.start(now());
    drop(feed);
    node.cell.activate(None);
    let feed = node.feed();
    assert_eq!(feed.start(later(HOUR + 1)), Outcome::Activated(5));
    drop(feed);
    node.cell.activate(None);
    node.feed().start(later(2 * HOUR));
    assert_eq!(node.active(), None);
}

#[test]
fn a_bundle_refused_for_the_clock_is_tried_again() {
    let node = Node::new();
    node.publish(&node.bundle_until(5, ONLY_A, HOUR));
    let feed = node.feed();
    assert_eq!(feed.start(later(HOUR + 100)), Outcome::Refused("expired"));
    // The clock was wrong and is set back; the retry is due when the clock passes the moment set for it.
    assert_eq!(feed.poll(now()), Outcome::Activated(5));
}

#[test]
fn a_store_that_cannot_be_written_keeps_the_old_one_and_is_tried_again() {
    let (node, feed) = node_with_5();
    // A folder where the new file must go: works for root too, unlike a mode.
    let blocked = node.config.store.join("bundle-6.tar.gz.tmp");
    fs::create_dir(&blocked).expect("created");
    node.publish(&node.bundle(6, ALSO_B));
    assert_eq!(feed.poll(now()), Outcome::Refused("store_failed"));
    assert_eq!(node.active(), Some(5));
    fs::remove_dir(&blocked).expect("removed");
    assert_eq!(feed.poll(later(1)), Outcome::Unchanged);
    assert_eq!(feed.poll(later(10)), Outcome::Activated(6));
}

#[test]
fn the_store_keeps_the_last_sixteen_and_finds_each_by_revision() {
    let (node, feed) = node_with_5();
    for serial in 6..=25 {
        node.publish(&node.bundle(serial, if serial % 2 == 0 { ALSO_B } else { ONLY_A }));
        assert_eq!(feed.poll(now()), Outcome::Activated(serial));
    }
    assert_eq!(node.stored().len(), KEPT);
    assert!(feed.by_revision("node-1@9", now()).is_none(), "dropped");
    assert!(feed.by_revision("nonsense", now()).is_none());
    for serial in 10..=25 {
        let policy = feed.by_revision(&format!("node-1@{serial}"), later(1000 * HOUR)).expect("kept, though expired");
        assert_eq!(policy.serial(), serial);
    }
}

#[test]
fn a_store_of_another_supervisor_is_refused_with_its_pid() {
    let (node, _feed) = node_with_5();
    let second = BundleFeed::open(&node.config, "node-1", Arc::clone(&node.cell), Box::new(|_| {}));
    let Err(StoreError::InUse { pid, .. }) = second else { unreachable!("the store was opened twice") };
    assert_eq!(pid, std::process::id().to_string());
}

#[test]
fn a_store_that_others_may_write_to_is_refused() {
    let node = Node::new();
    fs::create_dir(&node.config.store).expect("created");
    fs::set_permissions(&node.config.store, fs::Permissions::from_mode(0o770)).expect("chmod");
    let opened = BundleFeed::open(&node.config, "node-1", Arc::clone(&node.cell), Box::new(|_| {}));
    assert!(matches!(opened, Err(StoreError::Unsafe { .. })));
}

/// An attacker who may write the bundle file puts an old bundle there, still well signed and not expired.
// covers: B7f
#[test]
fn an_old_bundle_is_refused_by_the_mark_its_expiry_and_the_least_serial_of_a_wiped_node() {
    let (mut node, feed) = node_with_5();
    let old = node.bundle_until(3, ALSO_B, 10 * HOUR);
    assert_refused(&node, &feed, &old, "older_serial");
    drop(feed);
    // The mark outlives the process, and the expiry of everything that is stored.
    node.cell.activate(None);
    let feed = node.feed();
    assert_eq!(feed.start(later(9 * HOUR)), Outcome::Refused("older_serial"));
    assert_eq!(node.active(), Some(5));
    drop(feed);
    // A wiped store has forgotten the mark. What has expired is refused all the same, and what the operator says.
    fs::remove_dir_all(&node.config.store).expect("wiped");
    node.cell.activate(None);
    let feed = node.feed();
    assert_eq!(feed.start(later(10 * HOUR)), Outcome::Refused("expired"));
    drop(feed);
    node.config.min_serial = 5;
    let feed = node.feed();
    assert_eq!(feed.start(now()), Outcome::Refused("older_serial"));
    assert_eq!((node.active(), node.stored().len()), (None, 0));
    node.publish(&node.bundle(5, ONLY_A));
    assert_eq!(feed.poll(now()), Outcome::Activated(5));
    drop(feed);
    // And what is stored is no way around it.
    node.config.min_serial = 6;
    node.cell.activate(None);
    assert_eq!(node.feed().start(now()), Outcome::Refused("older_serial"));
    assert_eq!(node.active(), None);
}

// covers: A5b
#[test]
fn the_watch_sees_a_file_that_is_renamed_over() {
    let node = Node::at(SystemTime::now());
    node.publish(&node.bundle(5, ONLY_A));
    let feed = node.feed();
    assert_eq!(feed.start(SystemTime::now()), Outcome::Activated(5));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let watch = tokio::spawn(Arc::new(feed).watch());
        let mut changes = node.cell.watch();
        changes.mark_unchanged();
        node.publish(&node.bundle(6, ALSO_B));
        tokio::time::timeout(Duration::from_secs(20), changes.changed()).await.expect("seen").expect("the cell lives");
        watch.abort();
    });
    assert_eq!(node.active(), Some(6));
}
