//! The count around a stream of HTTP/2.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use super::closing::Closing;
use super::frames::{Flood, Frames, Peer, Turned};

/// A stream of HTTP/2 whose frames are counted. After a flood nothing is read from it any more; who serves a caller says
/// goodbye and closes, an app's connection fails.
pub struct CountedIo<S> {
    inner: S,
    peer: Peer,
    frames: Rc<RefCell<Frames>>,
    flooded: Flooded,
    refused: Rc<Notify>,
    closing: Option<Closing>,
    #[allow(dead_code, reason = "held for its Drop, which comes after the stream's")]
    kept: Option<Box<dyn Any>>,
}

/// Tells of a flood.
#[derive(Clone, Default)]
pub struct Flooded(Rc<(Cell<Option<Flood>>, Notify)>);

impl Flooded {
    /// The budget that ran out, if one did.
    #[must_use]
    pub fn get(&self) -> Option<Flood> {
        self.0.0.get()
    }

    /// Resolves when a budget runs out. Cancel-safe.
    pub async fn next(&self) -> Flood {
        loop {
            if let Some(flood) = self.get() {
                return flood;
            }
            self.0.1.notified().await;
        }
    }

    fn set(&self, flood: Flood) {
        self.0.0.set(Some(flood));
        self.0.1.notify_one();
    }
}

/// Tells of streams of a caller that the library refused before they were requests.
pub struct RefusedStreams {
    frames: Rc<RefCell<Frames>>,
    refused: Rc<Notify>,
}

impl RefusedStreams {
    /// The stream is a request.
    pub fn seen(&self, stream: u32) {
        self.frames.borrow_mut().seen(stream);
    }

    /// The next refusal that was sent already.
    #[must_use]
    pub fn get(&self) -> Option<Turned> {
        self.frames.borrow_mut().refused()
    }

    /// A stream that never became a request and was not refused either. To be asked when the connection is over.
    #[must_use]
    pub fn dropped(&self) -> Option<u32> {
        self.frames.borrow_mut().dropped()
    }

    /// Resolves with the next refusal. Cancel-safe.
    pub async fn next(&self) -> Turned {
        loop {
            if let Some(turned) = self.get() {
                return turned;
            }
            self.refused.notified().await;
        }
    }
}

/// Knows of the streams that were opened towards an app.
#[derive(Clone)]
pub struct OpenedStreams(Rc<RefCell<Frames>>);

impl OpenedStreams {
    /// The last one whose head was sent; 0: none. While it is the same, no other request has left.
    #[must_use]
    pub fn last(&self) -> u32 {
        self.0.borrow().highest()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> CountedIo<S> {
    /// Around a stream to `peer`.
    pub fn new(inner: S, peer: Peer) -> Self {
        let frames = Rc::new(RefCell::new(Frames::new(peer, Instant::now())));
        Self { inner, peer, frames, flooded: Flooded::default(), refused: Rc::default(), closing: None, kept: None }
    }

    /// The same, which keeps something until the stream is gone: the library has it in a task of its own.
    #[must_use]
    pub fn keeping(self, kept: impl Any) -> Self {
        Self { kept: Some(Box::new(kept)), ..self }
    }

    /// Tells of streams that never became requests.
    #[must_use]
    pub fn refused_streams(&self) -> RefusedStreams {
        RefusedStreams { frames: Rc::clone(&self.frames), refused: Rc::clone(&self.refused) }
    }

    /// Tells which streams were opened.
    #[must_use]
    pub fn opened_streams(&self) -> OpenedStreams {
        OpenedStreams(Rc::clone(&self.frames))
    }

    fn sent(&self, bytes: &[u8]) {
        if self.frames.borrow_mut().sent(bytes) {
            self.refused.notify_one();
        }
    }

    /// Tells of a flood.
    #[must_use]
    pub fn flooded(&self) -> Flooded {
        self.flooded.clone()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for CountedIo<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(flood) = this.flooded.get() {
            return match this.peer {
                Peer::Client => Poll::Pending,
                Peer::Server => Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, flood.as_str()))),
            };
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
        if let Err(flood) = this.frames.borrow_mut().received(&buf.filled()[before..], Instant::now()) {
            this.flooded.set(flood);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for CountedIo<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.inner).poll_write(cx, buf))?;
        this.sent(&buf[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.inner).poll_write_vectored(cx, bufs))?;
        let mut left = written;
        for buf in bufs {
            let part = &buf[..left.min(buf.len())];
            this.sent(part);
            left -= part.len();
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    /// A caller may still be sending: a reset must not overtake the GOAWAY that tells it why.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let closing = this.closing.get_or_insert_with(|| match this.peer {
            Peer::Client => Closing::with_answer(Bytes::new()),
            Peer::Server => Closing::of_this_side(),
        });
        closing.poll(&mut this.inner, cx)
    }
}
