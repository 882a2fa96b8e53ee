//! The emulated muxer for process guests: the host side of a hybrid vsock, faithful to vhost-device-vsock 0.3.0 where it hurts.
//!
//! ```text
//! supervisor --CONNECT p--> <pod dir>/v.sock --mux--> <guest dir>/guest_<p>          relay listens
//! relay ----------------> <guest dir>/host_<p> --mux--> <pod dir>/v.sock_<p>         supervisor listens
//! ```
//!
//! Like the real one it does **not** carry half-close: the first side that ends its sending direction ends the whole
//! connection, and what the other side had still to say is lost. What was sent before that is delivered. A port that
//! nobody serves is an end of file, without a word.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nova_proto::link;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use crate::sockets::{self, SocketError};

/// Connections that one guest may have: what the hybrid muxers of the VMMs allow.
const MAX_CONNECTIONS: usize = 1023;
/// Time for the `CONNECT` line.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(2);
/// Bytes per copy step.
const BUFFER: usize = 64 * 1024;

/// Where a muxer stands between host and guest.
#[derive(Debug, Clone)]
pub struct Mux {
    /// The hybrid socket in the pod's folder, with its file name.
    pub socket: PathBuf,
    /// Folder in which the guest listens as `guest_<port>` and finds `host_<port>`.
    pub guest: PathBuf,
    /// Ports that the guest may dial.
    pub host_ports: Vec<u32>,
}

impl Mux {
    /// Serves until it is dropped or a listener fails.
    ///
    /// # Errors
    /// When a socket cannot be made or accepting fails for good.
    pub async fn run(self) -> Result<(), SocketError> {
        let mux = Arc::new(self);
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut tasks = tokio::task::JoinSet::new();
        for port in &mux.host_ports {
            // The folder is private to the guest, whose relay has another uid than we: anybody in there may dial.
            let listener = listen_in_guest(&mux.guest.join(format!("host_{port}")))?;
            let target = PathBuf::from(format!("{}_{port}", mux.socket.display()));
            tasks.spawn(accept(listener, Arc::clone(&permits), move |stream| from_guest(stream, target.clone())));
        }
        let listener = sockets::listen(&mux.socket, 0o660, None)?;
        tasks.spawn(accept(listener, permits, move |stream| from_host(stream, mux.guest.clone())));
        while tasks.join_next().await.is_some() {}
        Ok(())
    }
}

fn listen_in_guest(path: &Path) -> Result<UnixListener, SocketError> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |source| SocketError::Io { what: "listen at", path: path.to_path_buf(), source };
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(failed)?;
    Ok(listener)
}

async fn accept<F, H>(listener: UnixListener, permits: Arc<Semaphore>, handle: F)
where
    F: Fn(UnixStream) -> H,
    H: Future<Output = ()> + Send + 'static,
{
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: give the open connections time to end.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        // Over the limit: the stream is dropped, which the dialler sees as an end of file.
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
        let work = handle(stream);
        tokio::spawn(async move {
            work.await;
            drop(permit);
        });
    }
}

async fn from_guest(stream: UnixStream, target: PathBuf) {
    if let Ok(host) = UnixStream::connect(&target).await {
        copy(stream, host).await;
    }
}

async fn from_host(mut stream: UnixStream, guest: PathBuf) {
    let Ok(Some(port)) = tokio::time::timeout(HANDSHAKE_DEADLINE, read_connect(&mut stream)).await else { return };
    let Ok(inner) = UnixStream::connect(guest.join(format!("guest_{port}"))).await else { return };
    if stream.write_all(format!("OK {port}\n").as_bytes()).await.is_ok() {
        copy(stream, inner).await;
    }
}

/// Reads byte by byte, since the first byte after the line belongs to the guest.
async fn read_connect(stream: &mut UnixStream) -> Option<u32> {
    let mut line = Vec::with_capacity(link::HYBRID_LINE_MAX);
    loop {
        let byte = stream.read_u8().await.ok()?;
        if byte == b'\n' {
            return link::parse_hybrid_connect(&line);
        }
        line.push(byte);
        if line.len() >= link::HYBRID_LINE_MAX {
            return None;
        }
    }
}

/// Copies until either side ends; then both ends are closed, whatever the other direction still had to say.
async fn copy(left: UnixStream, right: UnixStream) {
    let (left_read, left_write) = left.into_split();
    let (right_read, right_write) = right.into_split();
    tokio::select! {
        () = one_way(left_read, right_write) => {}
        () = one_way(right_read, left_write) => {}
    }
}

async fn one_way(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut buffer = vec![0; BUFFER];
    while let Ok(count) = from.read(&mut buffer).await {
        let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else { return };
        if to.write_all(chunk).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
