//! Connections of the supervisor itself, to services of its operator. Nothing of a workload takes this way.

use std::io;
use std::path::Path;

use tokio::net::{TcpStream, UnixStream};

use super::guard::{AddressGuard, Purpose};

/// Connects to a host that the configuration names.
///
/// # Errors
/// Those of the system's resolver and of connect(2). The caller sets the deadline.
pub async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects to a host that the configuration names, if every address of it is one that may be asked: neither loopback nor
/// link-local, where metadata services are. The address that was checked is the one that is dialled.
///
/// # Errors
/// Those of [`tcp`]; [`io::ErrorKind::PermissionDenied`] when one address is forbidden.
pub async fn guarded_tcp(host: &str, port: u16, guard: &AddressGuard) -> io::Result<TcpStream> {
    let addresses: Vec<_> = tokio::net::lookup_host((host.trim_matches(['[', ']']), port)).await?.collect();
    if let Some(bad) = addresses.iter().find(|addr| !guard.allows(addr.ip(), Purpose::Literal)) {
        let problem = format!("{host} leads to {}, which may not be asked", bad.ip());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    }
    let stream = TcpStream::connect(addresses.as_slice()).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects to a Unix socket that the configuration names.
///
/// # Errors
/// Those of connect(2).
pub async fn unix(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path).await
}
