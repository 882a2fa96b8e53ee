//! A timer that exists only once it was needed.

use std::{
    future::Future as _,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep};

/// Runs from [`Deadline::start`] to [`Deadline::stop`].
#[derive(Debug, Default)]
pub(super) struct Deadline {
    sleep: Option<Pin<Box<Sleep>>>,
    runs: bool,
}

impl Deadline {
    /// Starts the timer unless it runs.
    pub(super) fn start(&mut self, after: Duration) {
        if std::mem::replace(&mut self.runs, true) {
            return;
        }
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().reset(Instant::now() + after),
            None => self.sleep = Some(Box::pin(tokio::time::sleep(after))),
        }
    }

    pub(super) fn stop(&mut self) {
        self.runs = false;
    }

    /// Ready when the time is up, pending for ever while the timer does not run.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.sleep {
            Some(sleep) if self.runs => sleep.as_mut().poll(cx),
            _ => Poll::Pending,
        }
    }
}
