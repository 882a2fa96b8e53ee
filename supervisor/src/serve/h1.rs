//! HTTP/1.1: one request after the other, behind the gate.

use http::{Request, Response, Version, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::Instant;

use super::sniff::{FIRST_TIME, over};
use super::unserved::Arrived;
use super::{Call, CallerLeft, End, Side, forward, still_allows, upgrade};
use crate::conn::body::{Inbound, ReplyBody};
use crate::conn::{Cut, Event};
use crate::gate::io::GatedIo;
use crate::headers::wants_trailers;
use crate::net::stream::Prefixed;
use crate::reason::Reason;

/// Serves a connection of which nothing but requests of HTTP/1 is taken.
pub async fn serve(side: &impl Side, stream: Prefixed, mut cut: Cut) -> End {
    let io = GatedIo::server(stream, side.bounds().gate).marking(Prefixed::reset_if_dropped);
    let call = Call::new(side, Some(io.handle()));
    let close = {
        // hyper may drop a request before its answer is asked for, when it finds the end of the connection behind it.
        let service = service_fn(|request: Request<Incoming>| {
            let arrived = Arrived::new(side, &call, request.method());
            answer(side, &call, request, arrived)
        });
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(side.bounds().idle)
            .keep_alive(!side.is_late())
            .serve_connection(TokioIo::new(io), service)
            .with_upgrades();
        let mut serving = std::pin::pin!(serving);
        let mut done = Reason::Done;
        // While it drains and nothing was asked for: when it ends.
        let mut first = None;
        let (close, cut_by) = loop {
            tokio::select! {
                biased;
                event = cut.next() => match event {
                    Event::Draining if side.is_late() => {}
                    Event::Draining if !call.has_begun() => first = Some(Instant::now() + FIRST_TIME),
                    // An idle connection ends now; one with an answer on its way ends after it.
                    Event::Draining => serving.as_mut().graceful_shutdown(),
                    Event::PeerEnding(reason) => {
                        done = reason;
                        serving.as_mut().graceful_shutdown();
                    }
                    Event::Aged => {
                        done = Reason::MaxLifetime;
                        serving.as_mut().graceful_shutdown();
                    }
                    Event::PeerEnded(reason) => break (reason, reason),
                    Event::Closed => break (Reason::Draining, Reason::Draining),
                    Event::PolicyChanged if side.may_go_on() && still_allows(side, &call) => {}
                    Event::PolicyChanged => break (Reason::PolicyRevoked, Reason::PolicyRevoked),
                },
                () = begun_or_over(&call, first), if first.is_some() => {
                    first = None;
                    serving.as_mut().graceful_shutdown();
                }
                // What the caller leaves open then is its own doing, whatever was meant to end.
                served = serving.as_mut() => {
                    break if served.is_ok() { (done, Reason::Done) } else { (Reason::Reset, Reason::Reset) };
                }
            }
        };
        // Before the bodies are dropped: their records say why they were cut.
        call.in_flight.cut(cut_by);
        close
    };
    let close = match call.switched.take() {
        None => {
            call.end_gently().await;
            close
        }
        // A connection that is to take nothing new opens no stream either.
        Some(switched) if close == Reason::Done => upgrade::carry(side, switched, &mut cut).await,
        Some(switched) => {
            switched.give_up(close).await;
            close
        }
    };
    End { close, refused: call.unrecorded_refusal() }
}

/// Resolves when the first request is there, or when it is not and its time is over.
async fn begun_or_over(call: &Call, until: Option<Instant>) {
    tokio::select! {
        () = call.begun.notified() => {}
        () = over(until) => {}
    }
}

/// An error ends the connection without an answer.
async fn answer<S: Side>(
    side: &S,
    call: &Call,
    request: Request<Incoming>,
    arrived: Arrived<'_, S>,
) -> Result<Response<ReplyBody>, CallerLeft> {
    arrived.begin();
    call.begin();
    let request = match side.take(request, call).await {
        Ok(answer) => return Ok(answer),
        Err(request) => request,
    };
    let reads_trailers = request.version() == Version::HTTP_11 && wants_trailers(request.headers());
    let mut request = request.map(Inbound::from);
    let handed_out = request.extensions_mut().remove::<OnUpgrade>();
    let prepared = side.prepare(request, call);
    let prepared = match (prepared, handed_out) {
        (Ok(ready), Some(caller)) if ready.upgrades() => return upgrade::answer(side, ready, call, caller).await,
        (prepared, Some(unwanted)) => {
            call.stays(unwanted);
            prepared
        }
        (prepared, None) => prepared,
    };
    match prepared {
        Ok(ready) => forward(side, ready, call).await.map(|response| with_trailers(response, reads_trailers)),
        Err(refusal) => {
            side.audit().throttle(&side.spec().pod_uid).await;
            Ok(*refusal)
        }
    }
}

/// An answer of HTTP/2 may have both a length and trailers. A caller that reads trailers, and is promised some, gets these.
fn with_trailers(mut response: Response<ReplyBody>, reads_trailers: bool) -> Response<ReplyBody> {
    let has_both = [header::CONTENT_LENGTH, header::TRAILER].iter().all(|name| response.headers().contains_key(name));
    if reads_trailers && has_both && response.body_mut().forget_length() {
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    response
}
