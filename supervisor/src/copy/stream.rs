//! Copies bytes between two connections until both sides are done, one is reset, or the copy is cut.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

use crate::net::stream::Prefixed;
use crate::reason::Reason;
use crate::state::pace::Pace;

/// A quarter of the CPU per byte of tokio's default of 8 KiB; more gains nothing.
const BUFFER: usize = 64 * 1024;
/// A peer that takes nothing for this long while bytes wait for it is gone.
const WRITE_DEADLINE: Duration = Duration::from_secs(300);
/// Once one side has ended, the other one may be silent for so long. Not a time for all of the rest: that would cut an
/// answer that is still on its way.
const HALF_CLOSED_IDLE: Duration = Duration::from_secs(300);

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
    let (mut up, mut down) = (OneWay::new(&bounds.up, &activity), OneWay::new(&bounds.down, &activity));
    let close = {
        let (caller_read, caller_write) = tokio::io::split(&mut caller);
        let (callee_read, callee_write) = tokio::io::split(&mut callee);
        let carry = async {
            match tokio::try_join!(
                up.carry(caller_read, callee_write, &from_caller),
                down.carry(callee_read, caller_write, &from_callee)
            ) {
                Ok(_) => Reason::Done,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => Reason::IdleTimeout,
                Err(_) => Reason::Reset,
            }
        };
        tokio::select! {
            biased;
            reason = cut => reason,
            close = carry => close,
            () = activity.until_idle(bounds.idle) => Reason::IdleTimeout,
        }
    };
    if close != Reason::Done {
        tokio::join!(caller.abort(), callee.abort());
    }
    Outcome { from_caller: up.bytes, to_caller: down.bytes, close }
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

struct OneWay<'a> {
    pace: &'a Pace,
    activity: &'a Activity,
    bytes: u64,
}

impl<'a> OneWay<'a> {
    fn new(pace: &'a Pace, activity: &'a Activity) -> Self {
        Self { pace, activity, bytes: 0 }
    }

    async fn carry(
        &mut self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        first: &[u8],
    ) -> io::Result<()> {
        if !first.is_empty() {
            self.pass(&mut to, first).await?;
        }
        let mut buffer = vec![0; BUFFER];
        loop {
            let most = self.pace.piece().map_or(BUFFER, |piece| piece.min(BUFFER));
            let read = from.read(&mut buffer[..most]).await?;
            self.activity.note();
            if read == 0 {
                let ending = tokio::time::timeout(WRITE_DEADLINE, to.shutdown());
                ending.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
                self.activity.is_half_closed.set(true);
                return Ok(());
            }
            self.pass(&mut to, &buffer[..read]).await?;
        }
    }

    async fn pass(&mut self, to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
        let wait = if self.pace.piece().is_some() { self.pace.charge(bytes.len()) } else { Duration::ZERO };
        if !wait.is_zero() {
            self.activity.held.update(|held| held + 1);
            tokio::time::sleep(wait).await;
            self.activity.held.update(|held| held - 1);
            self.activity.note();
        }
        let writing = async {
            to.write_all(bytes).await?;
            to.flush().await
        };
        tokio::time::timeout(WRITE_DEADLINE, writing).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        self.activity.note();
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}
