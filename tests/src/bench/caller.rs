//! One caller: a plain HTTP/1.1 client.

use std::io;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::call::{Call, Stream};

/// What takes longer is an error.
const DEADLINE: Duration = Duration::from_secs(10);
/// What is read and written of long bodies at a time.
const PIECE: usize = 64 * 1024;

/// An open connection of a caller.
pub(super) struct Caller {
    stream: Box<dyn Stream>,
    buffer: Vec<u8>,
}

impl Caller {
    pub(super) async fn connect(call: &Call) -> anyhow::Result<Self> {
        let stream = in_time(call.connect()).await.context("connect")?;
        Ok(Self { stream, buffer: vec![0; PIECE] })
    }

    /// Sends a request, reads the whole answer, gives its status.
    pub(super) async fn ask(&mut self, request: &str) -> anyhow::Result<u16> {
        let asking = async {
            let (status, left) = self.begin(request).await?;
            self.read_body(left).await?;
            Ok(status)
        };
        in_time(asking).await
    }

    /// Sends a request and reads the head of the answer: its status, and how much of the body is still to come.
    pub(super) async fn begin(&mut self, request: &str) -> anyhow::Result<(u16, usize)> {
        self.stream.write_all(request.as_bytes()).await?;
        self.stream.flush().await?;
        self.head().await
    }

    /// Reads so much of a body.
    pub(super) async fn read_body(&mut self, mut left: usize) -> anyhow::Result<()> {
        while left > 0 {
            let most = left.min(self.buffer.len());
            left -= read(&mut self.stream, &mut self.buffer[..most]).await?;
        }
        Ok(())
    }

    /// Sends so much of a body.
    pub(super) async fn send_body(&mut self, mut left: usize) -> anyhow::Result<()> {
        while left > 0 {
            let most = left.min(self.buffer.len());
            self.stream.write_all(&self.buffer[..most]).await?;
            left -= most;
        }
        Ok(self.stream.flush().await?)
    }

    /// Sends the head of a request whose body comes by [`Caller::send_body`].
    pub(super) async fn announce(&mut self, request: &str) -> anyhow::Result<()> {
        Ok(self.stream.write_all(request.as_bytes()).await?)
    }

    /// The head of an answer.
    pub(super) async fn head(&mut self) -> anyhow::Result<(u16, usize)> {
        let mut filled = 0;
        let end = loop {
            filled += read(&mut self.stream, &mut self.buffer[filled..]).await?;
            if let Some(at) = self.buffer[..filled].windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at + 4;
            }
            ensure!(filled < self.buffer.len(), "a head without an end");
        };
        let (status, length) = read_head(std::str::from_utf8(&self.buffer[..end])?)?;
        let left = length.checked_sub(filled - end).context("more than one answer")?;
        Ok((status, left))
    }
}

/// What stands still is an error, and not a bench that hangs.
pub(super) async fn in_time<T>(what: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    timeout(DEADLINE, what).await.context("not in time")?
}

async fn read(stream: &mut Box<dyn Stream>, buffer: &mut [u8]) -> io::Result<usize> {
    match stream.read(buffer).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        read => Ok(read),
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
