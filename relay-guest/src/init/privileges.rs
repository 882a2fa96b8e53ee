//! `nova-init exec`: gives up every privilege, then becomes another program. A process of its own, so that dropping needs
//! no code between fork and exec, and so that what is dropped cannot come back.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities,
};

/// Why the program does not run.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// A privilege could not be dropped; the program was not started.
    #[error("cannot {what}: {source}; the program was not started")]
    Drop {
        /// Which.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The program cannot be started.
    #[error("cannot start {program:?}: {source}")]
    Start {
        /// The program.
        program: OsString,
        /// Why.
        source: io::Error,
    },
}

/// Becomes `command` with user and group `uid` (unchanged if none), no capability and no way to get one.
///
/// # Errors
/// Only on failure; otherwise this does not return.
pub fn exec(uid: Option<u32>, command: &[OsString]) -> Result<Infallible, ExecError> {
    drop_all(uid)?;
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| ExecError::Start { program: OsString::new(), source: io::ErrorKind::InvalidInput.into() })?;
    let source = Command::new(program).args(arguments).exec();
    Err(ExecError::Start { program: program.clone(), source })
}

fn drop_all(uid: Option<u32>) -> Result<(), ExecError> {
    // First, while CAP_SETPCAP is still there.
    drop_bounding_set().map_err(drop_error("empty the capability bounding set"))?;
    if let Some(id) = uid {
        setgroups(&[]).map_err(drop_error("leave all groups"))?;
        setgid(Gid::from_raw(id)).map_err(drop_error("change the group"))?;
        setuid(Uid::from_raw(id)).map_err(drop_error("change the user"))?;
    }
    clear_ambient_capability_set().map_err(drop_error("clear the ambient capabilities"))?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).map_err(drop_error("drop the capabilities"))?;
    prctl::set_no_new_privs().map_err(drop_error("set no_new_privs"))?;
    // Last, because a change of user clears it: nova-init's end is the program's end.
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(drop_error("tie the program to nova-init"))
}

/// Drops every capability that the kernel knows, also those younger than this program.
fn drop_bounding_set() -> io::Result<()> {
    let held = capabilities(None)?;
    for bit in 0..u64::BITS {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
            Ok(()) => {}
            // The kernel knows no more.
            Err(rustix::io::Errno::INVAL) if bit > 0 => break,
            // Nothing is held, and with no_new_privs nothing can be gained.
            Err(rustix::io::Errno::PERM) if held.permitted.is_empty() => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn drop_error<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> ExecError {
    move |source| ExecError::Drop { what, source: source.into() }
}
