//! One HTTP exchange: the permitted request to the other side, its answer back.

use std::rc::Rc;

use http::{Request, Response};
use hyper::body::Incoming;

use crate::audit::Record;
use crate::conn::body::{Forwarded, InFlight, Meter, ReplyBody, RequestBody};
use crate::dial::{HttpUpstream, Pool, PoolLease, SendFailure, send};
use crate::gate::{Limits, check_answer};
use crate::headers::strip_response_headers;
use crate::net::stream::Stream;
use crate::reason::Reason;

/// A permitted request that is ready to go.
pub struct Forward {
    /// Re-made from parsed values: canonical target, cleaned headers.
    pub request: Request<RequestBody>,
    /// Counts the request's body.
    pub meter: Rc<Meter>,
    /// Idle connections of exactly this kind.
    pub pool: Rc<Pool>,
    /// What the connection is busy with.
    pub in_flight: Rc<InFlight>,
}

/// Sends the request on an idle connection or on one that `open` makes, and gives the answer with its body still to come.
/// A request of which nothing was sent is tried once more, on a fresh connection.
///
/// # Errors
/// The record and the reason, when there is no answer.
pub async fn forward(
    forward: Forward,
    mut record: Record,
    open: impl AsyncFn(&mut Record) -> Result<Stream, Reason>,
) -> Result<Response<ReplyBody>, (Record, Reason)> {
    let Forward { request, meter, pool, in_flight } = forward;
    in_flight.start();
    // Holds if the caller goes away while it waits: this future is dropped then.
    record.close(Reason::Aborted);
    match exchange(request, &meter, &pool, &mut record, open).await {
        Ok((response, upstream)) => {
            let lease = PoolLease::new(upstream, pool);
            Ok(answer(response, |body| Forwarded::new(body, meter, record, lease, in_flight)))
        }
        Err(reason) => {
            // Its body was given up here, so whatever the other side made of that is not its fault.
            let reason = if meter.is_late() { Reason::BodyTimeout } else { reason };
            in_flight.end();
            record.bytes(meter.bytes(), 0);
            record.close(reason);
            Err((record, reason))
        }
    }
}

async fn exchange(
    mut request: Request<RequestBody>,
    meter: &Meter,
    pool: &Pool,
    record: &mut Record,
    open: impl AsyncFn(&mut Record) -> Result<Stream, Reason>,
) -> Result<(Response<Incoming>, HttpUpstream), Reason> {
    if let Some(mut upstream) = pool.take() {
        match send(&mut upstream, request, meter).await {
            Ok(response) => return Ok((checked(response, record)?, upstream)),
            Err(SendFailure::Failed(reason)) => return Err(reason),
            Err(SendFailure::Unsent(unsent)) => request = *unsent,
        }
    }
    // Boxed: dialling is rare and its state is large, and hyper copies the future of every request into its place.
    let mut upstream = Box::pin(pool.open(open(record))).await?;
    match send(&mut upstream, request, meter).await {
        Ok(response) => Ok((checked(response, record)?, upstream)),
        Err(SendFailure::Failed(reason)) => Err(reason),
        Err(SendFailure::Unsent(_)) => Err(Reason::UpstreamClosed),
    }
}

fn checked(response: Response<Incoming>, record: &mut Record) -> Result<Response<Incoming>, Reason> {
    // No upgrade was asked for, so none may come: its bytes would leave HTTP and nobody would decide on them.
    if response.status() == http::StatusCode::SWITCHING_PROTOCOLS {
        return Err(Reason::UpstreamMalformed);
    }
    let (head, body) = response.into_parts();
    if head.version == http::Version::HTTP_2
        && let Err(refusal) = check_answer(&head, &Limits::default())
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
