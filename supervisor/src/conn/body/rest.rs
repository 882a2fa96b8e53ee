//! What a caller still sends on a stream of HTTP/2 whose body nobody reads any more.
//!
//! A stream that is dropped before its end is reset. A server may do that once its answer is whole (RFC 9113 section 8.1), but
//! clients that are still sending then lose the answer, among them Java's HttpClient and curl before version 8. So what they
//! send is read and forgotten: while they are answered, and for a moment after that.

use std::cell::{RefCell, RefMut};
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::{Either, select};
use h2::RecvStream;
use tokio::sync::Notify;
use tokio::time::timeout;

/// How long after the answer.
const TIME: Duration = Duration::from_secs(1);
/// How much in all.
const BYTES: usize = 8 * 1024 * 1024;

/// The receiving half of a stream, shared by the body and by whoever looks after its rest.
pub struct Rest {
    stream: RefCell<RecvStream>,
    let_go: Notify,
}

impl Rest {
    pub(super) fn new(stream: RecvStream) -> Self {
        Self { stream: RefCell::new(stream), let_go: Notify::new() }
    }

    pub(super) fn stream(&self) -> RefMut<'_, RecvStream> {
        self.stream.borrow_mut()
    }

    /// Whether h2 has reset the stream by itself, for a fault of its caller such as another length than announced. To be asked of a
    /// stream that is reset: what is left of its body is lost.
    #[must_use]
    pub fn is_at_fault(&self) -> bool {
        // Nobody waits here: on a stream that is over everything is ready.
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            match self.stream().poll_data(&mut cx) {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => return error.is_library() && error.is_reset(),
                Poll::Ready(None) | Poll::Pending => return false,
            }
        }
    }

    /// The body is gone: from here on nobody else reads.
    pub(super) fn let_go(&self) {
        self.let_go.notify_one();
    }

    /// Looks after the rest beside `answering`, which says whether the caller got a whole answer.
    pub async fn beside(&self, answering: impl Future<Output = bool>) {
        let (answering, forgetting) = (pin!(answering), pin!(self.forget()));
        match select(answering, forgetting).await {
            Either::Left((true, forgetting)) if !self.stream().is_end_stream() => {
                // After that a reset is all that is left to say.
                let _ = timeout(TIME, forgetting).await;
            }
            Either::Left(_) => {}
            Either::Right(((), answering)) => _ = answering.await,
        }
    }

    async fn forget(&self) {
        self.let_go.notified().await;
        let mut forgotten = 0;
        while forgotten < BYTES {
            let Some(Ok(data)) = poll_fn(|cx| self.stream().poll_data(cx)).await else { return };
            forgotten += data.len();
            // Fails only on a stream that is over, which has no window any more.
            let _ = self.stream().flow_control().release_capacity(data.len());
        }
    }
}
