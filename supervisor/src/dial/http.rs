//! An HTTP/1.1 connection to an upstream or a guest's app, behind the gate.

use std::rc::Rc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use super::pool::Pool;
use crate::conn::body::{Lease, Meter, RequestBody};
use crate::gate::io::GatedIo;
use crate::gate::{GateHandle, Limits};
use crate::net::stream::Stream;
use crate::reason::Reason;

/// From the last byte of a request to the head of its answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(300);
/// A pooled connection whose last exchange has not left it after this long is stuck behind its peer.
const READY_DEADLINE: Duration = Duration::from_millis(100);

/// A connection that can carry one exchange at a time.
pub struct HttpUpstream {
    sender: SendRequest<RequestBody>,
    gate: GateHandle,
}

impl HttpUpstream {
    /// Starts HTTP/1.1 on a fresh connection.
    ///
    /// # Errors
    /// The reason for the record.
    pub async fn start(stream: Stream) -> Result<Self, Reason> {
        let io = GatedIo::client(stream, Limits::default());
        let gate = io.handle();
        let (sender, connection) = http1::handshake(TokioIo::new(io)).await.map_err(|_| Reason::UpstreamClosed)?;
        // Ends when the sender is dropped or the other side closes; its error is that of the exchange in progress.
        tokio::task::spawn_local(async move { drop(connection.await) });
        Ok(Self { sender, gate })
    }

    /// Whether another exchange may start on it, now or as soon as hyper has seen the end of the last one.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        !self.sender.is_closed() && self.gate.is_reusable()
    }
}

/// How sending went wrong.
pub enum SendFailure {
    /// Nothing of the request was sent: it may be tried on another connection.
    Unsent(Box<Request<RequestBody>>),
    /// The exchange failed.
    Failed(Reason),
}

/// Sends a request and waits for the head of the answer. `meter` counts the request's body: while it moves, the answer is
/// not late.
///
/// # Errors
/// [`SendFailure`]
pub async fn send(
    upstream: &mut HttpUpstream,
    request: Request<RequestBody>,
    meter: &Meter,
) -> Result<Response<Incoming>, SendFailure> {
    if !upstream.sender.is_ready() {
        let ready = tokio::time::timeout(READY_DEADLINE, upstream.sender.ready()).await;
        if !matches!(ready, Ok(Ok(()))) {
            return Err(SendFailure::Unsent(Box::new(request)));
        }
    }
    let sending = upstream.sender.try_send_request(request);
    match answer_in_time(sending, meter).await {
        None => Err(SendFailure::Failed(Reason::UpstreamTimeout)),
        Some(Ok(response)) => Ok(response),
        Some(Err(mut error)) => Err(match error.take_message() {
            Some(request) => SendFailure::Unsent(Box::new(request)),
            None if upstream.gate.refusal().is_some() => SendFailure::Failed(Reason::UpstreamMalformed),
            None => SendFailure::Failed(Reason::UpstreamClosed),
        }),
    }
}

async fn answer_in_time<T>(answer: impl Future<Output = T>, meter: &Meter) -> Option<T> {
    let mut answer = std::pin::pin!(answer);
    loop {
        let before = meter.bytes();
        match tokio::time::timeout(ANSWER_DEADLINE, answer.as_mut()).await {
            Ok(answer) => return Some(answer),
            Err(_) if meter.bytes() > before => {}
            Err(_) => return None,
        }
    }
}

/// Gives a connection back to its pool when the exchange ended as it should.
pub struct PoolLease {
    upstream: HttpUpstream,
    pool: Rc<Pool>,
}

impl PoolLease {
    /// A lease of a connection that came from, or will go to, `pool`.
    #[must_use]
    pub fn new(upstream: HttpUpstream, pool: Rc<Pool>) -> Box<Self> {
        Box::new(Self { upstream, pool })
    }
}

impl Lease for PoolLease {
    fn give_back(self: Box<Self>) {
        self.pool.put(self.upstream);
    }
}
