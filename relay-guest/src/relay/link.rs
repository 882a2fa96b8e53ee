//! The one way between guest and host. A microVM has AF_VSOCK; a process guest has Unix sockets that an emulated muxer
//! serves. Only the host may dial the relay: on AF_VSOCK the kernel says who the peer is.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, VsockAddr, bind, listen, socket};
use tokio::net::{UnixListener, UnixStream};
use tokio_vsock::{VMADDR_CID_ANY, VsockListener, VsockStream};

use super::stream::Stream;
use crate::config::Link;

/// Connections that may wait to be accepted. A full backlog stalls a whole VM on hybrid links, and the crate's 128 fills
/// in one burst.
pub(crate) const BACKLOG: i32 = 4096;

impl Link {
    /// Opens a connection to a port of the host.
    ///
    /// # Errors
    /// When nobody listens there; some muxers say so only after two seconds.
    pub async fn dial(&self, port: u32) -> io::Result<Stream> {
        match self {
            Self::Vsock { host_cid } => {
                Ok(Stream::Vsock(VsockStream::connect(tokio_vsock::VsockAddr::new(*host_cid, port)).await?))
            }
            Self::Unix { dir } => Ok(Stream::Unix(UnixStream::connect(dir.join(format!("host_{port}"))).await?)),
        }
    }

    /// Listens for the host.
    ///
    /// # Errors
    /// When the port or path is taken or the guest has no such transport.
    pub fn listen(&self, port: u32) -> io::Result<LinkListener> {
        match self {
            Self::Vsock { host_cid } => Ok(LinkListener::Vsock { listener: listen_vsock(port)?, host_cid: *host_cid }),
            Self::Unix { dir } => {
                let path = dir.join(format!("guest_{port}"));
                Ok(LinkListener::Unix { listener: listen_unix(&path)?, path })
            }
        }
    }
}

/// Accepts connections of the host.
#[derive(Debug)]
pub enum LinkListener {
    /// In a microVM.
    Vsock {
        /// The socket.
        listener: VsockListener,
        /// The only peer that is let in.
        host_cid: u32,
    },
    /// In a process guest.
    Unix {
        /// The socket.
        listener: UnixListener,
        /// Removed on drop.
        path: PathBuf,
    },
}

impl LinkListener {
    /// The next connection of the host; any other peer is closed without a word.
    ///
    /// # Errors
    /// When the system cannot accept now.
    pub async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Vsock { listener, host_cid } => loop {
                let (stream, peer) = listener.accept().await?;
                if peer.cid() == *host_cid {
                    return Ok(Stream::Vsock(stream));
                }
                tracing::debug!(cid = peer.cid(), "closed a connection that does not come from the host");
            },
            Self::Unix { listener, .. } => Ok(Stream::Unix(listener.accept().await?.0)),
        }
    }
}

impl Drop for LinkListener {
    fn drop(&mut self) {
        if let Self::Unix { path, .. } = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn listen_vsock(port: u32) -> io::Result<VsockListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Vsock, SockType::Stream, flags, None)?;
    bind(fd.as_raw_fd(), &VsockAddr::new(VMADDR_CID_ANY, port))?;
    listen(&fd, Backlog::new(BACKLOG)?)?;
    Ok(VsockListener::from(fd))
}

/// Takes the path over from a predecessor: only one relay runs in a guest.
fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => UnixListener::bind(path),
    }
}
