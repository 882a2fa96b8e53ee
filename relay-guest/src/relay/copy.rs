//! Copies bytes both ways between the app and the link, and carries what happens to either side as what it is:
//!
//! ```text
//! one side ends its direction  ->  the other side's direction ends too (FIN record, or shutdown); the rest goes on
//! one side breaks              ->  the other side is reset (RST record, or SO_LINGER 0), never ended
//! one side takes no more       ->  what the other says is forgotten; what it is told arrives whole, with its end
//! ```
//!
//! All connections share one read buffer: the runtime has one thread and a poll never nests. Only what a receiver does
//! not take at once is kept, at most one buffer's worth for each direction. An idle connection holds no buffer.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nova_proto::frame::HEAD_LEN;
use nova_proto::framed::Channel;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

use super::stream::Stream;

/// Bytes a read takes at most: with its head, one record of 64 KiB.
const BUFFER: usize = 64 * 1024 - HEAD_LEN;
/// To tell the host that the app broke the connection.
const ABORT_DEADLINE: Duration = Duration::from_secs(1);
/// For a side to end that is told everything and that nobody listens to any more: closing before it does would reset it.
const LINGER: Duration = Duration::from_secs(2);

thread_local! {
    static SHARED: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// Copies until both directions have ended or one side broke, then closes both accordingly.
pub async fn copy(mut app: Stream, mut link: Channel<Stream>) {
    let (mut up, mut down) = (Pipe::default(), Pipe::default());
    let mut end = run(&mut app, &mut link, &mut up, &mut down, Pipe::has_delivered).await;
    if end.is_ok() {
        let ended = timeout(LINGER, run(&mut app, &mut link, &mut up, &mut down, |pipe| pipe.done)).await;
        end = ended.unwrap_or(Ok(()));
    }
    match end {
        Ok(()) => {}
        Err((Side::App, error)) => {
            tracing::debug!(%error, "the app's side broke");
            app.reset_on_drop();
            if let Channel::Framed(framed) = &mut link {
                // Without an answer in time the link just closes, which the host reads as a reset too.
                let _ = timeout(ABORT_DEADLINE, framed.abort()).await;
            }
        }
        Err((Side::Link, error)) => {
            tracing::debug!(%error, "the link's side broke");
            app.reset_on_drop();
        }
    }
}

/// Moves bytes both ways until `is_over` holds for both directions, or a side breaks.
async fn run(
    app: &mut Stream,
    link: &mut Channel<Stream>,
    up: &mut Pipe,
    down: &mut Pipe,
    is_over: impl Fn(&Pipe) -> bool,
) -> Result<(), (Side, io::Error)> {
    poll_fn(|cx| {
        let sent = up.poll(cx, app, link).map_err(|error| (Side::App, error))?;
        let received = down.poll(cx, link, app).map_err(|error| (Side::Link, error))?;
        let is_done = is_over(up) && is_over(down);
        if is_done || (sent.is_ready() && received.is_ready()) { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    App,
    Link,
}

/// Which end of a pipe broke.
#[derive(Debug)]
enum Broken {
    Source(io::Error),
    Sink(io::Error),
}

/// One direction.
#[derive(Debug, Default)]
struct Pipe {
    /// `kept[sent..]` was read and is not written yet.
    kept: Vec<u8>,
    sent: usize,
    unflushed: bool,
    source_ended: bool,
    /// The sink takes no more; what the source says is read and forgotten.
    deaf: bool,
    done: bool,
}

impl Pipe {
    /// Whether everything that the sink will take is there.
    fn has_delivered(&self) -> bool {
        self.done || self.deaf
    }

    /// Moves what can be moved now; ready at the end, an error when the source broke.
    fn poll<R, W>(&mut self, cx: &mut Context<'_>, source: &mut R, sink: &mut W) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            match ready!(self.poll_on(cx, source, sink)) {
                Ok(()) => return Poll::Ready(Ok(())),
                Err(Broken::Source(error)) => return Poll::Ready(Err(error)),
                Err(Broken::Sink(error)) => {
                    tracing::debug!(%error, "a side takes no more");
                    (self.deaf, self.kept, self.sent) = (true, Vec::new(), 0);
                    self.done = self.source_ended;
                }
            }
        }
    }

    fn poll_on<R, W>(&mut self, cx: &mut Context<'_>, source: &mut R, sink: &mut W) -> Poll<Result<(), Broken>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        while !self.done {
            ready!(self.poll_write_kept(cx, sink)).map_err(Broken::Sink)?;
            if self.source_ended && self.deaf {
                self.done = true;
            } else if self.source_ended {
                ready!(Pin::new(&mut *sink).poll_shutdown(cx)).map_err(Broken::Sink)?;
                self.done = true;
            } else if SHARED.with_borrow_mut(|buffer| self.poll_move(cx, source, sink, buffer))?.is_pending() {
                return self.poll_idle(cx, sink);
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_kept<W: AsyncWrite + Unpin>(&mut self, cx: &mut Context<'_>, sink: &mut W) -> Poll<io::Result<()>> {
        while self.sent < self.kept.len() {
            self.sent += ready!(poll_write(cx, sink, &self.kept[self.sent..]))?;
            self.unflushed = true;
        }
        self.kept.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// One read and, right away, one write. Pending means that the source has nothing now.
    fn poll_move<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut R,
        sink: &mut W,
        buffer: &mut [u8],
    ) -> Result<Poll<()>, Broken>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut read = ReadBuf::new(buffer);
        match Pin::new(source).poll_read(cx, &mut read) {
            Poll::Pending => return Ok(Poll::Pending),
            Poll::Ready(result) => result.map_err(Broken::Source)?,
        }
        let bytes = read.filled();
        if bytes.is_empty() {
            self.source_ended = true;
            return Ok(Poll::Ready(()));
        }
        if self.deaf {
            return Ok(Poll::Ready(()));
        }
        let written = match poll_write(cx, sink, bytes) {
            Poll::Ready(result) => result.map_err(Broken::Sink)?,
            Poll::Pending => 0,
        };
        self.unflushed |= written > 0;
        self.kept.extend_from_slice(&bytes[written..]);
        Ok(Poll::Ready(()))
    }

    fn poll_idle<W: AsyncWrite + Unpin>(&mut self, cx: &mut Context<'_>, sink: &mut W) -> Poll<Result<(), Broken>> {
        self.kept = Vec::new();
        if self.unflushed && !self.deaf {
            ready!(Pin::new(sink).poll_flush(cx)).map_err(Broken::Sink)?;
            self.unflushed = false;
        }
        Poll::Pending
    }
}

fn poll_write<W: AsyncWrite + Unpin>(cx: &mut Context<'_>, sink: &mut W, bytes: &[u8]) -> Poll<io::Result<usize>> {
    match ready!(Pin::new(sink).poll_write(cx, bytes))? {
        0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        written => Poll::Ready(Ok(written)),
    }
}
