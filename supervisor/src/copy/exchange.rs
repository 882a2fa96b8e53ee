//! One HTTP exchange: the permitted request to the other side, its answer back.

use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;

use crate::audit::Record;
use crate::conn::body::{Forwarded, InFlight, Meter, ReplyBody, RequestBody};
use crate::credentials::Held;
use crate::dial::{HttpUpstream, Pool, PoolLease, SendFailure, send, switched};
use crate::gate::{Limits, Refusal, check_answer};
use crate::headers::{is_to_websocket, set_websocket, strip_response_headers};
use crate::net::stream::{Prefixed, Stream};
use crate::reason::Reason;
use crate::state::room::Room;

/// A permitted request that is ready to go.
pub struct Forward {
    /// Re-made from parsed values: canonical target, cleaned headers.
    pub request: Request<RequestBody>,
    /// Counts the request's body.
    pub meter: Rc<Meter>,
    /// Idle connections of exactly this kind.
    pub pool: Rc<Pool>,
    /// What the caller's connection may open.
    pub room: Rc<Room>,
    /// What the connection is busy with.
    pub in_flight: Rc<InFlight>,
    /// The secret that is in the request, and that no field of the answer may say.
    pub secret: Option<Arc<Held>>,
}

/// What came of a request that asked to change the protocol.
pub enum Answered {
    /// An answer like others: the app declined.
    Declined(Response<ReplyBody>),
    /// The other side speaks the new protocol from here on. The record is still open.
    Switched {
        /// The 101 for the caller.
        response: Response<ReplyBody>,
        /// With what came behind the 101.
        callee: Prefixed,
        /// The request's.
        record: Record,
    },
}

/// Sends the request on an idle connection or on one that `open` makes, and gives the answer with its body still to come.
/// A request of which nothing was sent is tried once more, on a fresh connection, and one without a body that the other side has
/// turned away undone on another one.
///
/// # Errors
/// The record and the reason, when there is no answer.
pub async fn forward(
    forward: Forward,
    record: Record,
    open: impl AsyncFn(&mut Record) -> Result<Stream, Reason>,
) -> Result<Response<ReplyBody>, (Record, Reason)> {
    let (response, exchanged) = exchange(forward, record, Wants::Answer, open).await?;
    Ok(exchanged.answer(response))
}

/// The same for a request that asks to change the protocol to `websocket`, and was granted it.
///
/// # Errors
/// As [`forward`].
pub async fn upgrade(
    forward: Forward,
    record: Record,
    open: impl AsyncFn(&mut Record) -> Result<Stream, Reason>,
) -> Result<Answered, (Record, Reason)> {
    let (response, exchanged) = exchange(forward, record, Wants::Websocket, open).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Answered::Declined(exchanged.answer(response)));
    }
    let headers = response.headers().clone();
    match switched(response).await {
        Ok(callee) => Ok(Answered::Switched { response: switching(headers), callee, record: exchanged.record }),
        Err(reason) => Err((exchanged.failed(reason), reason)),
    }
}

/// What the request may be answered with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wants {
    Answer,
    Websocket,
}

/// What belongs to an answer until its end.
struct Exchanged {
    upstream: HttpUpstream,
    meter: Rc<Meter>,
    record: Record,
    pool: Rc<Pool>,
    in_flight: Rc<InFlight>,
    secret: Option<Arc<Held>>,
}

impl Exchanged {
    fn failed(mut self, reason: Reason) -> Record {
        self.in_flight.end();
        self.record.bytes(self.meter.bytes(), 0);
        self.record.close(reason);
        self.record
    }

    fn answer(self, response: Response<Incoming>) -> Response<ReplyBody> {
        let lease = PoolLease::new(self.upstream, self.pool);
        let forwarded = |body| Forwarded::new(body, self.meter, self.record, lease, self.in_flight);
        answer(response, |body| forwarded(body).without(self.secret))
    }
}

/// Holds while there is no answer. Whoever cuts the exchange or goes away drops the future that waits, and its record says so.
struct Waiting<'a> {
    record: &'a mut Record,
    in_flight: &'a InFlight,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.record.close(self.in_flight.cut_by().unwrap_or(Reason::Aborted));
    }
}

async fn exchange(
    forward: Forward,
    mut record: Record,
    wants: Wants,
    open: impl AsyncFn(&mut Record) -> Result<Stream, Reason>,
) -> Result<(Response<Incoming>, Exchanged), (Record, Reason)> {
    let Forward { request, meter, pool, room, in_flight, secret } = forward;
    in_flight.start();
    let answered = {
        let waiting = Waiting { record: &mut record, in_flight: &in_flight };
        answered(request, &meter, (&pool, &room), waiting.record, open).await
    };
    let checked = answered.and_then(|(response, upstream)| {
        let response = checked(response, wants, pool.limits(), &mut record)?;
        let says = secret.as_ref().is_some_and(|secret| secret.is_said_by(response.headers()));
        if says { Err(Reason::CredentialEchoed) } else { Ok((response, upstream)) }
    });
    meter.answered();
    match checked {
        Ok((response, upstream)) => Ok((response, Exchanged { upstream, meter, record, pool, in_flight, secret })),
        Err(reason) => {
            // Its body was given up here, so whatever the other side made of that is not its fault.
            let reason = match (meter.is_late(), meter.has_placeholder()) {
                (true, _) => Reason::BodyTimeout,
                (_, true) => Reason::CredentialNotGranted,
                (false, false) => reason,
            };
            in_flight.end();
            record.bytes(meter.bytes(), 0);
            record.close(reason);
            Err((record, reason))
        }
    }
}

async fn answered(
    mut request: Request<RequestBody>,
    meter: &Meter,
    (pool, room): (&Pool, &Rc<Room>),
    record: &mut Record,
    open: impl AsyncFn(&mut Record) -> Result<Stream, Reason>,
) -> Result<(Response<Incoming>, HttpUpstream), Reason> {
    let mut pooled = pool.take(None);
    let mut refused_by = None;
    loop {
        let is_fresh = pooled.is_none();
        let mut upstream = match pooled.take() {
            Some(upstream) => upstream,
            // Boxed: dialling is rare and its state is large, and hyper copies the future of every request into its place.
            None => Box::pin(pool.open(room, refused_by.as_ref(), open(record))).await?,
        };
        note(&upstream, record);
        match send(&mut upstream, request, meter).await {
            Ok(response) => return Ok((response, upstream)),
            Err(SendFailure::Failed(reason, detail)) => return Err(failed(record, reason, detail)),
            Err(SendFailure::Unsent(unsent)) if !is_fresh => request = *unsent,
            Err(SendFailure::Refused(refused)) if refused_by.is_none() => {
                request = *refused;
                refused_by = Some(upstream);
            }
            Err(SendFailure::Unsent(_) | SendFailure::Refused(_)) => return Err(Reason::UpstreamClosed),
        }
    }
}

fn failed(record: &mut Record, reason: Reason, detail: &'static str) -> Reason {
    if !detail.is_empty() {
        record.detail(detail);
    }
    reason
}

/// Writes down where a connection leads that an earlier call may have opened.
fn note(upstream: &HttpUpstream, record: &mut Record) {
    if let Some(addr) = upstream.addr() {
        record.dialled(addr);
    }
}

fn checked(
    response: Response<Incoming>,
    wants: Wants,
    limits: &Limits,
    record: &mut Record,
) -> Result<Response<Incoming>, Reason> {
    // A change that was not granted would take its bytes out of HTTP, and nobody would have decided on them.
    if response.status() == StatusCode::SWITCHING_PROTOCOLS
        && !(wants == Wants::Websocket && is_to_websocket(response.headers()))
    {
        record.detail(Refusal::UnaskedUpgrade.as_str());
        return Err(Reason::UpstreamMalformed);
    }
    let (head, body) = response.into_parts();
    if head.version == http::Version::HTTP_2
        && let Err(refusal) = check_answer(&head, limits)
    {
        record.detail(refusal.as_str());
        return Err(Reason::UpstreamMalformed);
    }
    record.status(head.status.as_u16());
    Ok(Response::from_parts(head, body))
}

fn answer(response: Response<Incoming>, body: impl FnOnce(Incoming) -> Forwarded) -> Response<ReplyBody> {
    let (mut head, incoming) = response.into_parts();
    strip_response_headers(&mut head.headers);
    head.version = http::Version::HTTP_11;
    head.extensions.clear();
    Response::from_parts(head, ReplyBody::Forwarded(Box::new(body(incoming))))
}

/// The 101 for the caller, re-made as other answers are.
fn switching(mut headers: HeaderMap) -> Response<ReplyBody> {
    strip_response_headers(&mut headers);
    headers.remove(header::CONTENT_LENGTH);
    set_websocket(&mut headers);
    let mut response = Response::new(ReplyBody::Text(Full::default()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = headers;
    response
}
