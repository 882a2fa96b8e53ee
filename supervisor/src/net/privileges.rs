//! What this process may do: as little as it can live with, given up before it reads its first foreign byte.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Gid, Uid, getegid, geteuid, setgroups, setresgid, setresuid};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_keep_capabilities, set_no_new_privs,
};

use crate::config::NodeConfig;

/// Why privileges could not be given up. The program must not go on.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// Capabilities belong to threads: one that runs already would keep them.
    #[error("privileges must be dropped before threads start, and {0} are running")]
    Threads(usize),
    /// `run_as` needs rights that the process does not have.
    #[error("run_as = {uid}:{gid} cannot be entered; start the supervisor as root, or leave run_as out")]
    RunAs {
        /// Wanted user.
        uid: u32,
        /// Wanted group.
        gid: u32,
        /// What the kernel says.
        #[source]
        source: nix::Error,
    },
    /// A step failed.
    #[error("{step} failed")]
    Step {
        /// What was being done.
        step: &'static str,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// The kernel says that a capability is still there.
    #[error("capabilities {0:?} could not be given up")]
    StillThere(CapabilitySet),
}

/// Allows as many open files as the hard limit does; returns that number. Each connection takes two descriptors.
///
/// # Errors
/// Those of the kernel.
pub fn raise_file_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// Becomes `run_as` and keeps `CAP_NET_BIND_SERVICE` alone. Call it before any thread starts, after the route helper did.
///
/// # Errors
/// When anything of it fails; the caller must end the program.
pub fn drop(node: &NodeConfig) -> Result<(), PrivilegeError> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(step("counting threads"))?.count();
    if threads != 1 {
        return Err(PrivilegeError::Threads(threads));
    }
    keep_only(CapabilitySet::NET_BIND_SERVICE, node.run_as)
}

/// Gives up every capability but `keep` in the calling thread, for good: bounding set, ambient set, no new privileges. Also
/// keeps other processes of the user from reading this one's memory, which holds keys.
pub(super) fn keep_only(keep: CapabilitySet, run_as: Option<(u32, u32)>) -> Result<(), PrivilegeError> {
    let before = capabilities(None).map_err(step("reading capabilities"))?;
    if before.effective.contains(CapabilitySet::SETPCAP) {
        shrink_bounding_set(keep)?;
    }
    if let Some((uid, gid)) = run_as {
        become_user(uid, gid)?;
    }
    clear_ambient_capability_set().map_err(step("clearing the ambient capabilities"))?;
    let kept = before.permitted & keep;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(step("dropping capabilities"))?;
    set_no_new_privs(true).map_err(step("setting no_new_privs"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(step("making memory private"))?;
    let after = capabilities(None).map_err(step("reading capabilities"))?;
    let left = (after.permitted | after.effective | after.inheritable) - keep;
    if left.is_empty() { Ok(()) } else { Err(PrivilegeError::StillThere(left)) }
}

fn shrink_bounding_set(keep: CapabilitySet) -> Result<(), PrivilegeError> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if keep.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // The first number that the kernel does not know.
            Err(rustix::io::Errno::INVAL) => return Ok(()),
            other => other.map_err(step("shrinking the bounding set"))?,
        }
    }
    Ok(())
}

fn become_user(uid: u32, gid: u32) -> Result<(), PrivilegeError> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    if geteuid() == user && getegid() == group && !user.is_root() {
        return Ok(());
    }
    // Else the kernel clears them with the change of user; what is not wanted goes right afterwards.
    set_keep_capabilities(true).map_err(step("keeping capabilities over setuid"))?;
    setgroups(&[])
        .and_then(|()| setresgid(group, group, group))
        .and_then(|()| setresuid(user, user, user))
        .map_err(|source| PrivilegeError::RunAs { uid, gid, source })?;
    set_keep_capabilities(false).map_err(step("clearing keepcaps"))
}

fn step<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> PrivilegeError {
    move |source| PrivilegeError::Step { step, source: source.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_limit_is_the_hard_one_afterwards() {
        let raised = raise_file_limit().expect("the soft limit may always rise to the hard one");
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("readable");
        assert_eq!((soft, hard), (raised, raised));
    }

    #[test]
    fn running_threads_are_refused_because_they_would_keep_their_capabilities() {
        let node = NodeConfig {
            id: "node-1".into(),
            mode: crate::config::Mode::Dev,
            instance: "a".into(),
            slot: 0,
            workers: 1,
            run_as: None,
        };
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || stopped.recv());
        assert!(matches!(drop(&node), Err(PrivilegeError::Threads(2..))));
        std::mem::drop(stop);
        thread.join().expect("joins").expect_err("the sender is gone");
    }

    // covers: D9j
    #[test]
    fn one_capability_is_left_and_none_can_come_back() {
        // Capabilities and no_new_privs belong to the thread; memory privacy to the process, which is harmless here.
        std::thread::spawn(|| {
            keep_only(CapabilitySet::NET_BIND_SERVICE, None).expect("giving up is always allowed");
            let after = capabilities(None).expect("readable");
            assert!((after.permitted - CapabilitySet::NET_BIND_SERVICE).is_empty());
            assert!(after.inheritable.is_empty());
            assert!(rustix::thread::no_new_privs().expect("readable"));
            let dumpable = rustix::process::dumpable_behavior().expect("readable");
            assert_eq!(dumpable, DumpableBehavior::NotDumpable, "a core file would hold keys and credentials");
        })
        .join()
        .expect("joins");
    }
}
