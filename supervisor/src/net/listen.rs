//! Listening sockets on workload addresses.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Deep enough for a burst between two turns of a busy thread.
pub const BACKLOG: i32 = 1024;

/// A socket that holds its port but accepts nothing yet.
///
/// `IP_FREEBIND` lets it exist before the address's route does; `SO_REUSEPORT` lets every thread of both instances have
/// one on the same address.
///
/// # Errors
/// When the port is taken by somebody who does not share it, or is not ours to bind.
pub fn bind(ip: IpAddr, port: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(SocketAddr::new(ip, port)), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    match ip {
        IpAddr::V4(_) => socket.set_freebind_v4(true)?,
        IpAddr::V6(_) => socket.set_freebind_v6(true)?,
    }
    socket.bind(&SocketAddr::new(ip, port).into())?;
    Ok(socket)
}

/// From here on the kernel accepts connections for the socket.
///
/// # Errors
/// Those of `listen`.
pub fn listen(socket: Socket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
