//! One caller: a plain HTTP/1.1 client over rustls.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::case::Case;
use super::peers::Peer;

/// A call that takes longer is an error.
const DEADLINE: Duration = Duration::from_secs(10);

/// Whom to call, and what to say.
#[derive(Clone)]
pub(super) struct Call {
    addr: SocketAddr,
    name: ServerName<'static>,
    connector: TlsConnector,
    pub(super) request: Arc<str>,
}

impl Call {
    pub(super) fn new(peer: &Peer, connector: &TlsConnector, case: Case) -> anyhow::Result<Self> {
        let name = ServerName::try_from(peer.server_name)?;
        Ok(Self { addr: peer.addr, name, connector: connector.clone(), request: case.request(peer.server_name).into() })
    }
}

/// An open connection of a caller.
pub(super) struct Caller {
    stream: TlsStream<TcpStream>,
    buffer: Vec<u8>,
}

impl Caller {
    pub(super) async fn connect(call: &Call) -> anyhow::Result<Self> {
        let connecting = async {
            let tcp = TcpStream::connect(call.addr).await?;
            tcp.set_nodelay(true)?;
            call.connector.connect(call.name.clone(), tcp).await
        };
        let stream = tokio::time::timeout(DEADLINE, connecting).await.context("connect")?.context("connect")?;
        Ok(Self { stream, buffer: vec![0; 32 * 1024] })
    }

    /// Sends a request, reads the whole answer, gives its status.
    pub(super) async fn ask(&mut self, request: &str) -> anyhow::Result<u16> {
        tokio::time::timeout(DEADLINE, self.ask_unbounded(request)).await.context("no answer in time")?
    }

    async fn ask_unbounded(&mut self, request: &str) -> anyhow::Result<u16> {
        self.stream.write_all(request.as_bytes()).await?;
        let mut filled = 0;
        let end = loop {
            filled += self.read(filled).await?;
            if let Some(at) = self.buffer[..filled].windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at + 4;
            }
            ensure!(filled < self.buffer.len(), "a head without an end");
        };
        let (status, length) = read_head(std::str::from_utf8(&self.buffer[..end])?)?;
        let mut left = length.checked_sub(filled - end).context("more than one answer")?;
        while left > 0 {
            left = left.checked_sub(self.read(0).await?).context("more than the body")?;
        }
        Ok(status)
    }

    async fn read(&mut self, at: usize) -> io::Result<usize> {
        match self.stream.read(&mut self.buffer[at..]).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => Ok(read),
        }
    }
}

/// Status and length of the body.
fn read_head(head: &str) -> anyhow::Result<(u16, usize)> {
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("a status line")?.parse()?;
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .context("an answer without a length")?;
    Ok((status, length.1.trim().parse()?))
}
