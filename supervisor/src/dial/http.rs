//! HTTP to an upstream or a guest's app: one exchange at a time on a connection of HTTP/1.1 behind the gate, or many on one
//! of HTTP/2.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use super::form;
use super::shared::{Place, SHUT_TIME, Shared};
use super::spare::{Spare, is_undone};
use crate::conn::body::{Meter, RequestBody};
use crate::conn::reply::Form;
use crate::gate::io::GatedIo;
use crate::gate::{GateHandle, Limits, Refusal};
use crate::net::stream::{Prefixed, Stream};
use crate::reason::Reason;
use crate::state::room::{Held, Kept};

/// From the last byte of a request to the head of its answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(300);
/// The same for gRPC: a call that watches something may say nothing for long, and its caller sets a deadline of its own.
const CALL_DEADLINE: Duration = Duration::from_secs(3600);
/// A pooled connection whose last exchange has not left it after this long is stuck behind its peer.
const READY_DEADLINE: Duration = Duration::from_millis(100);

/// A connection that can carry one exchange, or a place on one that carries many.
pub struct HttpUpstream {
    kind: Kind,
    addr: Option<SocketAddr>,
    until: Instant,
}

enum Kind {
    Http1 { sender: SendRequest<RequestBody>, gate: GateHandle, kept: Kept },
    Http2 { shared: Shared, _place: Place },
}

impl HttpUpstream {
    /// Starts HTTP/1.1 on a fresh connection, whose answers keep to `limits` and which takes exchanges `until` then.
    ///
    /// # Errors
    /// The reason for the record.
    pub(super) async fn http1(stream: Stream, limits: Limits, held: Held, until: Instant) -> Result<Self, Reason> {
        let addr = stream.peer_addr();
        let kept = Kept::new(held);
        let io = GatedIo::client(Prefixed::from(stream), limits);
        let gate = io.handle();
        let (sender, connection) = http1::handshake(TokioIo::new(io)).await.map_err(|_| Reason::UpstreamClosed)?;
        // Ends when the sender is dropped, the other side closes, or the protocol changes; its error is that of the exchange
        // in progress.
        let open = kept.clone();
        tokio::task::spawn_local(async move {
            drop(connection.with_upgrades().await);
            drop(open);
        });
        Ok(Self { kind: Kind::Http1 { sender, gate, kept }, addr, until })
    }

    pub(super) fn http2(shared: &Shared) -> Option<Self> {
        let place = shared.place()?;
        let (addr, until) = (shared.addr(), shared.until());
        Some(Self { kind: Kind::Http2 { shared: shared.clone(), _place: place }, addr, until })
    }

    /// Where it leads, if that has an address.
    #[must_use]
    pub fn addr(&self) -> Option<SocketAddr> {
        self.addr
    }

    /// When it takes no further exchange.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Whether it is a place on `shared`.
    pub(super) fn is_on(&self, shared: &Shared) -> bool {
        matches!(&self.kind, Kind::Http2 { shared: own, .. } if own.is(shared))
    }

    /// Whether another exchange may start on it, now or as soon as hyper has seen the end of the last one.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        match &self.kind {
            Kind::Http1 { sender, gate, .. } => !sender.is_closed() && gate.is_reusable(),
            Kind::Http2 { shared, .. } => shared.is_open(),
        }
    }

    /// Why the answer of its last exchange broke off.
    pub(super) fn broken(&self) -> (Reason, &'static str) {
        let refused = match &self.kind {
            Kind::Http1 { gate, .. } => gate.refusal(),
            Kind::Http2 { .. } => None,
        };
        refused.map_or((Reason::UpstreamClosed, ""), self::refused)
    }

    /// To be kept for another exchange: none when there is no room for it. A place on a shared one is given back by dropping
    /// it, not by keeping it.
    pub(super) fn idle(self) -> Option<Self> {
        let Kind::Http1 { kept, .. } = &self.kind else { return None };
        kept.idle().then_some(self)
    }
}

/// The connection behind a 101, with what came behind its head. It has left its pool for good.
///
/// # Errors
/// The reason for the record, when the connection broke off meanwhile.
pub async fn switched(response: Response<Incoming>) -> Result<Prefixed, Reason> {
    let upgraded = hyper::upgrade::on(response).await.map_err(|_| Reason::UpstreamClosed)?;
    let parts = upgraded.downcast::<TokioIo<GatedIo<Prefixed>>>().map_err(|_| Reason::UpstreamClosed)?;
    let (stream, held) = parts.io.into_inner().into_parts();
    Ok(Prefixed::new([parts.read_buf, held].concat().into(), stream.into_parts().1))
}

/// How sending went wrong.
pub enum SendFailure {
    /// Nothing of the request was sent: it may be tried on another connection.
    Unsent(Box<Request<RequestBody>>),
    /// The other side has said that it did nothing with it (RFC 9113, section 8.7): it may be tried once more.
    Refused(Box<Request<RequestBody>>),
    /// The exchange failed, and which rule the answer breaks.
    Failed(Reason, &'static str),
}

/// Sends a request and waits for the head of the answer. `meter` counts the request's body: while it moves, the answer is
/// not late.
///
/// # Errors
/// [`SendFailure`]
pub async fn send(
    upstream: &mut HttpUpstream,
    mut request: Request<RequestBody>,
    meter: &Meter,
) -> Result<Response<Incoming>, SendFailure> {
    match &mut upstream.kind {
        Kind::Http1 { sender, gate, .. } => {
            if !sender.is_ready() {
                let ready = tokio::time::timeout(READY_DEADLINE, sender.ready()).await;
                if !matches!(ready, Ok(Ok(()))) {
                    return Err(SendFailure::Unsent(Box::new(request)));
                }
            }
            form::http1(&mut request).map_err(|reason| SendFailure::Failed(reason, ""))?;
            let answer = answer_in_time(sender.try_send_request(request), meter, ANSWER_DEADLINE).await;
            answered(answer, None, || gate.refusal())
        }
        Kind::Http2 { shared, .. } => {
            form::http2(&mut request, shared.scheme()).map_err(|reason| SendFailure::Failed(reason, ""))?;
            let is_call = Form::of(request.headers()) != Form::Problem;
            let deadline = if is_call { CALL_DEADLINE } else { ANSWER_DEADLINE };
            let mut sender = shared.sender.clone();
            let (last, spare) = (shared.last_stream(), Spare::of(&request));
            let mut answer = std::pin::pin!(sender.try_send_request(request));
            // Most answers are there before anything else is worth a timer of its own.
            let answer = match tokio::time::timeout(SHUT_TIME, answer.as_mut()).await {
                Ok(answer) => Some(answer),
                Err(_) => tokio::select! {
                    biased;
                    answer = answer_in_time(answer, meter, deadline) => answer,
                    () = shared.until_useless(last) => None,
                },
            };
            if answer.is_some() {
                shared.answered();
            }
            answered(answer, spare, || None)
        }
    }
}

fn answered(
    answer: Option<Result<Response<Incoming>, TrySendError<Request<RequestBody>>>>,
    spare: Option<Spare>,
    refusal: impl Fn() -> Option<Refusal>,
) -> Result<Response<Incoming>, SendFailure> {
    match answer {
        None => Err(SendFailure::Failed(Reason::UpstreamTimeout, "")),
        Some(Ok(response)) => Ok(response),
        Some(Err(mut error)) => Err(match (error.take_message(), spare) {
            (Some(request), _) => SendFailure::Unsent(Box::new(request)),
            (None, Some(spare)) if is_undone(error.error()) => SendFailure::Refused(Box::new(spare.request())),
            (None, _) => {
                let (reason, detail) = match refusal() {
                    Some(refusal) => refused(refusal),
                    None if is_protocol_error(error.error()) => (Reason::UpstreamMalformed, ""),
                    None => (Reason::UpstreamClosed, ""),
                };
                SendFailure::Failed(reason, detail)
            }
        }),
    }
}

/// What it means that the gate refused bytes of the other side.
fn refused(refusal: Refusal) -> (Reason, &'static str) {
    let reason = match refusal {
        Refusal::HeadTimeout => Reason::UpstreamTimeout,
        _ => Reason::UpstreamMalformed,
    };
    (reason, refusal.as_str())
}

/// Whether frames of the other side broke the rules of HTTP/2, as found on this side.
fn is_protocol_error(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(h2::Error::is_library)
}

async fn answer_in_time<T>(answer: impl Future<Output = T>, meter: &Meter, deadline: Duration) -> Option<T> {
    let mut answer = std::pin::pin!(answer);
    loop {
        let before = meter.bytes();
        match tokio::time::timeout(deadline, answer.as_mut()).await {
            Ok(answer) => return Some(answer),
            Err(_) if meter.bytes() > before => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests;
