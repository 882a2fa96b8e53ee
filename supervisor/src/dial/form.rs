//! A request in the form of the version that carries it. What it asks for, and of whom, is the same in both.

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Uri, Version, header};

use crate::reason::Reason;

/// The destination in Host, the target without it.
pub(super) fn http1<B>(request: &mut Request<B>) -> Result<(), Reason> {
    let Some(authority) = request.uri().authority() else { return Ok(()) };
    let host = HeaderValue::from_str(authority.as_str()).map_err(|_| Reason::BadDestination)?;
    let target = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    request.headers_mut().insert(header::HOST, host);
    *request.uri_mut() = Uri::from(target);
    *request.version_mut() = Version::HTTP_11;
    Ok(())
}

/// The destination in the target, no Host.
pub(super) fn http2<B>(request: &mut Request<B>, scheme: &Scheme) -> Result<(), Reason> {
    let mut parts = request.uri().clone().into_parts();
    if let Some(host) = request.headers_mut().remove(header::HOST) {
        parts.authority = Some(Authority::try_from(host.as_bytes()).map_err(|_| Reason::BadDestination)?);
    }
    parts.scheme = Some(scheme.clone());
    *request.uri_mut() = Uri::from_parts(parts).map_err(|_| Reason::BadDestination)?;
    *request.version_mut() = Version::HTTP_2;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_the_same_after_a_way_there_and_back() {
        let origin = || {
            let request = Request::get("/a%20b?c=d").header(header::HOST, "api.test:9443").header("x", "y");
            request.body(()).expect("a request")
        };
        let mut request = origin();
        http2(&mut request, &Scheme::HTTPS).expect("a form of HTTP/2");
        assert_eq!(request.uri().to_string(), "https://api.test:9443/a%20b?c=d");
        assert!(request.version() == Version::HTTP_2 && !request.headers().contains_key(header::HOST));
        http1(&mut request).expect("a form of HTTP/1.1");
        assert_eq!((request.uri(), request.headers()), (origin().uri(), origin().headers()));
        assert_eq!(request.version(), Version::HTTP_11);
        http1(&mut request).expect("nothing to do");
        assert_eq!(request.headers(), origin().headers());
    }

    #[test]
    fn a_host_that_is_none_goes_nowhere() {
        let mut request = Request::get("/").header(header::HOST, "a b").body(()).expect("a request");
        assert_eq!(http2(&mut request, &Scheme::HTTP), Err(Reason::BadDestination));
        let mut request = Request::get("/").body(()).expect("a request");
        assert_eq!(http2(&mut request, &Scheme::HTTP), Err(Reason::BadDestination));
    }
}
