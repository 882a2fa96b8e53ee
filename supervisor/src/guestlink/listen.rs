//! Accepts what guests dial. An acceptor waits for nothing but the next connection and, moments, for those before it to be
//! taken up: a full backlog stalls every stream of a VM on hybrid links, so only a guest that floods its own fills it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};

use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, VsockAddr};
use tokio::io::unix::AsyncFd;
use tokio::net::UnixListener;

use super::GuestSocket;

/// Deep enough that a burst of a whole VM's connections fits.
const BACKLOG: i32 = 4096;

/// The hybrid listener of one VM: `<socket>_<port>`. Who calls is the path.
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    vmm_uid: u32,
}

/// What [`Listener::accept`] saw.
pub enum Accepted {
    /// A connection of the VM.
    Guest(GuestSocket),
    /// Somebody other than the VM's own VMM connected; the connection is closed.
    WrongPeer,
}

impl Listener {
    /// Binds `<vm socket>_<port>`, replacing a socket that a former process left.
    ///
    /// # Errors
    /// When the path cannot be bound, or holds something that is not a socket.
    pub fn bind(vm_socket: &Path, port: u32, vmm_uid: u32) -> io::Result<Self> {
        let mut name = vm_socket.as_os_str().to_owned();
        name.push(format!("_{port}"));
        let path = PathBuf::from(name);
        remove_stale_socket(&path)?;
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.bind(&socket2::SockAddr::unix(&path)?)?;
        socket.listen(BACKLOG)?;
        let listener: std::os::unix::net::UnixListener = OwnedFd::from(socket).into();
        Ok(Self { socket: UnixListener::from_std(listener)?, path, vmm_uid })
    }

    /// Where the socket is. Whoever owns the endpoint removes it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection.
    ///
    /// # Errors
    /// Those of `accept`; the caller backs off on a lack of descriptors.
    pub async fn accept(&self) -> io::Result<Accepted> {
        let (stream, _) = self.socket.accept().await?;
        if stream.peer_cred()?.uid() != self.vmm_uid {
            return Ok(Accepted::WrongPeer);
        }
        Ok(Accepted::Guest(stream.into_std()?))
    }
}

fn remove_stale_socket(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => std::fs::remove_file(path),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path holds something that is not a socket")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The AF_VSOCK listener of all guests. Who calls is the peer CID.
pub struct VsockListener {
    socket: AsyncFd<OwnedFd>,
}

impl VsockListener {
    /// Listens on `port` for every CID.
    ///
    /// # Errors
    /// When the kernel has no vsock or the port is taken.
    pub fn bind(port: u32) -> io::Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket::socket(AddressFamily::Vsock, SockType::Stream, flags, None)?;
        crate::sys::bound_vsock_buffer(&socket, super::VSOCK_BUFFER)?;
        socket::bind(socket.as_raw_fd(), &VsockAddr::new(nix::libc::VMADDR_CID_ANY, port))?;
        socket::listen(&socket, Backlog::new(BACKLOG)?)?;
        Ok(Self { socket: crate::sys::register(socket)? })
    }

    /// The next connection and the CID that the host's kernel says it came from.
    ///
    /// # Errors
    /// Those of `accept`.
    pub async fn accept(&self) -> io::Result<(u32, GuestSocket)> {
        loop {
            let mut ready = self.socket.readable().await?;
            let accepted = ready.try_io(|socket| crate::sys::accept_nonblocking(socket.get_ref()));
            let Ok(accepted) = accepted else { continue };
            let stream: OwnedFd = accepted?;
            let peer = socket::getpeername::<VsockAddr>(stream.as_raw_fd())?;
            return Ok((peer.cid(), StdUnixStream::from(stream)));
        }
    }
}
