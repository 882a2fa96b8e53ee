//! Ends a connection so that the last answer arrives: write it, close this side, read and forget the rest for a moment.
//! Closing with unread bytes would reset the connection and could destroy the answer on its way.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::deadline::Deadline;

/// How long and how far the peer is still read.
const DRAIN_TIME: Duration = Duration::from_secs(1);
const DRAIN_BYTES: usize = 8 * 1024 * 1024;

#[derive(Debug)]
enum Stage {
    Answer(Bytes),
    Shut,
    Drain(usize),
    Done,
}

/// A connection on its way out.
#[derive(Debug)]
pub(super) struct Closing {
    stage: Stage,
    deadline: Deadline,
}

impl Closing {
    /// Begins with `answer`, which may be empty.
    pub(super) fn with_answer(answer: Bytes) -> Self {
        Self { stage: Stage::Answer(answer), deadline: Deadline::default() }
    }

    pub(super) fn poll<S>(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        loop {
            match &mut self.stage {
                Stage::Answer(answer) if answer.is_empty() => self.stage = Stage::Shut,
                Stage::Answer(answer) => {
                    let written = ready!(Pin::new(&mut *stream).poll_write(cx, answer))?;
                    if written == 0 {
                        return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                    }
                    answer.advance(written);
                }
                Stage::Shut => {
                    ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
                    self.deadline.start(DRAIN_TIME);
                    self.stage = Stage::Drain(DRAIN_BYTES);
                }
                Stage::Drain(left) => {
                    ready!(poll_drain(stream, cx, left, &mut self.deadline));
                    self.stage = Stage::Done;
                }
                Stage::Done => return Poll::Ready(Ok(())),
            }
        }
    }
}

fn poll_drain<S: AsyncRead + Unpin>(
    stream: &mut S,
    cx: &mut Context<'_>,
    left: &mut usize,
    deadline: &mut Deadline,
) -> Poll<()> {
    let mut scratch = [0; 4096];
    while *left > 0 && deadline.poll(cx).is_pending() {
        let mut buf = ReadBuf::new(&mut scratch);
        match ready!(Pin::new(&mut *stream).poll_read(cx, &mut buf)) {
            Ok(()) if !buf.filled().is_empty() => *left = left.saturating_sub(buf.filled().len()),
            _ => break,
        }
    }
    Poll::Ready(())
}
