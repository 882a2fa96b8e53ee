//! Outgoing TCP, from the address of the workload it is for.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt::IpBindAddressNoPort};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use thiserror::Error;
use tokio::net::{TcpSocket, TcpStream};

/// A destination that has not accepted by then counts as not answering.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// Dead peers of idle connections are found after [`STALL`]: with a user time-out set, the number of probes does not count.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A peer that takes none of the bytes that wait for it for this long is gone.
const STALL: Duration = Duration::from_secs(300);

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The workload's address cannot be used here.
    #[error("the workload's address is not usable on this node: {0}")]
    Source(#[source] io::Error),
    /// All ports between the workload's address and this destination are in use.
    #[error("no local port is left for this destination")]
    NoPort,
    /// The destination did not answer.
    #[error("no answer in time")]
    TimedOut,
    /// The destination refused, or there is no way to it.
    #[error("{0}")]
    Failed(#[source] io::Error),
}

/// Connects to `to` from `from`.
///
/// `IP_BIND_ADDRESS_NO_PORT` leaves the choice of the port to `connect`: without it ports run out per source address
/// instead of per destination. The socket option is one of IPv4 and works for IPv6 as well.
///
/// # Errors
/// [`ConnectError`]; time is up after [`CONNECT_DEADLINE`].
pub async fn connect(from: IpAddr, to: SocketAddr) -> Result<TcpStream, ConnectError> {
    let socket = prepared(from, to).map_err(ConnectError::Source)?;
    let connected = tokio::time::timeout(CONNECT_DEADLINE, socket.connect(to)).await;
    match connected {
        Err(_) => Err(ConnectError::TimedOut),
        Ok(Err(error)) if error.kind() == io::ErrorKind::AddrNotAvailable => Err(ConnectError::NoPort),
        Ok(Err(error)) if error.kind() == io::ErrorKind::TimedOut => Err(ConnectError::TimedOut),
        Ok(Err(error)) => Err(ConnectError::Failed(error)),
        Ok(Ok(stream)) => tune(&stream).map(|()| stream).map_err(ConnectError::Failed),
    }
}

fn prepared(from: IpAddr, to: SocketAddr) -> io::Result<TcpSocket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    setsockopt(&socket, IpBindAddressNoPort, &true)?;
    if from.is_ipv6() {
        socket.set_freebind_v6(true)?;
    }
    socket.bind(&SocketAddr::new(from, 0).into())?;
    Ok(TcpSocket::from_std_stream(std::net::TcpStream::from(socket)))
}

/// Whether `address` is one of this machine's own: what is sent to it would stay here. The kernel says so by choosing the
/// address itself as the source of packets to it; nothing is sent.
///
/// # Errors
/// When there is no socket to ask with.
pub fn is_local(address: IpAddr) -> io::Result<bool> {
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    // Without a way to it, it is not here.
    Ok(socket.connect((address, 9)).is_ok() && socket.local_addr()?.ip() == address)
}

/// Options that every TCP connection of the data plane has.
///
/// # Errors
/// Those of the socket calls.
pub fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    socket2::SockRef::from(stream).set_tcp_user_timeout(Some(STALL))?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4).with_retries(4);
    socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive)
}
