//! What a caller is told when a call does not pass: RFC 9457 problem details, and nothing that an outsider could learn from.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};

use super::body::ReplyBody;
use crate::audit::Record;
use crate::gate::io::GatedIo;
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

/// The answer for `reason`. `call` is what the caller itself asked for and is told only to guests of this node, together
/// with the command that explains the denial; outsiders get the id alone.
pub fn refusal(record: &mut Record, reason: Reason, call: Option<&str>) -> Response<ReplyBody> {
    let public = reason.public();
    record.status(public.status());
    let id = record.decision_id();
    let problem = Problem {
        r#type: "about:blank",
        title: title(public),
        status: public.status(),
        detail: public.text(),
        decision_id: id,
        call,
        explain: call.map(|_| format!("nova-supervisor replay {id}")),
    };
    // Serialising strings and numbers cannot fail; an empty body would still carry the id in its header.
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let id = HeaderValue::from_str(id).unwrap_or(HeaderValue::from_static("-"));
    let mut response = Response::new(ReplyBody::Text(Full::new(Bytes::from(body))));
    *response.status_mut() = StatusCode::from_u16(public.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(DECISION_ID, id);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Ends the connection of a request that asked to leave HTTP and may not: hyper hands such a connection out instead of
/// closing it, and a plain drop could reset the answer away.
pub fn end_gently<S: AsyncRead + AsyncWrite + Unpin + 'static>(handed_out: OnUpgrade) {
    tokio::task::spawn_local(async move {
        let Ok(upgraded) = handed_out.await else { return };
        if let Ok(parts) = upgraded.downcast::<TokioIo<GatedIo<S>>>() {
            // An error is the caller's own doing, and the end all the same.
            let _ = parts.io.into_inner().close().await;
        }
    });
}

fn title(public: Public) -> &'static str {
    match public {
        Public::Ok => "",
        Public::Denied => "denied by policy",
        Public::UseHttp => "use http:// for workloads",
        Public::Malformed => "malformed request",
        Public::NotCarried => "not carried",
        Public::Unavailable => "unavailable",
        Public::UpstreamFailed => "destination failed",
        Public::UpstreamTimeout => "destination timed out",
    }
}
