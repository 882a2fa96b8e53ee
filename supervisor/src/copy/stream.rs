//! Copies bytes between two connections until both sides are done, one is reset, or the copy is cut.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::net::stream::Stream;
use crate::reason::Reason;

/// A quarter of the CPU per byte of tokio's default of 8 KiB; more gains nothing.
const BUFFER: usize = 64 * 1024;
/// A peer that takes nothing for this long while bytes wait for it is gone.
const WRITE_DEADLINE: Duration = Duration::from_secs(300);

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
/// `first` is what was read from the caller already. `cut` resolves to the reason why the copy must end now.
pub async fn both_ways(caller: Stream, callee: Stream, first: Vec<u8>, cut: impl Future<Output = Reason>) -> Outcome {
    let (from_caller, to_caller) = (Cell::new(0), Cell::new(0));
    let (mut caller, mut callee) = (caller, callee);
    let close = {
        let (caller_read, caller_write) = tokio::io::split(&mut caller);
        let (callee_read, callee_write) = tokio::io::split(&mut callee);
        let up = one_way(caller_read, callee_write, &first, &from_caller);
        let down = one_way(callee_read, caller_write, &[], &to_caller);
        let carry = async {
            match tokio::try_join!(up, down) {
                Ok(_) => Reason::Done,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => Reason::IdleTimeout,
                Err(_) => Reason::Reset,
            }
        };
        tokio::select! {
            biased;
            reason = cut => reason,
            close = carry => close,
        }
    };
    if close != Reason::Done {
        tokio::join!(caller.abort(), callee.abort());
    }
    Outcome { from_caller: from_caller.get(), to_caller: to_caller.get(), close }
}

async fn one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    first: &[u8],
    count: &Cell<u64>,
) -> io::Result<()> {
    if !first.is_empty() {
        write(&mut to, first, count).await?;
    }
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        write(&mut to, &buffer[..read], count).await?;
    }
}

async fn write(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8], count: &Cell<u64>) -> io::Result<()> {
    let writing = async {
        to.write_all(bytes).await?;
        to.flush().await
    };
    tokio::time::timeout(WRITE_DEADLINE, writing).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    count.set(count.get() + bytes.len() as u64);
    Ok(())
}
