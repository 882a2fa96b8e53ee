//! One stream of HTTP/2: its request to the app, and the answer back into it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason as Code, SendStream};
use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Body;
use tokio::time::timeout;

use super::{Call, Connection};
use crate::conn::body::{Inbound, ReplyBody};
use crate::reason::Reason;

/// Payload that is asked room for at a time: what the other streams can have meanwhile stays theirs.
const PIECE: usize = 16 * 1024;
/// A caller that gives no room for this long while an answer waits for it is gone.
const STALL: Duration = Duration::from_secs(60);

/// Serves a stream until it ends or is cut, which resets it.
pub(super) async fn serve(
    connection: &Connection<'_>,
    request: Request<Inbound>,
    respond: SendResponse<Bytes>,
    call: &Call,
) {
    tokio::select! {
        biased;
        () = call.cut.notified() => {}
        // An error is the caller's reset or the end of the connection; the exchange's record says how far it came.
        _ = answer(connection, request, respond, call) => {}
    }
}

async fn answer(
    connection: &Connection<'_>,
    request: Request<Inbound>,
    mut respond: SendResponse<Bytes>,
    call: &Call,
) -> Result<(), h2::Error> {
    let is_head = request.method() == Method::HEAD;
    let response = match connection.prepare(request, call) {
        Ok(ready) => {
            if ready.expects {
                let mut go_on = Response::new(());
                *go_on.status_mut() = StatusCode::CONTINUE;
                respond.send_informational(go_on)?;
            }
            let mut forwarding = pin!(connection.forward(ready, call));
            poll_fn(|cx| unless_reset(respond.poll_reset(cx), || forwarding.as_mut().poll(cx))).await?
        }
        Err(refusal) => {
            connection.ingress.audit.throttle(&connection.spec.pod_uid).await;
            *refusal
        }
    };
    let (mut head, body) = response.into_parts();
    head.version = http::Version::HTTP_2;
    if let Some(length) = body.size_hint().exact().filter(|length| *length > 0 && matches!(body, ReplyBody::Text(_))) {
        head.headers.insert(header::CONTENT_LENGTH, length.into());
    }
    let is_over = is_head || body.is_end_stream();
    let stream = respond.send_response(Response::from_parts(head, ()), is_over)?;
    if is_over { Ok(()) } else { carry(body, stream, call, STALL).await }
}

/// Carries a body into the stream, as fast as the caller gives room for it: the app is read no faster.
async fn carry(
    mut body: ReplyBody,
    mut stream: SendStream<Bytes>,
    call: &Call,
    stall: Duration,
) -> Result<(), h2::Error> {
    loop {
        let frame = poll_fn(|cx| unless_reset(stream.poll_reset(cx), || Pin::new(&mut body).poll_frame(cx))).await?;
        let frame = match frame {
            None => return stream.send_data(Bytes::new(), true),
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                stream.send_reset(code_of(&error));
                return Ok(());
            }
        };
        match frame.into_data() {
            Ok(data) => {
                let is_last = body.is_end_stream();
                if send(&mut stream, data, is_last, stall).await?.is_none() {
                    call.in_flight.cut(Reason::IdleTimeout);
                    stream.send_reset(Code::CANCEL);
                    return Ok(());
                }
                if is_last {
                    return Ok(());
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    return stream.send_trailers(trailers);
                }
            }
        }
    }
}

/// Sends a piece of a body; `None` when the caller gives no room for it any more.
async fn send(
    stream: &mut SendStream<Bytes>,
    mut data: Bytes,
    is_last: bool,
    stall: Duration,
) -> Result<Option<()>, h2::Error> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len().min(PIECE));
        let room = match timeout(stall, poll_fn(|cx| stream.poll_capacity(cx))).await {
            Err(_) => return Ok(None),
            Ok(Some(room)) => room?,
            // The stream is not sent to any more.
            Ok(None) => return Err(Code::CANCEL.into()),
        };
        let piece = data.split_to(room.min(data.len()));
        stream.send_data(piece, is_last && data.is_empty())?;
    }
    Ok(Some(()))
}

/// What comes first: the caller's reset, as an error, or what `go_on` waits for.
fn unless_reset<T>(
    reset: Poll<Result<Code, h2::Error>>,
    go_on: impl FnOnce() -> Poll<T>,
) -> Poll<Result<T, h2::Error>> {
    match reset {
        Poll::Ready(Ok(code)) => Poll::Ready(Err(code.into())),
        Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        Poll::Pending => go_on().map(Ok),
    }
}

/// The code with which the app ended its stream, if it speaks HTTP/2 as well.
fn code_of(error: &hyper::Error) -> Code {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if let Some(code) = error.downcast_ref::<h2::Error>().and_then(h2::Error::reason) {
            return code;
        }
        cause = error.source();
    }
    Code::INTERNAL_ERROR
}
