//! Heads of requests: what is checked of them, and how they name their destination, whatever the direction.

use http::uri::Scheme;
use http::{HeaderValue, Method, Uri, Version, header, request};
use nova_policy::path::CanonicalPath;

use crate::audit::Record;
use crate::conn::HttpBounds;
use crate::conn::body::{BodyRules, Inbound};
use crate::dial::Speaks;
use crate::gate::{self, Limits};
use crate::headers;
use crate::reason::Reason;

/// Checks of a stream of HTTP/2 what the gate checks in the bytes of HTTP/1.
///
/// # Errors
/// [`Reason::Malformed`], with the rule that it breaks in the record's detail.
pub fn check_fields(head: &request::Parts, body: &Inbound, limits: &Limits, record: &mut Record) -> Result<(), Reason> {
    if !matches!(body, Inbound::Http2(_)) {
        return Ok(());
    }
    gate::check_request(head, body.is_announced(), limits).map_err(|refusal| {
        record.detail(refusal.as_str());
        Reason::Malformed
    })
}

/// What holds for the body of a request to somebody who speaks so. A stream of HTTP/2 may be silent where it holds no connection
/// of its own to the other side.
#[must_use]
pub fn body_rules(bounds: &HttpBounds, body: &Inbound, speaks: Speaks) -> BodyRules {
    let rules = bounds.requests.clone();
    let shares = speaks != Speaks::Http1 && matches!(body, Inbound::Http2(_));
    if shares { rules.without_time() } else { rules }
}

/// RFC 6455 section 4.1. Everything else that `Upgrade` may name is ignored, as RFC 9110 section 7.8 lets a server do: clients
/// offer h2c with every request.
#[must_use]
pub fn asks_for_websocket(head: &request::Parts) -> bool {
    head.version == Version::HTTP_11 && head.method == Method::GET && headers::is_to_websocket(&head.headers)
}

/// Whether an absolute target is one of HTTP without TLS; `ws://` (RFC 6455 section 3) is one for a WebSocket and for nothing else.
#[must_use]
pub fn is_plain(uri: &Uri, asks_for_websocket: bool) -> bool {
    uri.scheme().is_some_and(|scheme| {
        *scheme == Scheme::HTTP || asks_for_websocket && scheme.as_str().eq_ignore_ascii_case("ws")
    })
}

/// Names the destination as it was read. `dial` gives it the form of the version that the other side speaks.
///
/// # Errors
/// [`Reason::BadPath`], when that cannot be written.
pub fn readdress(head: &mut request::Parts, authority: HeaderValue, path: &CanonicalPath) -> Result<(), Reason> {
    head.headers.insert(header::HOST, authority);
    head.uri = Uri::try_from(path.path_and_query()).map_err(|_| Reason::BadPath)?;
    head.version = Version::HTTP_11;
    head.extensions.clear();
    Ok(())
}
