//! Connections of the supervisor itself, to services of its operator. Nothing of a workload takes this way.

use std::io;
use std::path::Path;

use tokio::net::{TcpStream, UnixStream};

/// Connects to a host that the configuration names.
///
/// # Errors
/// Those of the system's resolver and of connect(2). The caller sets the deadline.
pub async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
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
