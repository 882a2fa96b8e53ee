//! The one home of `unsafe` in this crate. Each block says which invariant it needs and who keeps it.
#![allow(unsafe_code, reason = "raw descriptors and pages need it; see each block")]

mod memory;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

pub use self::memory::SecretBytes;

/// Takes ownership of a descriptor that the parent process left open for us, named by number in the configuration.
///
/// # Errors
/// When the number is one of the standard streams or names no open descriptor.
pub fn take_inherited_fd(fd: RawFd) -> io::Result<OwnedFd> {
    if fd <= 2 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "an inherited descriptor must be 3 or more"));
    }
    nix::fcntl::fcntl(
        // SAFETY: borrowed only for this call, which fails with EBADF if nothing is open there.
        unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) },
        nix::fcntl::FcntlArg::F_GETFD,
    )?;
    // SAFETY: the descriptor is open (checked above) and nobody else in this process owns it: it was inherited, and the
    // configuration names each inherited descriptor once, read at start before anything else is opened.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `accept4` with CLOEXEC and NONBLOCK.
///
/// # Errors
/// Those of the call.
pub fn accept_nonblocking(listener: &OwnedFd) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{SockFlag, accept4};
    let fd = accept4(listener.as_raw_fd(), SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC)?;
    // SAFETY: the kernel just made this descriptor for us; nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Bounds what the kernel may keep of data that came on an AF_VSOCK socket and was not read yet. A listener's bound is that of
/// the connections it accepts.
///
/// # Errors
/// Those of setsockopt(2).
pub fn bound_vsock_buffer(socket: &OwnedFd, bytes: u64) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    use nix::libc;
    /// Of `linux/vm_sockets.h`; its level is the address family.
    const SO_VM_SOCKETS_BUFFER_SIZE: libc::c_int = 0;
    // SAFETY: the kernel reads eight bytes from a local that lives until the call returns; the length says so.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::AF_VSOCK,
            SO_VM_SOCKETS_BUFFER_SIZE,
            (&raw const bytes).cast(),
            size_of::<u64>() as libc::socklen_t,
        )
    };
    nix::errno::Errno::result(result).map(drop).map_err(io::Error::from)
}

/// Registers a descriptor with the current runtime.
///
/// # Errors
/// Those of epoll.
pub fn register(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names one open descriptor for as long as it lives, and the `AsyncFd` owns it for all of its own
    // life: it cannot be closed or replaced underneath the registration.
    unsafe { tokio::io::unix::AsyncFd::register(fd) }.map_err(io::Error::from)
}

/// Lets the allocator give memory back to the kernel as soon as what needed it is gone. Left alone, glibc raises the size from which it
/// does so with the first large buffer that is freed, to 64 MiB: what many slow readers once needed stays for good. Call it before
/// threads start.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    {
        use nix::libc;
        /// glibc's own default; that it is said is what keeps it.
        const TRIM_THRESHOLD: libc::c_int = 128 * 1024;
        // SAFETY: sets a number of the allocator; no other thread is there to read it meanwhile. Its failure changes nothing.
        unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD) };
    }
}
