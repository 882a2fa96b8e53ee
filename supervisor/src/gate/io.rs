//! The gate around a stream: what hyper reads has passed it, and what hyper writes tells it which answers are out.
//!
//! Nobody has to call anything while a connection runs. The wrapper sees both directions, so it knows by itself when a
//! CONNECT or an upgrade was accepted (the rest passes unscanned) or not (HTTP goes on after an upgrade, the connection
//! ends after a CONNECT), and which answer belongs to a HEAD.
//!
//! On a refused request at a message boundary the wrapper waits until every earlier request is answered, writes the `400`
//! itself, closes its side and drains what the client still sends for a moment, so that a reset does not overtake the
//! answer; only then the reader gets the end of the stream. (It cannot leave that to the reader: hyper drops a stream
//! without closing it when any request on it named an upgrade.) In the middle of a body the reader gets an error. An answer
//! that did not wait for the end of its request, such as a denial, is protected from a reset in the same way.
//!
//! A server that refuses an upload answers, closes and does not care about the rest. So that its answer is read although
//! writing fails, what can no longer be written to it is dropped; the connection is never used again.

mod write;

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    Exchange, Gate, GateHandle, Limits, ReadState, Refusal, closing::Closing, deadline::Deadline, refusal_response,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Reads requests, writes answers.
    Server,
    /// Reads answers, writes requests.
    Client,
}

/// A stream behind a gate. See the module's text.
#[derive(Debug)]
pub struct GatedIo<S> {
    inner: S,
    role: Role,
    exchange: Exchange,
    limits: Limits,
    handle: GateHandle,
    /// Bytes read and not passed on; the first `ready` of them may be.
    held: BytesMut,
    ready: usize,
    /// The begin of something that was written only in part.
    unseen: BytesMut,
    head_time: Deadline,
    reader: Option<Waker>,
    closing: Option<Closing>,
    /// The server takes no more bytes.
    is_deaf: bool,
    /// An answer is under way that ends only with the connection.
    is_open_ended: bool,
    mark_open_ended: Option<fn(&S, bool)>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> GatedIo<S> {
    /// Around a stream that a server serves.
    pub fn server(inner: S, limits: Limits) -> Self {
        Self::new(inner, Role::Server, limits)
    }

    /// Around a stream that a client opened.
    pub fn client(inner: S, limits: Limits) -> Self {
        Self::new(inner, Role::Client, limits)
    }

    /// While an answer is under way that ends only with the connection, the end of the stream by itself makes it whole.
    /// `mark` is called when such an answer begins, and with `false` once all of it is written: what ends the stream between
    /// the two must not look like an end in good order.
    #[must_use]
    pub fn marking(self, mark: fn(&S, bool)) -> Self {
        Self { mark_open_ended: Some(mark), ..self }
    }

    fn new(inner: S, role: Role, limits: Limits) -> Self {
        let sent = limits.of_what_is_sent();
        let exchange = match role {
            Role::Server => Exchange::with(limits, sent),
            Role::Client => Exchange::with(sent, limits),
        };
        Self {
            inner,
            role,
            exchange,
            limits,
            handle: GateHandle::default(),
            held: BytesMut::new(),
            ready: 0,
            unseen: BytesMut::new(),
            head_time: Deadline::default(),
            reader: None,
            closing: None,
            is_deaf: false,
            is_open_ended: false,
            mark_open_ended: None,
        }
    }

    /// A view for the services behind the gate.
    pub fn handle(&self) -> GateHandle {
        self.handle.clone()
    }

    /// The stream itself.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The stream, and the bytes that were read from it and not passed on: after an accepted CONNECT or upgrade they are
    /// the first bytes of the tunnel.
    pub fn into_parts(self) -> (S, Bytes) {
        (self.inner, self.held.freeze())
    }

    /// The stream alone; bytes that were read and not passed on are lost.
    pub fn into_inner(self) -> S {
        self.inner
    }

    /// Closes this side and reads and forgets what the peer still sends, each for a bounded time. For a stream that comes back
    /// from hyper after a CONNECT was refused.
    ///
    /// # Errors
    /// When this side cannot be closed, or not in time.
    pub async fn close(mut self) -> io::Result<()> {
        let mut closing = self.closing.take().unwrap_or_else(|| Closing::with_answer(Bytes::new()));
        std::future::poll_fn(|cx| closing.poll(&mut self.inner, cx)).await
    }

    fn inbound(&self) -> &Gate {
        match self.role {
            Role::Server => self.exchange.request_gate(),
            Role::Client => self.exchange.answer_gate(),
        }
    }

    /// Shows inbound bytes to the gate: how many of them may be passed on.
    fn inspect(exchange: &mut Exchange, role: Role, bytes: &[u8]) -> Result<usize, Refusal> {
        match role {
            Role::Server => exchange.requests(bytes),
            Role::Client => exchange.answers(bytes),
        }
    }

    fn admit(&mut self, bytes: &[u8]) -> Option<usize> {
        match Self::inspect(&mut self.exchange, self.role, bytes) {
            Ok(release) => {
                self.note(release);
                Some(release)
            }
            Err(refusal) => {
                self.note_refusal(refusal);
                None
            }
        }
    }

    fn note(&mut self, release: usize) {
        if release > 0 {
            self.head_time.stop();
        }
        if !self.exchange.is_reusable() {
            self.handle.set_spent();
        }
    }

    fn note_refusal(&mut self, refusal: Refusal) {
        if self.handle.refusal().is_none() {
            self.handle.set_refusal(refusal);
        }
    }

    /// Passes on what is released of the held bytes, or says that there is nothing.
    fn pass_held(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        if self.ready == 0 && !self.held.is_empty() && self.handle.refusal().is_none() {
            let held = std::mem::take(&mut self.held);
            self.ready = self.admit(&held).unwrap_or(0);
            self.held = held;
        }
        let count = self.ready.min(buf.remaining());
        buf.put_slice(&self.held[..count]);
        self.held.advance(count);
        self.ready -= count;
        if self.held.is_empty() {
            // An idle connection holds no buffer.
            self.held = BytesMut::new();
        }
        count > 0
    }

    /// Keeps of the bytes that were read into `buf` behind `before` only what is released; true if that is any.
    fn sift(&mut self, buf: &mut ReadBuf<'_>, before: usize) -> bool {
        let mut release = 0;
        if self.held.is_empty() {
            release = self.admit(&buf.filled()[before..]).unwrap_or(0);
        }
        self.held.extend_from_slice(&buf.filled()[before + release..]);
        buf.set_filled(before + release);
        release > 0
    }

    /// What the reader gets when nothing more will come; `None` while more may come.
    fn end(&mut self, cx: &mut Context<'_>) -> Option<Poll<io::Result<()>>> {
        let refusal = self.handle.refusal();
        let over = self.role == Role::Server && self.exchange.read_state() == ReadState::Over;
        if refusal.is_none() && !over {
            return None;
        }
        if let Some(refusal) = refusal.filter(|_| self.role == Role::Client || self.inbound().refused_in_body()) {
            return Some(Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, refusal))));
        }
        if self.exchange.unanswered() > 0 {
            // hyper would give up the requests in progress if it saw the end now.
            return Some(self.park(cx));
        }
        let answer = || refusal.map(refusal_response).unwrap_or_default().into();
        let closing = self.closing.get_or_insert_with(|| Closing::with_answer(answer()));
        // An error while closing is the client's own doing, and the end of the stream all the same.
        Some(closing.poll(&mut self.inner, cx).map(|_| Ok(())))
    }

    fn park(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Whether the client has to wait for an answer before more of its bytes are read. While the answer to a CONNECT or
    /// an upgrade is due one read stays open, so that a client that goes away is noticed.
    fn must_wait(&self) -> bool {
        self.role == Role::Server
            && self.exchange.read_state() == ReadState::Waiting
            && !(self.held.is_empty() && self.exchange.request_gate().is_held())
    }

    /// Runs the clock of a partial head.
    fn poll_head_time(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.inbound().head_begun(self.held.len()) {
            self.head_time.stop();
            return Poll::Pending;
        }
        self.head_time.start(self.limits.head_time);
        ready!(self.head_time.poll(cx));
        match self.role {
            Role::Server => self.exchange.refuse_requests(Refusal::HeadTimeout),
            Role::Client => self.exchange.refuse_answers(Refusal::HeadTimeout),
        }
        self.note_refusal(Refusal::HeadTimeout);
        self.end(cx).unwrap_or(Poll::Pending)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for GatedIo<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.exchange.is_raw() && this.held.is_empty() {
            return Pin::new(&mut this.inner).poll_read(cx, buf);
        }
        loop {
            if this.pass_held(buf) {
                return Poll::Ready(Ok(()));
            }
            if let Some(end) = this.end(cx) {
                return end;
            }
            if this.must_wait() {
                return this.park(cx);
            }
            if this.inbound().is_held() {
                this.reader = Some(cx.waker().clone());
            }
            let before = buf.filled().len();
            match Pin::new(&mut this.inner).poll_read(cx, buf) {
                Poll::Ready(Ok(())) if buf.filled().len() > before => {
                    if this.sift(buf, before) {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(end) => return Poll::Ready(end),
                Poll::Pending => return this.poll_head_time(cx),
            }
        }
    }
}
