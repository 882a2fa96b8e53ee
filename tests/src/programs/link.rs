//! Where a program in a guest connects to or listens: TCP, a Unix socket, or AF_VSOCK (inside a virtual machine only).

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, bail};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_vsock::{VMADDR_CID_ANY, VsockAddr, VsockListener, VsockStream};

/// Both directions of any of them.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A place.
#[derive(Debug, Clone)]
pub enum Place {
    /// `tcp:<address>:<port>`
    Tcp(String),
    /// `unix:<path>`
    Unix(PathBuf),
    /// `vsock:<cid>:<port>`; never on a machine that is not a guest.
    Vsock(u32, u32),
}

impl FromStr for Place {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (kind, rest) =
            text.split_once(':').context("a place is tcp:<ip>:<port>, unix:<path> or vsock:<cid>:<port>")?;
        Ok(match kind {
            "tcp" => Self::Tcp(rest.to_owned()),
            "unix" => Self::Unix(rest.into()),
            "vsock" => {
                let (cid, port) = rest.split_once(':').context("vsock:<cid>:<port>")?;
                let cid = if cid == "any" { VMADDR_CID_ANY } else { cid.parse()? };
                Self::Vsock(cid, port.parse()?)
            }
            other => bail!("unknown kind of place {other:?}"),
        })
    }
}

impl Place {
    /// Connects.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn connect(&self) -> std::io::Result<Box<dyn Duplex>> {
        Ok(match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Self::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Self::Vsock(cid, port) => Box::new(VsockStream::connect(VsockAddr::new(*cid, *port)).await?),
        })
    }

    /// Listens.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn listen(&self) -> std::io::Result<Listener> {
        Ok(match self {
            Self::Tcp(address) => Listener::Tcp(TcpListener::bind(address).await?),
            Self::Unix(path) => {
                // A socket file of an earlier run would refuse the bind.
                let _ = std::fs::remove_file(path);
                Listener::Unix(UnixListener::bind(path)?)
            }
            Self::Vsock(cid, port) => Listener::Vsock(VsockListener::bind(VsockAddr::new(*cid, *port))?),
        })
    }
}

/// A listening place.
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// Unix socket.
    Unix(UnixListener),
    /// AF_VSOCK.
    Vsock(VsockListener),
}

impl Listener {
    /// Accepts one connection.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn accept(&self) -> std::io::Result<Box<dyn Duplex>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
            Self::Vsock(listener) => Box::new(listener.accept().await?.0),
        })
    }
}
