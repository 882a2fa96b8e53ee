//! What a caller is told when a call does not pass: RFC 9457 problem details, and nothing that an outsider could learn from.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde::Serialize;

use super::body::ReplyBody;
use crate::audit::Record;
use crate::reason::{Public, Reason};

/// Carries the decision id to the caller.
pub const DECISION_ID: &str = "x-nova-decision-id";

#[derive(Serialize)]
struct Problem<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'static str,
    decision_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    explain: Option<String>,
}

/// How a caller reads a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A status code with problem details.
    Problem,
    /// 200 with a gRPC status and no message: clients of gRPC take any other status for a broken server.
    Grpc,
    /// The same, for the clients in browsers.
    GrpcWeb,
}

impl Form {
    /// What the content type of the request asks for.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let value = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        match value.strip_prefix(b"application/grpc") {
            Some([] | [b'+' | b';' | b' ', ..]) => Self::Grpc,
            Some([b'-', b'w', b'e', b'b', ..]) => Self::GrpcWeb,
            _ => Self::Problem,
        }
    }
}

/// The answer for `reason` in the form that the caller reads. `call` is what the caller itself asked for and is told only to
/// guests of this node, together with the command that explains the denial; outsiders get the id alone.
pub fn refusal(record: &mut Record, reason: Reason, call: Option<&str>, form: Form) -> Response<ReplyBody> {
    let mut response = match form {
        Form::Problem => problem(record, reason.public(), call),
        Form::Grpc => trailers_only(record, reason.public(), call, "application/grpc"),
        Form::GrpcWeb => trailers_only(record, reason.public(), call, "application/grpc-web"),
    };
    let headers = response.headers_mut();
    headers.insert(DECISION_ID, HeaderValue::from_str(record.decision_id()).unwrap_or(HeaderValue::from_static("-")));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The same as the bytes of a whole answer that ends its connection: for whoever spoke anything but HTTP, and whose log may
/// show what came back.
pub fn refusal_bytes(record: &mut Record, reason: Reason, call: &str) -> Vec<u8> {
    let public = reason.public();
    let body = problem_body(record, public, Some(call));
    let title = StatusCode::from_u16(public.status()).ok().and_then(|status| status.canonical_reason());
    let head = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/problem+json\r\n{DECISION_ID}: {}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        public.status(),
        title.unwrap_or_default(),
        record.decision_id(),
        body.len(),
    );
    [head.as_bytes(), &body].concat()
}

fn problem_body(record: &mut Record, public: Public, call: Option<&str>) -> Vec<u8> {
    record.status(public.status());
    let id = record.decision_id();
    let problem = Problem {
        r#type: "about:blank",
        title: title(public),
        status: public.status(),
        detail: if call.is_some() { public.text_for_guests() } else { public.text() },
        decision_id: id,
        call,
        explain: call.map(|_| format!("nova-supervisor replay {id}")),
    };
    // Serialising strings and numbers cannot fail; an empty body would still carry the id in its header.
    serde_json::to_vec(&problem).unwrap_or_default()
}

fn problem(record: &mut Record, public: Public, call: Option<&str>) -> Response<ReplyBody> {
    let body = problem_body(record, public, call);
    let mut response = Response::new(ReplyBody::Text(Full::new(Bytes::from(body))));
    *response.status_mut() = StatusCode::from_u16(public.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if let Some(challenge) = public.challenge() {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    }
    response
}

/// A gRPC answer of headers alone, which stand for the trailers: status and message. A guest reads which call it was: gRPC
/// libraries choose the authority by themselves, and show nothing of it.
fn trailers_only(
    record: &mut Record,
    public: Public,
    call: Option<&str>,
    content_type: &'static str,
) -> Response<ReplyBody> {
    record.status(200);
    let text = match call {
        Some(call) => format!("{} ({call})", public.text_for_guests()),
        None => public.text().to_owned(),
    };
    record.grpc_status(public.grpc_status());
    let mut response = Response::new(ReplyBody::Text(Full::default()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert("grpc-status", HeaderValue::from(public.grpc_status()));
    headers
        .insert("grpc-message", HeaderValue::from_str(&percent_encoded(&text)).unwrap_or(HeaderValue::from_static("")));
    response
}

/// As gRPC writes messages: printable ASCII but `%` stands for itself.
fn percent_encoded(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::with_capacity(text.len()), |mut encoded, byte| {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            // Writing to a string cannot fail.
            _ => _ = write!(encoded, "%{byte:02X}"),
        }
        encoded
    })
}

fn title(public: Public) -> &'static str {
    match public {
        Public::Ok => "",
        Public::Denied => "denied by policy",
        Public::NoToken => "token required",
        Public::BadToken => "token not valid",
        Public::UseHttp => "use http:// for workloads",
        Public::Malformed => "malformed request",
        Public::EscapedSlash => "escaped slash",
        Public::NoDestination => "no destination",
        Public::NotCarried => "not carried",
        Public::TooSlow => "too slow",
        Public::Unavailable => "unavailable",
        Public::UpstreamFailed => "destination failed",
        Public::Withheld => "answer withheld",
        Public::UpstreamTimeout => "destination timed out",
    }
}
