//! What headers may cross the supervisor, in either direction.
//!
//! The order matters: what `Connection` names goes first, so that a client cannot have a header of ours removed by naming
//! it; then every copy of an identity header that a client sent goes, in whatever spelling; only then is ours set.

mod names;
pub mod proxy_v2;

use http::{HeaderMap, HeaderName, HeaderValue, header};

use names::{CONNECTION_FIELDS, is_for_proxies, is_identity, spelling};
use nova_policy::never::is_override;

/// The header that carries the caller's verified identity to an app.
pub const XFCC: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
/// The header that carries the caller's address to an app.
pub const XFF: HeaderName = HeaderName::from_static("x-forwarded-for");

/// What rules and `Upgrade` call the protocol.
pub const WEBSOCKET: &str = "websocket";

/// The one expectation there is.
pub const CONTINUE: &str = "100-continue";

/// A header that makes an app act on another method than the one that was decided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("header {0} asks for another method than the request line; remove it and send that method itself")]
pub struct OverrideRefused(pub HeaderName);

/// Removes from a request what must not reach the next hop.
///
/// # Errors
/// When the request holds a method override. The map is unchanged then: answer 400.
pub fn strip_request_headers(headers: &mut HeaderMap) -> Result<(), OverrideRefused> {
    if let Some(name) = headers.keys().find(|name| is_override(&spelling(name))) {
        return Err(OverrideRefused(name.clone()));
    }
    let wants_trailers = wants_trailers(headers);
    strip_connection(headers);
    strip_matching(headers, |name| is_identity(name) || is_for_proxies(name));
    // Between us and each side: an app that refuses the body unread and goes on could take it for its next request. Egress asks
    // anew, and sends nothing behind an answer.
    headers.remove(header::EXPECT);
    if wants_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    Ok(())
}

/// Removes from an answer what must not reach the next hop.
pub fn strip_response_headers(headers: &mut HeaderMap) {
    strip_connection(headers);
    strip_matching(headers, |name| {
        name.starts_with("x-nova-") || is_for_proxies(name) || name == "alt-svc" || name == XFCC.as_str()
    });
}

/// Removes from the trailers of either direction whatever would be removed from headers: apps may merge the two.
pub fn strip_trailers(trailers: &mut HeaderMap) {
    strip_connection(trailers);
    strip_matching(trailers, |name| {
        is_identity(name) || is_override(name) || is_for_proxies(name) || matches!(name, "alt-svc" | "trailer")
    });
}

/// Puts the pieces of a cookie together again: HTTP/2 may send them as fields of their own, and in HTTP/1 there is one.
pub fn join_cookies(headers: &mut HeaderMap) {
    let mut pieces = headers.get_all(header::COOKIE).iter();
    let (Some(first), Some(second)) = (pieces.next(), pieces.next()) else { return };
    let mut joined = first.as_bytes().to_vec();
    for piece in std::iter::once(second).chain(pieces) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(piece.as_bytes());
    }
    // Pieces of valid values make a valid value.
    if let Ok(joined) = HeaderValue::from_bytes(&joined) {
        headers.insert(header::COOKIE, joined);
    }
}

/// Sets the caller's identity, each header exactly once. Call it after [`strip_request_headers`].
pub fn set_identity(headers: &mut HeaderMap, xfcc: &HeaderValue, xff: &HeaderValue) {
    headers.insert(XFCC, xfcc.clone());
    headers.insert(XFF, xff.clone());
}

/// Whether the headers change the protocol to `websocket`, the one that rules know: `Upgrade` names it and nothing else, and
/// `Connection` names `Upgrade`.
#[must_use]
pub fn is_to_websocket(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::UPGRADE).iter();
    let (Some(only), None) = (values.next(), values.next()) else { return false };
    only.as_bytes().eq_ignore_ascii_case(WEBSOCKET.as_bytes())
        && connection_names(headers).any(|name| name.eq_ignore_ascii_case("upgrade"))
}

/// Whether a request asks for datagrams (RFC 9298, RFC 9484): `Upgrade` names one of their protocols.
#[must_use]
pub fn asks_for_datagrams(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::UPGRADE).iter().filter_map(|value| value.to_str().ok());
    let mut names = values.flat_map(|value| value.split(',').map(str::trim));
    names.any(|name| ["connect-udp", "connect-ip"].iter().any(|protocol| name.eq_ignore_ascii_case(protocol)))
}

/// Puts the change to `websocket` back into cleaned headers: of a request after a grant, or of the 101.
pub fn set_websocket(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(WEBSOCKET));
}

/// Whether the sender waits for 100 before it sends its body. The gate lets nothing else be expected.
#[must_use]
pub fn expects(headers: &HeaderMap) -> bool {
    headers.contains_key(header::EXPECT)
}

/// Whether a request says that its sender reads the trailers of an answer.
#[must_use]
pub fn wants_trailers(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::TE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| coding.trim().eq_ignore_ascii_case("trailers"))
}

fn strip_connection(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        let named: Vec<HeaderName> = connection_names(headers)
            .filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok())
            .filter(|name| name != header::HOST && name != header::CONTENT_LENGTH)
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in CONNECTION_FIELDS.iter() {
        headers.remove(name);
    }
}

/// The tokens of all `Connection` headers.
fn connection_names(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(str::trim).filter(|name| !name.is_empty()))
}

/// Removes `name` in every spelling in which some server takes a header for it.
pub fn remove_spellings(headers: &mut HeaderMap, name: &HeaderName) {
    let wanted = spelling(name);
    strip_matching(headers, |other| *other == *wanted);
}

/// Removes the headers whose name matches in whatever spelling.
fn strip_matching(headers: &mut HeaderMap, matches: impl Fn(&str) -> bool) {
    // Most requests hold none, and then nothing is allocated.
    let named: Vec<HeaderName> = headers.keys().filter(|name| matches(&spelling(name))).cloned().collect();
    for name in named {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests;
