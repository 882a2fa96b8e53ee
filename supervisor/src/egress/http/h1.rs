//! HTTP/1.1: one request after the other, behind the gate.

use std::convert::Infallible;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};

use super::{Call, Connection, Mode};
use crate::conn::body::ReplyBody;
use crate::conn::{Cut, Event};
use crate::egress::connect;
use crate::gate::io::GatedIo;
use crate::net::stream::Prefixed;
use crate::reason::Reason;
use crate::state::endpoint::Stage;

/// Serves the connection to its end and says how it ended.
pub(super) async fn serve(connection: &Connection, stream: Prefixed, mut cut: Cut) -> Reason {
    let io = GatedIo::server(stream, connection.bounds.gate);
    let call = connection.new_call(io.handle());
    // Nobody's next request on this connection is awaited any more, but its first one is: the app may need it to finish.
    let is_draining = connection.guest.endpoint.stage() >= Stage::Draining;
    let service = service_fn(|request| answer(connection, &call, request));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(connection.bounds.idle)
        .keep_alive(!is_draining)
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    let mut serving = std::pin::pin!(serving);
    let close = loop {
        tokio::select! {
            biased;
            event = cut.next() => match event {
                // A guest has no certificate that could end.
                Event::PeerEnding(_) => {}
                Event::PeerEnded(reason) => break reason,
                Event::Closed => break Reason::Draining,
                Event::PolicyChanged if !connection.still_allows(&call) => break Reason::PolicyRevoked,
                // An idle connection ends now; one with an answer on its way ends after it. New ones may still be opened.
                Event::Draining if !is_draining => serving.as_mut().graceful_shutdown(),
                Event::Aged => serving.as_mut().graceful_shutdown(),
                Event::PolicyChanged | Event::Draining => {}
            },
            served = serving.as_mut() => break if served.is_ok() { Reason::Done } else { Reason::Reset },
        }
    };
    // Before the bodies are dropped: their records say why they were cut.
    call.in_flight.cut(close);
    if let Some(refused) = call.gate.refusal().filter(|_| !call.refusal_recorded.get()) {
        let mut record = connection.guest.record();
        record.deny(Reason::Malformed);
        record.detail(refused.as_str());
    }
    close
}

async fn answer(
    connection: &Connection,
    call: &Call,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    if request.method() == Method::CONNECT && matches!(connection.mode, Mode::Proxy) {
        return Ok(connect::handle(&connection.guest, request).await);
    }
    Ok(connection.answer(request, call).await)
}
