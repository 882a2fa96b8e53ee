//! Opens a connection to something in a guest: transport, hello, status byte.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::socket::{self as sockets, AddressFamily, SockFlag, SockType, VsockAddr};
use nova_proto::framed::Channel;
use nova_proto::hello::{Hello, Kind, Status};
use nova_proto::link::{HYBRID_LINE_MAX, MIN_GUEST_PORT, hybrid_connect, parse_hybrid_ok};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::GuestStream;
use crate::reason::Reason;
use crate::state::endpoint::{Backend, EndpointSpec, Target};

/// How long transport, hello and the relay's answer may take together. The relay gives the app 5 s to accept.
const DIAL_DEADLINE: Duration = Duration::from_secs(8);

/// Between two tries while the process has no descriptor or memory for a connection. Who called has one already, and the lack
/// may be over in a moment.
const REST: Duration = Duration::from_millis(20);

/// Where guests are, on this node.
#[derive(Debug, Clone)]
pub struct LinkPorts {
    /// Folder of the per-pod folders with hybrid sockets.
    pub root: PathBuf,
    /// Port of the relay in every guest.
    pub guest_port: u32,
}

/// Why a guest connection could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The relay cannot be reached.
    #[error("the guest's relay cannot be reached")]
    Transport(#[source] io::Error),
    /// The relay answered that the app does not take the connection.
    #[error("the relay answered {0:?}")]
    Status(Status),
    /// No answer in time.
    #[error("the guest did not answer in time")]
    Timeout,
}

impl DialError {
    /// The reason for the audit record.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Transport(_) | Self::Timeout => Reason::GuestUnreachable,
            Self::Status(_) => Reason::GuestRefused,
        }
    }
}

/// Opens a connection to `target` in the endpoint's guest.
///
/// # Errors
/// [`DialError`], after at most 8 seconds.
pub async fn open(ports: &LinkPorts, endpoint: &EndpointSpec, target: &Target) -> Result<GuestStream, DialError> {
    tokio::time::timeout(DIAL_DEADLINE, open_unbounded(ports, endpoint, target))
        .await
        .unwrap_or(Err(DialError::Timeout))
}

/// Whether nobody is behind an endpoint's link: the VMM's socket is not there or nobody listens on it, or no VM has the CID. A VM
/// that says nothing is there.
pub async fn is_gone(ports: &LinkPorts, endpoint: &EndpointSpec) -> bool {
    use nix::libc::{ECONNREFUSED, ENODEV, ENOENT};
    let (connected, signs): (_, &[i32]) = match &endpoint.backend {
        Backend::Vsock { cid } => (connect_vsock(*cid, ports.guest_port).await, &[ENODEV]),
        Backend::Hybrid { file, .. } => {
            (UnixStream::connect(socket(ports, endpoint, file)).await, &[ECONNREFUSED, ENOENT])
        }
    };
    connected.err().and_then(|error| error.raw_os_error()).is_some_and(|code| signs.contains(&code))
}

fn socket(ports: &LinkPorts, endpoint: &EndpointSpec, file: &str) -> PathBuf {
    ports.root.join(endpoint.pod_uid.as_str()).join(file)
}

async fn open_unbounded(ports: &LinkPorts, endpoint: &EndpointSpec, target: &Target) -> Result<GuestStream, DialError> {
    let (mut stream, framed) = loop {
        match connect(ports, endpoint).await {
            Err(error) if is_a_lack(&error) => tokio::time::sleep(REST).await,
            connected => break connected.map_err(DialError::Transport)?,
        }
    };
    let (kind, target) = match target {
        Target::Tcp(port) => (Kind::Tcp, port.to_string()),
        Target::Socket(file) => (Kind::Socket, file.clone()),
    };
    let hello = Hello { kind, framed, token: endpoint.boot_token.0, target };
    let bytes = hello.encode().map_err(|error| DialError::Transport(io::Error::other(error)))?;
    stream.write_all(&bytes).await.map_err(DialError::Transport)?;
    let status = stream.read_u8().await.map_err(DialError::Transport)?;
    match Status::from_byte(status) {
        Some(Status::Ok) => Ok(Channel::new(stream, framed)),
        Some(status) => Err(DialError::Status(status)),
        None => Err(DialError::Transport(io::Error::new(io::ErrorKind::InvalidData, "unknown status byte"))),
    }
}

/// Whether a failed connect says nothing of the guest.
fn is_a_lack(error: &io::Error) -> bool {
    use nix::libc::{EMFILE, ENFILE, ENOBUFS, ENOMEM};
    error.raw_os_error().is_some_and(|code| [EMFILE, ENFILE, ENOMEM, ENOBUFS].contains(&code))
}

async fn connect(ports: &LinkPorts, endpoint: &EndpointSpec) -> io::Result<(UnixStream, bool)> {
    if ports.guest_port < MIN_GUEST_PORT {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "guest ports below 15000 belong to the VM's own agents",
        ));
    }
    match &endpoint.backend {
        Backend::Vsock { cid } => Ok((connect_vsock(*cid, ports.guest_port).await?, false)),
        Backend::Hybrid { file, half_close, .. } => {
            Ok((connect_hybrid(&socket(ports, endpoint, file), ports.guest_port).await?, !half_close))
        }
    }
}

async fn connect_hybrid(path: &std::path::Path, port: u32) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(path).await?;
    stream.write_all(hybrid_connect(port).as_bytes()).await?;
    // Byte by byte: what follows the line feed belongs to the guest.
    let mut line = Vec::with_capacity(HYBRID_LINE_MAX);
    loop {
        let byte = stream.read_u8().await?;
        if byte == b'\n' {
            break;
        }
        line.push(byte);
        if line.len() > HYBRID_LINE_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the muxer's answer is too long"));
        }
    }
    if parse_hybrid_ok(&line) {
        Ok(stream)
    } else {
        Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the muxer refused the port"))
    }
}

async fn connect_vsock(cid: u32, port: u32) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = sockets::socket(AddressFamily::Vsock, SockType::Stream, flags, None)?;
    crate::sys::bound_vsock_buffer(&socket, super::VSOCK_BUFFER)?;
    match sockets::connect(socket.as_raw_fd(), &VsockAddr::new(cid, port)) {
        Ok(()) | Err(nix::errno::Errno::EINPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let socket = crate::sys::register(socket)?;
    socket.writable().await?.clear_ready();
    if let code @ 1.. = sockets::getsockopt(socket.get_ref(), sockets::sockopt::SocketError)? {
        return Err(io::Error::from_raw_os_error(code));
    }
    let socket: OwnedFd = socket.into_inner();
    UnixStream::from_std(socket.into())
}
