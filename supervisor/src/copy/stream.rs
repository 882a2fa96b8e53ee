//! Copies bytes between two connections until both sides are done, one is reset, or the copy is cut.
//!
//! All copies of a thread share one read buffer: a poll never nests. Only what a receiver does not take at once is kept, at
//! most one buffer's worth for each direction, so an idle tunnel holds no buffer.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use nova_proto::frame;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::splice::{self, Pipe};
use crate::gate::deadline::Deadline;
use crate::net::stream::{Prefixed, Stream};
use crate::reason::Reason;
use crate::state::pace::Pace;

/// A quarter of the CPU per byte of tokio's default of 8 KiB; more gains nothing. With the head of its record it makes 64 KiB.
const BUFFER: usize = 64 * 1024 - frame::HEAD_LEN;
/// A peer that takes nothing for this long while bytes wait for it is gone.
const WRITE_DEADLINE: Duration = Duration::from_secs(300);
/// Once one side has ended, the other one may be silent for so long. Not a time for all of the rest: that would cut an
/// answer that is still on its way.
const HALF_CLOSED_IDLE: Duration = Duration::from_secs(300);

thread_local! {
    static SHARED: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// What a copy must keep to.
pub struct Bounds {
    /// From the caller to the callee.
    pub up: Pace,
    /// Back.
    pub down: Pace,
    /// How long neither side may say anything.
    pub idle: Duration,
}

/// How a copy ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes from the caller.
    pub from_caller: u64,
    /// Bytes to the caller.
    pub to_caller: u64,
    /// How it ended.
    pub close: Reason,
}

/// Carries bytes both ways, with half-close: the end of one direction ends only that direction.
///
/// What was read of either side already goes first. `cut` resolves to the reason why the copy must end now.
pub async fn both_ways(
    caller: Prefixed,
    callee: Prefixed,
    bounds: Bounds,
    cut: impl Future<Output = Reason>,
) -> Outcome {
    let ((from_caller, mut caller), (from_callee, mut callee)) = (caller.into_parts(), callee.into_parts());
    let activity = Activity::new();
    let mut up = OneWay::new(&bounds.up, &activity, from_caller);
    let mut down = OneWay::new(&bounds.down, &activity, from_callee);
    let close = {
        let carry = poll_fn(|cx| {
            let up = up.poll(cx, &mut caller, &mut callee)?;
            let down = down.poll(cx, &mut callee, &mut caller)?;
            if up.is_ready() && down.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
        });
        tokio::select! {
            biased;
            reason = cut => reason,
            carried = carry => closed_by(&carried),
            () = activity.until_idle(bounds.idle) => Reason::IdleTimeout,
        }
    };
    if close != Reason::Done {
        tokio::join!(caller.abort(), callee.abort());
    }
    Outcome { from_caller: up.bytes, to_caller: down.bytes, close }
}

fn closed_by(carried: &io::Result<()>) -> Reason {
    match carried {
        Ok(()) => Reason::Done,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Reason::IdleTimeout,
        Err(_) => Reason::Reset,
    }
}

/// When anything happened last, on either way.
struct Activity {
    last: Cell<Instant>,
    is_half_closed: Cell<bool>,
    /// Ways that wait for their turn at the endpoint's rate: that is our doing, not silence.
    held: Cell<u8>,
}

impl Activity {
    fn new() -> Self {
        Self { last: Cell::new(Instant::now()), is_half_closed: Cell::new(false), held: Cell::new(0) }
    }

    fn note(&self) {
        self.last.set(Instant::now());
    }

    /// One timer a connection, which looks what happened when it fires: bytes only note the time.
    async fn until_idle(&self, idle: Duration) {
        loop {
            if self.held.get() > 0 {
                self.note();
            }
            let most = if self.is_half_closed.get() { idle.min(HALF_CLOSED_IDLE) } else { idle };
            let (now, end) = (Instant::now(), self.last.get() + most);
            if now >= end {
                return;
            }
            // A side may end meanwhile, which shortens the time.
            tokio::time::sleep_until(end.min(now + HALF_CLOSED_IDLE)).await;
        }
    }
}

/// One direction.
struct OneWay<'a> {
    pace: &'a Pace,
    activity: &'a Activity,
    /// Read and not sent on yet.
    kept: Bytes,
    /// While much comes, and may pass without being read: what it goes through.
    pipe: Option<Pipe>,
    /// The pause that the rate asks for before that goes on.
    pause: Deadline,
    is_held: bool,
    /// How long it waits for the receiver.
    stalled: Deadline,
    is_unflushed: bool,
    has_ended: bool,
    is_done: bool,
    bytes: u64,
}

impl<'a> OneWay<'a> {
    /// `first` was read already.
    fn new(pace: &'a Pace, activity: &'a Activity, first: Bytes) -> Self {
        let mut way = Self {
            pace,
            activity,
            kept: Bytes::new(),
            pipe: None,
            pause: Deadline::default(),
            is_held: false,
            stalled: Deadline::default(),
            is_unflushed: false,
            has_ended: false,
            is_done: false,
            bytes: 0,
        };
        way.keep(first);
        way
    }

    /// Moves what can be moved now; ready at the end.
    fn poll(&mut self, cx: &mut Context<'_>, from: &mut Stream, to: &mut Stream) -> Poll<io::Result<()>> {
        while !self.is_done {
            ready!(self.poll_turn(cx));
            ready!(self.poll_in_time(cx, to))?;
            if self.has_ended {
                self.activity.is_half_closed.set(true);
                self.is_done = true;
            } else {
                ready!(self.poll_take(cx, from, to))?;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Waits for the turn of what is kept, at the endpoint's rate.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.pause.poll_over(cx));
        if std::mem::take(&mut self.is_held) {
            self.activity.held.update(|held| held - 1);
            self.activity.note();
        }
        Poll::Ready(())
    }

    /// Sends what is kept, and the end when that is all, unless nothing is taken for too long.
    fn poll_in_time(&mut self, cx: &mut Context<'_>, to: &mut Stream) -> Poll<io::Result<()>> {
        let sent = self.poll_send(cx, to);
        if sent.is_ready() {
            self.stalled.stop();
            return sent;
        }
        self.stalled.start(WRITE_DEADLINE);
        self.stalled.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, to: &mut Stream) -> Poll<io::Result<()>> {
        while !self.kept.is_empty() {
            let written = ready!(poll_write(cx, to, &self.kept))?;
            self.kept.advance(written);
            self.has_sent(written);
        }
        // A piece of nothing would hold on to all of what it was cut from.
        self.kept = Bytes::new();
        while let Some(pipe) = self.pipe.as_mut().filter(|pipe| !pipe.is_empty()) {
            let written = ready!(pipe.poll_drain(cx, to))?;
            self.has_sent(written);
        }
        if self.is_unflushed {
            ready!(Pin::new(&mut *to).poll_flush(cx))?;
            self.is_unflushed = false;
        }
        if self.has_ended {
            ready!(Pin::new(to).poll_shutdown(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Takes what the source has now.
    fn poll_take(&mut self, cx: &mut Context<'_>, from: &mut Stream, to: &mut Stream) -> Poll<io::Result<()>> {
        let Some(pipe) = self.pipe.as_mut().filter(|_| self.pace.piece().is_none()) else {
            self.pipe = None;
            return SHARED.with_borrow_mut(|buffer| self.poll_move(cx, from, to, buffer));
        };
        let Poll::Ready(filled) = pipe.poll_fill(cx, from, to) else {
            self.pipe = None;
            return Poll::Pending;
        };
        self.activity.note();
        self.has_ended = filled? == 0;
        Poll::Ready(Ok(()))
    }

    /// One read and, right away, one write.
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Stream,
        to: &mut Stream,
        buffer: &mut [u8],
    ) -> Poll<io::Result<()>> {
        let piece = self.pace.piece();
        let most = piece.map_or(buffer.len(), |piece| piece.min(buffer.len()));
        let mut read = ReadBuf::new(&mut buffer[..most]);
        ready!(Pin::new(&mut *from).poll_read(cx, &mut read))?;
        self.activity.note();
        let bytes = read.filled();
        self.has_ended = bytes.is_empty();
        if bytes.len() == BUFFER && splice::is_possible(from, to) {
            self.pipe = Pipe::take();
        }
        let mut written = 0;
        if piece.is_none()
            && !bytes.is_empty()
            && let Poll::Ready(taken) = poll_write(cx, to, bytes)
        {
            written = taken?;
            self.has_sent(written);
        }
        if written < bytes.len() {
            self.keep(Bytes::copy_from_slice(&bytes[written..]));
        }
        Poll::Ready(Ok(()))
    }

    /// Keeps what goes next, and asks for its turn.
    fn keep(&mut self, bytes: Bytes) {
        let is_limited = self.pace.piece().is_some() && !bytes.is_empty();
        let wait = if is_limited { self.pace.charge(bytes.len()) } else { Duration::ZERO };
        if !wait.is_zero() {
            self.pause.start(wait);
            self.is_held = true;
            self.activity.held.update(|held| held + 1);
        }
        self.kept = bytes;
    }

    fn has_sent(&mut self, bytes: usize) {
        self.is_unflushed = true;
        self.bytes += bytes as u64;
        self.activity.note();
    }
}

fn poll_write(cx: &mut Context<'_>, to: &mut Stream, bytes: &[u8]) -> Poll<io::Result<usize>> {
    match ready!(Pin::new(to).poll_write(cx, bytes))? {
        0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        written => Poll::Ready(Ok(written)),
    }
}
