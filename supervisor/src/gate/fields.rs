//! Heads that come as parsed fields, as those of HTTP/2 do: the rules for the lines of an HTTP/1 head, as far as the library
//! that parsed the fields leaves them open. What passes here can be written as an HTTP/1 head that passes the gate.

use http::uri::Scheme;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header, request, response};

use super::{
    Limits, Refusal,
    head::{METHOD_MAX, decimal},
    line::{Field, check_text},
    target::check_target,
};

/// Checks the head of a request. `has_body`: its stream did not end with the head.
///
/// # Errors
/// The rule that the head breaks.
pub fn check_request(head: &request::Parts, has_body: bool, limits: &Limits) -> Result<(), Refusal> {
    if head.method.as_str().len() > METHOD_MAX {
        return Err(Refusal::BadRequestLine);
    }
    if head.headers.len() > limits.fields {
        return Err(Refusal::TooManyHeaders);
    }
    if head.uri.scheme().is_some_and(|scheme| *scheme != Scheme::HTTP && *scheme != Scheme::HTTPS) {
        return Err(Refusal::BadTarget);
    }
    if let Some(target) = head.uri.path_and_query().filter(|_| head.method != Method::CONNECT) {
        check_target(head.method.as_str().as_bytes(), target.as_str().as_bytes(), false)?;
    }
    for (name, value) in &head.headers {
        check_field(name, value, true)?;
    }
    only_once(&head.headers, header::HOST, Refusal::DuplicateHost)?;
    let length = announced(&head.headers)?;
    only_once(&head.headers, header::EXPECT, Refusal::BadExpect)?;
    if head.headers.get(header::EXPECT).is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        return Err(Refusal::BadExpect);
    }
    let bodiless = matches!(head.method, Method::GET | Method::HEAD) && !limits.body_on_get;
    if bodiless && (has_body || matches!(length, Some(1..))) {
        return Err(Refusal::UnexpectedBody);
    }
    Ok(())
}

/// Checks the head of an answer.
///
/// # Errors
/// The rule that the head breaks.
pub fn check_answer(head: &response::Parts, limits: &Limits) -> Result<(), Refusal> {
    if head.headers.len() > limits.fields {
        return Err(Refusal::TooManyHeaders);
    }
    for (name, value) in &head.headers {
        check_field(name, value, false)?;
    }
    announced(&head.headers).map(drop)
}

/// Checks trailers; those of requests are of ASCII alone.
///
/// # Errors
/// The rule that they break.
pub fn check_trailers(trailers: &HeaderMap, ascii: bool, limits: &Limits) -> Result<(), Refusal> {
    // As lines: name, colon, space, value, CRLF.
    let bytes: usize = trailers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if trailers.len() > limits.trailer_fields || bytes > limits.trailer_bytes {
        return Err(Refusal::BadTrailer);
    }
    for (name, value) in trailers {
        check_field(name, value, ascii)?;
        let field = Field { name: name.as_str().as_bytes(), value: value.as_bytes() };
        if !field.may_trail() {
            return Err(Refusal::BadTrailer);
        }
    }
    Ok(())
}

fn check_field(name: &HeaderName, value: &HeaderValue, ascii: bool) -> Result<(), Refusal> {
    // Apps that read `_` as `-` would frame the message by these.
    if matches!(name.as_str(), "content_length" | "transfer_encoding") {
        return Err(Refusal::BadHeaderName);
    }
    check_text(value.as_bytes(), ascii)
}

/// The length that a head announces.
fn announced(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    only_once(headers, header::CONTENT_LENGTH, Refusal::DuplicateContentLength)?;
    let length = headers.get(header::CONTENT_LENGTH).map(|value| decimal(value.as_bytes()));
    length.map(|length| length.ok_or(Refusal::BadContentLength)).transpose()
}

fn only_once(headers: &HeaderMap, name: HeaderName, refusal: Refusal) -> Result<(), Refusal> {
    if headers.get_all(name).iter().nth(1).is_some() { Err(refusal) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &str, target: &str, fields: &[(&str, &str)], has_body: bool) -> Result<(), Refusal> {
        let mut request = http::Request::builder().method(method).uri(target);
        for (name, value) in fields {
            request = request.header(*name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
        }
        check_request(&request.body(()).expect("a request").into_parts().0, has_body, &Limits::default())
    }

    #[test]
    fn heads_that_http1_could_not_carry_are_refused() {
        let refused = |fields: &[(&str, &str)]| check("POST", "/a", fields, true).expect_err("refused");
        assert_eq!(refused(&[("host", "a"), ("host", "a")]), Refusal::DuplicateHost);
        assert_eq!(refused(&[("content-length", "1"), ("content-length", "1")]), Refusal::DuplicateContentLength);
        for length in ["+1", "0x1", "01", "1, 1", "", "1 ", "9999999999999999999"] {
            assert_eq!(refused(&[("content-length", length)]), Refusal::BadContentLength, "{length:?}");
        }
        assert_eq!(refused(&[("content_length", "1")]), Refusal::BadHeaderName);
        assert_eq!(refused(&[("transfer_encoding", "chunked")]), Refusal::BadHeaderName);
        assert_eq!(refused(&[("expect", "200-ok")]), Refusal::BadExpect);
        assert_eq!(refused(&[("expect", "100-continue"), ("expect", "100-continue")]), Refusal::BadExpect);
        assert_eq!(refused(&[("x", "caf\u{e9}")]), Refusal::NonAscii);
        let many: Vec<_> = (0..101).map(|_| ("x", "y")).collect();
        assert_eq!(refused(&many), Refusal::TooManyHeaders);
        assert_eq!(check("GET", "/a", &[], true), Err(Refusal::UnexpectedBody));
        assert_eq!(check("HEAD", "/a", &[("content-length", "4")], false), Err(Refusal::UnexpectedBody));
        assert_eq!(check("POST", "*", &[], true), Err(Refusal::BadTarget));
        assert_eq!(check("GET", "ftp://a/b", &[], false), Err(Refusal::BadTarget));
        assert_eq!(check(&"M".repeat(33), "/a", &[], true), Err(Refusal::BadRequestLine));
    }

    #[test]
    fn ordinary_heads_pass() {
        assert_eq!(check("POST", "/a?b=c", &[("content-length", "0"), ("expect", "100-continue")], true), Ok(()));
        assert_eq!(check("GET", "/a", &[("te", "trailers"), ("x_y", "z\tz")], false), Ok(()));
        assert_eq!(check("OPTIONS", "*", &[], false), Ok(()));
        for target in ["http://a/b", "https://a/b", "HTTPS://a/b"] {
            assert_eq!(check("GET", target, &[], false), Ok(()), "{target}");
        }
    }

    #[test]
    fn trailers_that_frame_or_route_are_refused_and_so_are_giant_ones() {
        let trailers = |name: &str, value: &str| {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            let map = HeaderMap::from_iter([(name, HeaderValue::from_str(value).expect("a value"))]);
            check_trailers(&map, true, &Limits::default())
        };
        for name in ["host", "content-length", "content_length", "authorization", "x-forwarded-client-cert", "te"] {
            assert!(trailers(name, "x").is_err(), "{name}");
        }
        assert_eq!(trailers("x", &"y".repeat(8 * 1024)), Err(Refusal::BadTrailer));
        assert_eq!(trailers("grpc-status", "0"), Ok(()));
    }
}
