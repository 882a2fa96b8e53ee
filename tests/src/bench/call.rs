//! How a caller gets to the app behind a proxy, and what it says there.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, ensure};
use nova_proto::hello::{Hello, Kind};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

/// Longest head of an answer to CONNECT.
const HEAD_MAX: usize = 4096;

/// A connection, whatever it is made of.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Where the proxy is.
#[derive(Clone)]
pub(super) enum Link {
    Tcp(SocketAddr),
    Unix(PathBuf),
    /// The hybrid socket of a guest: a hello goes first, as from the guest's relay.
    Guest {
        socket: PathBuf,
        token: [u8; 16],
    },
}

/// What is asked of the proxy before anything is said to the app.
#[derive(Clone)]
pub(super) enum Tunnel {
    Connect(String),
    Socks(String, u16),
}

/// What a caller does.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) link: Link,
    pub(super) tunnel: Option<Tunnel>,
    pub(super) tls: Option<(ServerName<'static>, TlsConnector)>,
    pub(super) request: Arc<str>,
}

impl Call {
    /// A connection to the app, or to a proxy that reads the requests.
    pub(super) async fn connect(&self) -> anyhow::Result<Box<dyn Stream>> {
        let mut stream = self.link.open(Kind::Proxy).await?;
        match &self.tunnel {
            None => {}
            Some(Tunnel::Connect(target)) => connect(&mut stream, target).await?,
            Some(Tunnel::Socks(host, port)) => socks(&mut stream, host, *port).await?,
        }
        Ok(match &self.tls {
            None => stream,
            Some((name, connector)) => Box::new(connector.connect(name.clone(), stream).await?),
        })
    }

    /// The same with another request.
    pub(super) fn saying(&self, request: &str) -> Self {
        Self { request: request.into(), ..self.clone() }
    }
}

impl Link {
    pub(super) async fn open(&self, kind: Kind) -> anyhow::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(addr) => {
                let tcp = TcpStream::connect(addr).await?;
                tcp.set_nodelay(true)?;
                Box::new(tcp)
            }
            Self::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Self::Guest { socket, token } => {
                let mut stream = UnixStream::connect(socket).await?;
                let hello = Hello { kind, framed: false, token: *token, target: String::new() };
                stream.write_all(&hello.encode()?).await?;
                Box::new(stream)
            }
        })
    }
}

/// RFC 9110, section 9.3.6.
async fn connect(stream: &mut Box<dyn Stream>, target: &str) -> anyhow::Result<()> {
    stream.write_all(format!("CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\n").as_bytes()).await?;
    let mut head = Vec::with_capacity(256);
    while !head.ends_with(b"\r\n\r\n") {
        // Nobody speaks before us, so nothing of the tunnel can be read here.
        ensure!(stream.read_buf(&mut head).await? > 0 && head.len() < HEAD_MAX, "no answer to CONNECT");
    }
    ensure!(head.starts_with(b"HTTP/1.1 200 "), "CONNECT: {}", String::from_utf8_lossy(&head));
    Ok(())
}

/// RFC 1928, without authentication.
async fn socks(stream: &mut Box<dyn Stream>, host: &str, port: u16) -> anyhow::Result<()> {
    stream.write_all(&[5, 1, 0]).await?;
    let mut method = [0; 2];
    stream.read_exact(&mut method).await?;
    ensure!(method == [5, 0], "SOCKS5: {method:?}");
    let length = u8::try_from(host.len()).context("a short name")?;
    let request = [&[5, 1, 0, 3, length], host.as_bytes(), &port.to_be_bytes()].concat();
    stream.write_all(&request).await?;
    // With an address of IPv4, which is what both of us have.
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).await?;
    ensure!(answer[..4] == [5, 0, 0, 1], "SOCKS5: {answer:?}");
    Ok(())
}
