//! CONNECT: the answer, then the tunnel.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use nova_policy::host::Authority;

use super::carry;
use super::prepare::note_host;
use crate::conn::body::ReplyBody;
use crate::conn::reply::{Form, refusal};
use crate::conn::until_overdue;
use crate::egress::{Guest, tunnel};
use crate::gate::io::GatedIo;
use crate::net::stream::Prefixed;
use crate::reason::Reason;
use crate::serve::Call;

/// Decides a CONNECT by its target alone (its Host is ignored), dials, answers, and leaves the tunnel to a task of its own.
pub(super) async fn handle(guest: &Rc<Guest>, request: Request<Incoming>, call: &Call) -> Response<ReplyBody> {
    let mut record = guest.record();
    record.request("CONNECT", "");
    let target = request.uri().authority().map(|authority| authority.as_str().to_owned()).unwrap_or_default();
    let opened = match parse(&target) {
        Some((authority, port)) => {
            let opened = tunnel::open(guest, authority.host(), port, &mut record).await;
            opened.inspect(|_| note_host(request.headers(), &authority, port, &mut record))
        }
        None => {
            record.deny(Reason::BadDestination);
            Err(Reason::BadDestination)
        }
    };
    let opened = match opened {
        Ok(opened) => opened,
        Err(reason) => {
            guest.throttle().await;
            call.stays(hyper::upgrade::on(request));
            return close(refusal(&mut record, reason, Some(&format!("CONNECT {target}")), Form::Problem));
        }
    };
    record.status(200);
    let guest = Rc::clone(guest);
    let upgrade = hyper::upgrade::on(request);
    tokio::task::spawn_local(async move {
        let endpoint = Arc::clone(&guest.endpoint);
        let carrying = async {
            match tunnelled(upgrade).await {
                Some(caller) => carry(guest, opened, caller, record).await,
                // The app went away before the tunnel started.
                None => record.close(Reason::Aborted),
            }
        };
        // Nothing that waits in it outlives the endpoint.
        tokio::select! {
            biased;
            () = carrying => {}
            () = until_overdue(&endpoint) => {}
        }
    });
    established()
}

/// The stream behind the head of a CONNECT, with what came of it already.
async fn tunnelled(upgrade: OnUpgrade) -> Option<Prefixed> {
    let parts = upgrade.await.ok()?.downcast::<TokioIo<GatedIo<Prefixed>>>().ok()?;
    let (stream, held) = parts.io.into_inner().into_parts();
    let (unread, stream) = stream.into_parts();
    // In the order in which they came: hyper read first, then the gate held, then the prefix was left.
    let first = [parts.read_buf, held, unread].concat();
    Some(Prefixed::new(first.into(), stream))
}

/// A port is always required: guessing one would decide on something the app did not say.
fn parse(target: &str) -> Option<(Authority, u16)> {
    let authority = Authority::parse(target).ok()?;
    let port = authority.port()?;
    Some((authority, port))
}

fn established() -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::Text(Full::new(Bytes::new())));
    *response.status_mut() = StatusCode::OK;
    response
}

/// What an app sends after a CONNECT that was refused belongs to the tunnel it wanted, never to a next request.
fn close(mut response: Response<ReplyBody>) -> Response<ReplyBody> {
    response.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
    response
}
