//! A supervisor that is killed while it stores a bundle. A binary of its own: a child that another test starts would hold
//! the store's lock for the moment between fork and exec.

mod bundles_support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bundles_support::{Node, ONLY_A, now};
use nix::libc;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use nova_supervisor::bundles::Outcome;

/// One at a time: the children of both tests would hold each other's locks.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Killed at any moment of writing, the store holds whole bundles only, and the newest whole one decides.
// covers: A5b
#[test]
fn a_kill_between_write_and_rename_leaves_a_good_store() {
    // This very test is also the child that it kills.
    child_that_stores_for_ever();
    let _alone = alone();
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

/// An activation is stopped before and after each of its system calls, and killed there. Before the rename the old bundle
/// decides after the restart, from then on the new one; both are whole, and nothing half-written is left.
// covers: B7d
#[test]
fn a_kill_at_any_step_of_an_activation_leaves_a_good_bundle() {
    child_that_activates_once();
    let _alone = alone();
    let node = Node::new();
    let bundles = [node.bundle(1, ONLY_A), node.bundle(2, ONLY_A)];
    node.publish(&bundles[0]);
    assert_eq!(node.feed().start(now()), Outcome::Activated(1));
    fs::write(node.dir.path().join("next.bundle"), &bundles[1]).expect("written");
    let mut found = Vec::new();
    loop {
        let step = found.len();
        let ended = kill_at(step, node.dir.path());
        node.cell.activate(None);
        let feed = node.feed();
        feed.start(now());
        let active = node.active().expect("a good bundle is left");
        drop(feed);
        assert!(node.stored().iter().all(|name| name.ends_with(".tar.gz")), "{:?}", node.stored());
        for serial in 1..=active {
            let stored = fs::read(node.stored_path(serial)).expect("stored");
            assert!(stored == bundles[usize::from(serial == 2)], "step {step}: {serial} is whole");
        }
        let _ = fs::remove_file(node.stored_path(2));
        if ended {
            assert_eq!(active, 2, "an activation that was not killed");
            break;
        }
        found.push(active);
        assert!(step < 500, "an activation has an end");
    }
    assert!(found.is_sorted(), "once renamed, it stays: {found:?}");
    assert!(found.contains(&1) && found.contains(&2) && found.len() > 20, "before and after the rename: {found:?}");
}

/// Calls that change nothing anybody could find after a kill: memory, locks, clocks.
const OTHER: [i64; 8] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_getrandom,
];

/// Starts an activation and kills it at its stop number `step`, counted from 0. True: it had ended before.
fn kill_at(step: usize, dir: &Path) -> bool {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "a_kill_at_any_step_of_an_activation_leaves_a_good_bundle", "--nocapture"])
        .env("NOVA_TEST_ACTIVATE", dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let thread = announced_thread(&mut child);
    ptrace::attach(thread).expect("attached to a child of ours");
    waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stops");
    ptrace::setoptions(thread, ptrace::Options::PTRACE_O_TRACESYSGOOD).expect("set");
    child.stdin.take().expect("a pipe").write_all(b"go\n").expect("told");
    let mut stops = 0;
    let ended = loop {
        ptrace::syscall(thread, None).expect("it goes on");
        match waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stops or ends") {
            WaitStatus::PtraceSyscall(_) if OTHER.contains(&call_of(child.id(), thread)) => {}
            WaitStatus::PtraceSyscall(_) if stops == step => break false,
            WaitStatus::PtraceSyscall(_) => stops += 1,
            WaitStatus::Exited(_, code) => {
                assert_eq!(code, 0, "the activation went well");
                break true;
            }
            // A signal of its own would be one more step.
            other => assert!(matches!(other, WaitStatus::Stopped(..)), "{other:?}"),
        }
    };
    child.kill().expect("killed");
    // A thread that is traced is reaped by who traces it, before the process can be.
    while !ended && waitpid(thread, Some(WaitPidFlag::__WALL)).is_ok_and(is_alive) {}
    child.wait().expect("ended");
    ended
}

fn is_alive(status: WaitStatus) -> bool {
    !matches!(status, WaitStatus::Exited(..) | WaitStatus::Signaled(..))
}

/// The number of the call that a stopped thread is in.
fn call_of(process: u32, thread: Pid) -> i64 {
    let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall")).unwrap_or_default();
    text.split(' ').next().and_then(|number| number.trim().parse().ok()).unwrap_or(-1)
}

fn announced_thread(child: &mut Child) -> Pid {
    let errors = BufReader::new(child.stderr.take().expect("a pipe"));
    let told = errors.lines().map_while(Result::ok).find_map(|line| line.strip_prefix("thread ")?.parse().ok());
    Pid::from_raw(told.expect("the child says which thread activates"))
}

/// Never returns in the child, does nothing in the parent.
fn child_that_activates_once() {
    let Some(dir) = std::env::var_os("NOVA_TEST_ACTIVATE") else { return };
    let dir = Path::new(&dir);
    let feed = bundles_support::feed_in(dir, std::sync::Arc::default());
    let next = fs::read(dir.join("next.bundle")).expect("a bundle");
    eprintln!("thread {}", nix::unistd::gettid());
    std::io::stdin().read_line(&mut String::new()).expect("told to go");
    let outcome = feed.offer(&next, now());
    std::process::exit(i32::from(outcome != Outcome::Activated(2)));
}
