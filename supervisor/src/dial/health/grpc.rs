//! Asks an app of gRPC about the whole server: `Check` of `grpc.health.v1.Health`, with the empty service name.

use std::future::pending;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, StatusCode, Version};
use nova_proto::health;

use crate::gate::Limits;
use crate::guestlink::GuestStream;
use crate::reason::Reason;

const PATH: &str = "/grpc.health.v1.Health/Check";
/// A request with no service name is empty: an uncompressed message of length 0.
const REQUEST: Bytes = Bytes::from_static(&[0; 5]);
/// What may come of an answer, which has a few bytes.
const WINDOW: u32 = 16 * 1024;
/// Longest message that is looked at.
const MESSAGE_MAX: usize = 1024;

/// Whether the app says `SERVING`. The caller of this sets the deadline, which also bounds a flood of frames.
pub(super) async fn check(stream: GuestStream, authority: &str) -> Result<(), Reason> {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(u32::try_from(Limits::default().head_bytes).unwrap_or(u32::MAX));
    let (sender, connection) = builder.handshake::<_, Bytes>(stream).await.map_err(|_| Reason::GuestRefused)?;
    let carrying = async {
        // Its end is that of the question, which is asked first.
        let _ = connection.await;
        pending::<()>().await;
    };
    tokio::select! {
        biased;
        answered = ask(sender, authority) => answered.unwrap_or(Err(Reason::GuestRefused)),
        () = carrying => Err(Reason::GuestRefused),
    }
}

/// `Err`: the connection or the stream broke off.
async fn ask(sender: SendRequest<Bytes>, authority: &str) -> Result<Result<(), Reason>, h2::Error> {
    let request = Request::post(format!("http://{authority}{PATH}"))
        .version(Version::HTTP_2)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    // The name of a workload is one of a host.
    let Ok(request) = request.body(()) else { return Ok(Err(Reason::GuestRefused)) };
    let (answer, mut body): (_, SendStream<Bytes>) = sender.ready().await?.send_request(request, false)?;
    body.send_data(REQUEST, true)?;
    let (head, mut body) = answer.await?.into_parts();
    let is_grpc = head.headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if head.status != StatusCode::OK || !is_grpc || !is_fine(&head.headers).unwrap_or(true) {
        return Ok(Err(Reason::GuestRefused));
    }
    let Some(message) = message(&mut body).await? else { return Ok(Err(Reason::GuestRefused)) };
    let status = body.trailers().await?.and_then(|trailers| is_fine(&trailers));
    let serves = status == Some(true) && one(&message).is_some_and(health::is_serving);
    Ok(if serves { Ok(()) } else { Err(Reason::GuestRefused) })
}

/// Whether the status of the call is 0; `None` when they do not say.
fn is_fine(headers: &HeaderMap) -> Option<bool> {
    headers.get("grpc-status").map(|status| status.as_bytes() == b"0")
}

/// All of a body; `None` when it is too long.
async fn message(body: &mut RecvStream) -> Result<Option<Vec<u8>>, h2::Error> {
    let mut message = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        if message.len() + data.len() > MESSAGE_MAX {
            return Ok(None);
        }
        message.extend_from_slice(&data);
        // Fails only on a stream that is over, which has no window any more.
        let _ = body.flow_control().release_capacity(data.len());
    }
    Ok(Some(message))
}

/// The one message of a body, which is not compressed since nobody said that it may be.
fn one(body: &[u8]) -> Option<&[u8]> {
    let ([0, length @ ..], message) = body.split_first_chunk::<5>()? else { return None };
    (u32::from_be_bytes(*length) as usize == message.len()).then_some(message)
}
