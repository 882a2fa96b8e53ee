//! What the wrapper writes: it learns from it which answers are out, and outlives a server that no longer reads.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Closing, GatedIo, Refusal, Role};

impl<S: AsyncRead + AsyncWrite + Unpin> GatedIo<S> {
    /// Follows what was written.
    fn follow(&mut self, written: &[u8]) -> io::Result<()> {
        if self.unseen.is_empty() {
            let used = self.follow_from(written)?;
            self.unseen.extend_from_slice(&written[used..]);
        } else {
            let mut unseen = std::mem::take(&mut self.unseen);
            unseen.extend_from_slice(written);
            let used = self.follow_from(&unseen)?;
            unseen.advance(used);
            self.unseen = if unseen.is_empty() { BytesMut::new() } else { unseen };
        }
        if self.unseen.len() > self.limits.of_what_is_sent().head_bytes {
            return Err(self.unfit(Refusal::HeadTooLarge));
        }
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        Ok(())
    }

    fn follow_from(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut used = 0;
        while used < bytes.len() {
            let seen = match self.role {
                Role::Server => self.exchange.answers(&bytes[used..]),
                Role::Client => self.exchange.requests(&bytes[used..]),
            };
            match seen {
                Ok(0) => break,
                Ok(seen) => used += seen,
                Err(refusal) => return Err(self.unfit(refusal)),
            }
        }
        self.note(0);
        if self.role == Role::Server {
            self.set_open_ended(self.exchange.answer_gate().is_to_close());
        }
        Ok(used)
    }

    fn set_open_ended(&mut self, is_open_ended: bool) {
        if self.is_open_ended != is_open_ended {
            self.is_open_ended = is_open_ended;
            if let Some(mark) = self.mark_open_ended {
                mark(&self.inner, is_open_ended);
            }
        }
    }

    /// Takes `len` bytes that could not be written as written, unless that is an error.
    fn unwritten(&mut self, error: io::Error, len: usize) -> io::Result<usize> {
        if self.role == Role::Server || self.exchange.is_raw() {
            return Err(error);
        }
        self.is_deaf = true;
        self.handle.set_spent();
        Ok(len)
    }

    /// Whether the client is in the middle of a request that was answered already, as a denied upload is.
    fn is_still_sent_to(&self) -> bool {
        let is_whole = self.inbound().between_messages() && self.held.is_empty();
        self.role == Role::Server && !self.exchange.is_raw() && !is_whole
    }

    fn unfit(&self, refusal: Refusal) -> io::Error {
        self.handle.set_sent_refusal(refusal);
        io::Error::new(io::ErrorKind::InvalidData, refusal)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for GatedIo<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = if this.is_deaf {
            buf.len()
        } else {
            let written = ready!(Pin::new(&mut this.inner).poll_write(cx, buf));
            written.or_else(|error| this.unwritten(error, buf.len()))?
        };
        if !this.exchange.is_raw() {
            this.follow(&buf[..written])?;
        }
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let all = bufs.iter().map(|buf| buf.len()).sum();
        let written = if this.is_deaf {
            all
        } else {
            let written = ready!(Pin::new(&mut this.inner).poll_write_vectored(cx, bufs));
            written.or_else(|error| this.unwritten(error, all))?
        };
        let mut left = written;
        for buf in bufs {
            if left == 0 || this.exchange.is_raw() {
                break;
            }
            let part = &buf[..left.min(buf.len())];
            this.follow(part)?;
            left -= part.len();
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.is_deaf {
            return Poll::Ready(Ok(()));
        }
        let flushed = ready!(Pin::new(&mut this.inner).poll_flush(cx));
        Poll::Ready(flushed.or_else(|error| this.unwritten(error, 0).map(drop)))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // Whoever serves shuts down after a whole answer only; a broken one is dropped.
        this.set_open_ended(false);
        let is_sent_to = this.is_still_sent_to();
        let closing = this.closing.get_or_insert_with(|| {
            if is_sent_to { Closing::with_answer(Bytes::new()) } else { Closing::of_this_side() }
        });
        closing.poll(&mut this.inner, cx)
    }
}
