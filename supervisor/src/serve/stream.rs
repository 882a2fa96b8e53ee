//! One stream of HTTP/2: its request to the other side, and the answer back into it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason as Code, SendStream};
use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Body;
use tokio::sync::futures::Notified;
use tokio::time::timeout;

use super::{Call, CallerLeft, Side, forward};
use crate::conn::body::{Inbound, ReplyBody, Rest};
use crate::reason::Reason;

/// Payload that is asked room for at a time: what the other streams can have meanwhile stays theirs.
const PIECE: usize = 16 * 1024;
/// A caller that gives no room for this long while an answer waits for it is gone.
const STALL: Duration = Duration::from_secs(60);

/// Serves a stream until it ends or is cut, which resets it.
pub(super) async fn serve(
    side: &impl Side,
    request: Request<Inbound>,
    respond: SendResponse<Bytes>,
    call: &Call,
    rest: &Rest,
) {
    let mut stop = Stop { call, rest: Some(rest), cut: Box::pin(call.cut.notified()) };
    // An error is the caller's reset or the end of the connection; the exchange's record says how far it came.
    let _ = answer(side, request, respond, &mut stop).await;
}

/// What ends a stream before its answer does.
struct Stop<'a> {
    call: &'a Call,
    /// Knows whose doing a reset is.
    rest: Option<&'a Rest>,
    cut: Pin<Box<Notified<'a>>>,
}

/// It was stopped.
enum Stopped {
    /// By the caller.
    Reset(h2::Error),
    /// By us.
    Cut,
}

async fn answer(
    side: &impl Side,
    request: Request<Inbound>,
    mut respond: SendResponse<Bytes>,
    stop: &mut Stop<'_>,
) -> Result<(), h2::Error> {
    let is_head = request.method() == Method::HEAD;
    let response = match side.prepare(request, stop.call) {
        Ok(mut ready) => {
            // Until more is known of it: a stream that is reset already is not carried any further.
            if respond.poll_reset(&mut Context::from_waker(Waker::noop())).is_ready() {
                stop.note_fault();
            }
            ready.record.close(stop.call.in_flight.cut_by().unwrap_or(Reason::Aborted));
            if ready.expects {
                let mut go_on = Response::new(());
                *go_on.status_mut() = StatusCode::CONTINUE;
                respond.send_informational(go_on)?;
            }
            let mut forwarding = pin!(forward(side, ready, stop.call));
            match poll_fn(|cx| stop.or(respond.poll_reset(cx), cx, |cx| forwarding.as_mut().poll(cx))).await {
                Ok(Ok(response)) => response,
                // Dropping the stream resets it, if its caller has left that open.
                Ok(Err(CallerLeft)) => return Ok(()),
                Err(stopped) => return stopped.end(|code| respond.send_reset(code)),
            }
        }
        Err(refusal) => {
            side.audit().throttle(&side.spec().pod_uid).await;
            *refusal
        }
    };
    let (mut head, body) = response.into_parts();
    head.version = http::Version::HTTP_2;
    if let Some(length) = body.size_hint().exact().filter(|length| *length > 0 && matches!(body, ReplyBody::Text(_))) {
        head.headers.insert(header::CONTENT_LENGTH, length.into());
    }
    let is_over = is_head || body.is_end_stream();
    let mut stream = respond.send_response(Response::from_parts(head, ()), is_over)?;
    if is_over {
        return Ok(());
    }
    match carry(body, &mut stream, stop, STALL).await {
        Ok(()) => Ok(()),
        Err(stopped) => stopped.end(|code| stream.send_reset(code)),
    }
}

/// Carries a body into the stream, as fast as the caller gives room for it: the other side is read no faster.
async fn carry(
    mut body: ReplyBody,
    stream: &mut SendStream<Bytes>,
    stop: &mut Stop<'_>,
    stall: Duration,
) -> Result<(), Stopped> {
    loop {
        let frame = poll_fn(|cx| stop.or(stream.poll_reset(cx), cx, |cx| Pin::new(&mut body).poll_frame(cx))).await?;
        let frame = match frame {
            None => return Ok(stream.send_data(Bytes::new(), true)?),
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                stream.send_reset(error.code());
                return Ok(());
            }
        };
        match frame.into_data() {
            Ok(data) => {
                let is_last = body.is_end_stream();
                send(stream, data, is_last, stop, stall).await?;
                if is_last {
                    return Ok(());
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    return Ok(stream.send_trailers(trailers)?);
                }
            }
        }
    }
}

/// Sends a piece of a body. A caller that gives no room for it is cut off after a while.
async fn send(
    stream: &mut SendStream<Bytes>,
    mut data: Bytes,
    is_last: bool,
    stop: &mut Stop<'_>,
    stall: Duration,
) -> Result<(), Stopped> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len().min(PIECE));
        let room = poll_fn(|cx| stop.or(Poll::Pending, cx, |cx| stream.poll_capacity(cx)));
        let Ok(room) = timeout(stall, room).await else {
            stop.call.in_flight.cut(Reason::IdleTimeout);
            return Err(Stopped::Cut);
        };
        // None: the stream is not sent to any more.
        let room = room?.ok_or(Stopped::Cut)??;
        let piece = data.split_to(room.min(data.len()));
        stream.send_data(piece, is_last && data.is_empty())?;
    }
    Ok(())
}

impl Stop<'_> {
    /// Of a stream that is reset, before its exchange is dropped: that exchange's record says why.
    fn note_fault(&self) {
        if self.rest.is_some_and(Rest::is_at_fault) {
            self.call.in_flight.cut(Reason::Malformed);
        }
    }

    /// What comes first: the end, or what `go_on` waits for.
    fn or<T>(
        &mut self,
        reset: Poll<Result<Code, h2::Error>>,
        cx: &mut Context<'_>,
        go_on: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<Result<T, Stopped>> {
        if self.cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(Stopped::Cut));
        }
        if reset.is_ready() {
            self.note_fault();
        }
        match reset {
            Poll::Ready(Ok(code)) => Poll::Ready(Err(Stopped::Reset(code.into()))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(Stopped::Reset(error))),
            Poll::Pending => go_on(cx).map(Ok),
        }
    }
}

impl Stopped {
    /// A cut has to be said: the request's body on its way to the app holds the stream as well.
    fn end(self, reset: impl FnOnce(Code)) -> Result<(), h2::Error> {
        match self {
            Self::Reset(error) => Err(error),
            Self::Cut => {
                reset(Code::CANCEL);
                Ok(())
            }
        }
    }
}

impl From<h2::Error> for Stopped {
    fn from(error: h2::Error) -> Self {
        Self::Reset(error)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    // covers: C9h
    #[test]
    fn a_window_that_stays_shut_ends_its_stream_after_the_deadline() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let (mut client, frames) = h2::client::Builder::new()
                .initial_window_size(0)
                .handshake::<_, Bytes>(theirs)
                .await
                .expect("a client");
            tokio::task::spawn_local(async move { drop(frames.await) });
            let request = Request::get("http://a/").body(()).expect("a request");
            let (_answer, _) = client.send_request(request, true).expect("sent");
            let mut server = h2::server::handshake(ours).await.expect("a server");
            let (_, mut respond) = server.accept().await.expect("a stream").expect("in good order");
            tokio::task::spawn_local(async move { while server.accept().await.is_some() {} });
            let mut stream = respond.send_response(Response::new(()), false).expect("sent");
            let call = Call::default();
            let mut stop = Stop { call: &call, rest: None, cut: Box::pin(call.cut.notified()) };
            let body = ReplyBody::Text(Full::new(Bytes::from_static(b"never taken")));
            let stopped = carry(body, &mut stream, &mut stop, Duration::from_millis(50)).await;
            assert!(matches!(stopped, Err(Stopped::Cut)));
        });
    }
}
