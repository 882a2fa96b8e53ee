//! Outgoing TCP, from the address of the workload it is for.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt::IpBindAddressNoPort};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::net::{TcpSocket, TcpStream};

/// A destination that has not accepted by then counts as not answering.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// Dead peers of idle connections are found after [`STALL`]: with a user time-out set, the number of probes does not count.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A peer that takes none of the bytes that wait for it for this long is gone.
const STALL: Duration = Duration::from_secs(300);

/// Connects to `to` from `from`.
///
/// `IP_BIND_ADDRESS_NO_PORT` leaves the choice of the port to `connect`: without it ports run out per source address
/// instead of per destination.
///
/// # Errors
/// Those of the socket calls; [`io::ErrorKind::TimedOut`] after 10 seconds.
pub async fn connect(from: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    if from.is_ipv4() {
        setsockopt(&socket, IpBindAddressNoPort, &true)?;
    } else {
        socket.set_freebind_v6(true)?;
    }
    socket.bind(&SocketAddr::new(from, 0).into())?;
    let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(socket));
    let stream = tokio::time::timeout(CONNECT_DEADLINE, socket.connect(to))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    tune(&stream)?;
    Ok(stream)
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
