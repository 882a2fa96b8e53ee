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

/// How long the peer may take to make room for the last answer and for the end of this side.
const ANSWER_TIME: Duration = Duration::from_secs(30);
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
    drains: bool,
    patience: Duration,
    deadline: Deadline,
}

impl Closing {
    /// Begins with `answer`, which may be empty.
    pub(super) fn with_answer(answer: Bytes) -> Self {
        Self { stage: Stage::Answer(answer), drains: true, patience: ANSWER_TIME, deadline: Deadline::default() }
    }

    /// Ends this side alone: the peer has sent nothing that would be left unread.
    pub(super) fn of_this_side() -> Self {
        Self { stage: Stage::Shut, drains: false, patience: ANSWER_TIME, deadline: Deadline::default() }
    }

    /// # Errors
    /// Those of the stream, and `TimedOut` when the peer makes no room: it is not waited for any longer.
    pub(super) fn poll<S>(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let closed = self.poll_stages(stream, cx);
        if closed.is_pending() && matches!(self.stage, Stage::Answer(_) | Stage::Shut) {
            self.deadline.start(self.patience);
            ready!(self.deadline.poll(cx));
            self.stage = Stage::Done;
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        closed
    }

    fn poll_stages<S>(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<()>>
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
                    self.deadline.stop();
                    self.deadline.start(DRAIN_TIME);
                    self.stage = if self.drains { Stage::Drain(DRAIN_BYTES) } else { Stage::Done };
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    async fn close(closing: &mut Closing, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
        std::future::poll_fn(|cx| closing.poll(stream, cx)).await
    }

    const PATIENCE: Duration = Duration::from_millis(50);

    // covers: A12b
    #[tokio::test]
    async fn a_peer_that_makes_no_room_for_the_last_answer_is_waited_for_until_the_deadline() {
        let (mut ours, _theirs) = tokio::io::duplex(4);
        let began = tokio::time::Instant::now();
        let answer = Closing::with_answer(Bytes::from_static(b"HTTP/1.1 400 Bad Request"));
        let mut closing = Closing { patience: PATIENCE, ..answer };
        let closed = close(&mut closing, &mut ours).await;
        assert_eq!(closed.expect_err("no room").kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= PATIENCE);
        assert!(close(&mut closing, &mut ours).await.is_ok(), "it is over");
    }

    // covers: A12b
    #[tokio::test]
    async fn a_peer_that_makes_no_room_for_the_end_of_this_side_is_waited_for_until_the_deadline() {
        for closing in [Closing::with_answer(Bytes::new()), Closing::of_this_side()] {
            let (ours, _theirs) = tokio::io::duplex(4);
            // The end is a record of its own here, and has no room behind these.
            let mut framed = nova_proto::framed::FramedStream::new(ours);
            framed.write_all(b"full").await.expect("kept");
            let began = tokio::time::Instant::now();
            let closed = close(&mut Closing { patience: PATIENCE, ..closing }, &mut framed).await;
            assert_eq!(closed.expect_err("no room").kind(), io::ErrorKind::TimedOut);
            assert!(began.elapsed() >= PATIENCE);
        }
    }
}
