//! Requests that HTTP/2 servers turn away undone. RFC 9113, section 8.7: a stream that was refused (REFUSED_STREAM), or is above
//! the last one that a GOAWAY names, was not processed in any way, so its request may be sent again, whatever its method.
//!
//! Only requests without a body are: of others some has been read by then, and nothing is held here to be sent again.

use http::{HeaderMap, Method, Request, Uri, Version};
use hyper::body::Body;

use crate::conn::body::{Inbound, RequestBody};

/// A request without a body, as often as it is needed.
pub(super) struct Spare {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

impl Spare {
    /// Of a request, if it has no body.
    pub(super) fn of(request: &Request<RequestBody>) -> Option<Self> {
        request.body().is_end_stream().then(|| Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            headers: request.headers().clone(),
        })
    }

    /// The request.
    pub(super) fn request(self) -> Request<RequestBody> {
        let (body, _) = RequestBody::new(Inbound::Empty);
        let mut request = Request::new(body);
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.headers;
        request
    }
}

/// Whether an exchange failed because the other side turned it away, and said so. A connection that just ends says nothing of
/// what was done.
pub(super) fn is_undone(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| {
        cause.is_remote() && (cause.is_go_away() || cause.reason() == Some(h2::Reason::REFUSED_STREAM))
    })
}
