//! A body that its sender holds back until somebody asks for it (`Expect: 100-continue`): the other side is asked whether it
//! wants it. An answer without a 100 is its refusal and spares the body; silence holds up nothing, for servers that know no 100.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;

use super::BodyError;
use crate::gate::deadline::Deadline;

/// How long the other side may keep silent before it gets the body all the same (RFC 9110, section 10.1.1 leaves the time open).
const SILENCE: Duration = Duration::from_secs(1);

const WAITS: u8 = 0;
const GOES: u8 = 1;
const ANSWERED: u8 = 2;
const GIVEN_UP: u8 = 3;

/// Lets a held body go; shared with what reads the answer, which hyper wants to be able to send to other threads.
#[derive(Clone, Default)]
pub struct GoAhead(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: AtomicU8,
    body: AtomicWaker,
}

impl GoAhead {
    /// The other side asks for the body.
    pub fn go(&self) {
        self.change(WAITS, GOES);
    }

    /// The other side has answered. A body that it has not asked for by then is not sent.
    pub(super) fn answered(&self) {
        self.change(WAITS, ANSWERED);
    }

    /// The answer is over, and with it the exchange.
    pub(super) fn give_up(&self) {
        self.change(ANSWERED, GIVEN_UP);
    }

    fn change(&self, from: u8, to: u8) {
        if self.0.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.0.body.wake();
        }
    }
}

/// The body's end of it.
pub(super) struct Held {
    ahead: GoAhead,
    silence: Deadline,
}

impl Held {
    pub(super) fn by(ahead: GoAhead) -> Self {
        Self { ahead, silence: Deadline::default() }
    }

    /// Ready when the body may go, or must not any more.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        self.ahead.0.body.register(cx.waker());
        match self.ahead.0.state.load(Ordering::Acquire) {
            WAITS => {
                self.silence.start(SILENCE);
                self.silence.poll(cx).map(Ok)
            }
            GOES => Poll::Ready(Ok(())),
            ANSWERED => Poll::Pending,
            _ => Poll::Ready(Err(BodyError::gone(None))),
        }
    }
}
