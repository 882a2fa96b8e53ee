//! The one home of `unsafe` in this crate. Each block says which invariant it needs and who keeps it.
#![allow(unsafe_code, reason = "tun devices and registered descriptors need it; see each block")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::libc::{self, c_char, c_short};

nix::ioctl_write_ptr_bad!(
    /// Of `linux/if_tun.h`: makes the descriptor that of a device.
    tun_set_iff,
    nix::request_code_write!(b'T', 202, size_of::<libc::c_int>()),
    libc::ifreq
);
nix::ioctl_write_int_bad!(
    /// The one user, beside the machine's root, who may attach to the device.
    tun_set_owner,
    nix::request_code_write!(b'T', 204, size_of::<libc::c_int>())
);

/// Makes the descriptor of `/dev/net/tun` that of a new tun device `name` without packet information. The device goes with
/// the last descriptor.
///
/// # Errors
/// When the caller may not, the name is too long or taken.
pub(crate) fn make_tun(file: &OwnedFd, name: &str, owner: Option<u32>) -> io::Result<()> {
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_TUN_EXCL;
    let mut wanted = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: c_short::from_ne_bytes(u16::try_from(flags).map_err(io::Error::other)?.to_ne_bytes()),
        },
    };
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in wanted.ifr_name.iter_mut().zip(name.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    // SAFETY: the kernel reads and writes one `ifreq`, which is ours and whole; the name ends in zero, checked above.
    unsafe { tun_set_iff(file.as_raw_fd(), &raw const wanted) }?;
    if let Some(owner) = owner {
        // SAFETY: takes a number and touches no memory of ours.
        unsafe { tun_set_owner(file.as_raw_fd(), owner.cast_signed()) }?;
    }
    Ok(())
}

/// Registers a descriptor with the current runtime.
///
/// # Errors
/// Those of epoll.
pub(crate) fn register(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    rustix::io::ioctl_fionbio(fd.as_fd(), true)?;
    // SAFETY: an `OwnedFd` names one open descriptor for as long as it lives, and the `AsyncFd` owns it for all of its own
    // life: it cannot be closed or replaced underneath the registration.
    unsafe { tokio::io::unix::AsyncFd::register(fd) }.map_err(io::Error::from)
}
