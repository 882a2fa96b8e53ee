//! HTTP/1.1: one request after the other, behind the gate.

use std::convert::Infallible;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};

use super::{Call, Connection, End};
use crate::conn::body::{Inbound, ReplyBody};
use crate::conn::reply::end_gently;
use crate::conn::{Cut, Event};
use crate::gate::io::GatedIo;
use crate::net::stream::Prefixed;
use crate::reason::Reason;

pub(super) async fn serve(connection: &Connection<'_>, stream: Prefixed, mut cut: Cut) -> End {
    let io = GatedIo::server(stream, connection.bounds.gate);
    let call = connection.new_call(Some(io.handle()));
    let close = {
        let service = service_fn(|request| answer(connection, &call, request));
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(connection.bounds.idle)
            .serve_connection(TokioIo::new(io), service)
            .with_upgrades();
        let mut serving = std::pin::pin!(serving);
        let mut done = Reason::Done;
        let close = loop {
            tokio::select! {
                biased;
                event = cut.next() => match event {
                    Event::Draining => serving.as_mut().graceful_shutdown(),
                    Event::PeerEnding(reason) => {
                        done = reason;
                        serving.as_mut().graceful_shutdown();
                    }
                    Event::Aged => {
                        done = Reason::MaxLifetime;
                        serving.as_mut().graceful_shutdown();
                    }
                    Event::PeerEnded(reason) => break reason,
                    Event::Closed => break Reason::Draining,
                    Event::PolicyChanged if connection.may_still_connect() && connection.still_allows(&call) => {}
                    Event::PolicyChanged => break Reason::PolicyRevoked,
                },
                served = serving.as_mut() => break if served.is_ok() { done } else { Reason::Reset },
            }
        };
        // Before the bodies are dropped: their records say why they were cut.
        call.in_flight.cut(close);
        close
    };
    let close = match call.switched.take() {
        None => close,
        // A connection that is to take nothing new opens no stream either.
        Some(switched) if close == Reason::Done => connection.carry(switched, &mut cut).await,
        Some(switched) => {
            switched.give_up(close).await;
            close
        }
    };
    End { close, refused: call.unrecorded_refusal() }
}

async fn answer(
    connection: &Connection<'_>,
    call: &Call,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    let mut request = request.map(Inbound::from);
    let handed_out = request.extensions_mut().remove::<OnUpgrade>();
    let prepared = connection.prepare(request, call);
    let prepared = match (prepared, handed_out) {
        (Ok(ready), Some(caller)) if ready.upgrades => return Ok(connection.upgrade(ready, call, caller).await),
        (prepared, Some(unwanted)) => {
            end_gently::<Prefixed>(unwanted);
            prepared
        }
        (prepared, None) => prepared,
    };
    Ok(match prepared {
        Ok(ready) => connection.forward(ready, call).await,
        Err(refusal) => {
            connection.ingress.audit.throttle(&connection.spec.pod_uid).await;
            *refusal
        }
    })
}
