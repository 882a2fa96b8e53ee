//! How a body passes: in pieces at the endpoint's rate, and never standing still for longer than it may.

use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Frame;
use tokio::time::Instant;

use crate::gate::deadline::Deadline;
use crate::state::pace::Pace;

/// What holds for the bodies of one direction of a connection.
#[derive(Clone)]
pub struct BodyRules {
    pace: Rc<Pace>,
    /// Within each such time that is spent waiting for the sender at least so many bytes must come.
    progress: Option<(Duration, u64)>,
}

impl BodyRules {
    /// For the body of a request: at least a byte a second, so that nobody holds a place with single bytes.
    #[must_use]
    pub fn request(pace: Rc<Pace>, time: Duration) -> Self {
        Self { pace, progress: Some((time, time.as_secs().max(1))) }
    }

    /// For the body of an answer, which may be a stream of rare events: anything at all.
    #[must_use]
    pub fn answer(pace: Rc<Pace>, time: Duration) -> Self {
        Self { pace, progress: Some((time, 1)) }
    }

    /// For a stream whose sender may be silent for as long as it likes, as a gRPC client is.
    #[must_use]
    pub fn without_time(self) -> Self {
        Self { progress: None, ..self }
    }
}

/// A body on its way, under its rules or without any.
#[derive(Default)]
pub(super) struct Flow {
    rules: Option<BodyRules>,
    progress: Progress,
    /// Charged, and sent on when the pause is over.
    due: Option<Bytes>,
    pause: Deadline,
    /// Came in the same frame, not charged yet.
    rest: Bytes,
}

impl Flow {
    pub(super) fn under(rules: Option<BodyRules>) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Whether nothing that came is still held back.
    pub(super) fn is_empty(&self) -> bool {
        self.due.is_none() && self.rest.is_empty()
    }

    /// The next frame of `source`, or of what is held back of the last one. `late` is the error for a sender that stands still.
    pub(super) fn poll<E>(
        &mut self,
        cx: &mut Context<'_>,
        mut source: impl FnMut(&mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, E>>>,
        late: impl FnOnce() -> E,
    ) -> Poll<Option<Result<Frame<Bytes>, E>>> {
        loop {
            if self.due.is_some() {
                ready!(self.pause.poll_over(cx));
                return Poll::Ready(self.due.take().map(|piece| Ok(Frame::data(piece))));
            }
            if !self.rest.is_empty() {
                self.charge_next();
                continue;
            }
            let Poll::Ready(frame) = source(cx) else {
                return self.progress.poll_late(self.rules.as_ref(), cx).map(|()| Some(Err(late())));
            };
            let frame = match frame {
                Some(Ok(frame)) => frame,
                over => return Poll::Ready(over),
            };
            match frame.into_data() {
                Ok(data) => {
                    self.progress.moved(data.len() as u64, self.rules.as_ref());
                    if data.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                    self.rest = data;
                }
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
    }

    fn charge_next(&mut self) {
        let pace = self.rules.as_ref().map(|rules| &rules.pace);
        let limited = pace.and_then(|pace| Some((pace, pace.piece()?)));
        let Some((pace, most)) = limited else {
            self.due = Some(std::mem::take(&mut self.rest));
            return;
        };
        let piece = self.rest.split_to(self.rest.len().min(most));
        let wait = pace.charge(piece.len());
        if !wait.is_zero() {
            self.pause.start(wait);
        }
        self.due = Some(piece);
    }
}

/// Time that was spent waiting for the sender. What the receiver, or the rate, holds up does not count.
#[derive(Default)]
struct Progress {
    came: u64,
    waited: Duration,
    since: Option<Instant>,
    late: Deadline,
}

impl Progress {
    fn moved(&mut self, bytes: u64, rules: Option<&BodyRules>) {
        if let Some(since) = self.since.take() {
            self.waited += since.elapsed();
            self.late.stop();
        }
        self.came += bytes;
        if rules.and_then(|rules| rules.progress).is_none_or(|(_, least)| self.came >= least) {
            self.came = 0;
            self.waited = Duration::ZERO;
        }
    }

    fn poll_late(&mut self, rules: Option<&BodyRules>, cx: &mut Context<'_>) -> Poll<()> {
        let Some((time, _)) = rules.and_then(|rules| rules.progress) else { return Poll::Pending };
        if self.since.is_none() {
            self.since = Some(Instant::now());
            self.late.start(time.saturating_sub(self.waited));
        }
        self.late.poll(cx)
    }
}
