//! A timer that exists only once it was needed.

use std::{
    future::Future as _,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, Sleep};

/// Runs from [`Deadline::start`] to [`Deadline::stop`].
#[derive(Debug, Default)]
pub(crate) struct Deadline {
    sleep: Option<Pin<Box<Sleep>>>,
    runs: bool,
}

impl Deadline {
    /// Starts the timer unless it runs.
    pub(crate) fn start(&mut self, after: Duration) {
        if std::mem::replace(&mut self.runs, true) {
            return;
        }
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().reset(Instant::now() + after),
            None => self.sleep = Some(Box::pin(tokio::time::sleep(after))),
        }
    }

    pub(crate) fn stop(&mut self) {
        self.runs = false;
    }

    /// Ready when the time is up, pending for ever while the timer does not run.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.sleep {
            Some(sleep) if self.runs => sleep.as_mut().poll(cx),
            _ => Poll::Pending,
        }
    }

    /// Ready when the timer does not run, or its time is up; it is stopped then.
    pub(crate) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.runs {
            ready!(self.poll(cx));
            self.stop();
        }
        Poll::Ready(())
    }
}
