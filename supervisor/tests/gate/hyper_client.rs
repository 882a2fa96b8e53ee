//! What hyper as a client sees behind the gate.

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use nova_supervisor::gate::io::GatedIo;
use nova_supervisor::gate::{GateHandle, Limits, Refusal};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::time::timeout;

use crate::server::LONG;

/// Sends `requests` one after the other over one connection to an app that answers each with the next of `answers`.
async fn call(
    requests: Vec<Request<Empty<Bytes>>>,
    answers: Vec<&'static str>,
) -> (Vec<Result<(StatusCode, Bytes), hyper::Error>>, GateHandle) {
    let (mut app, stream) = duplex(64 * 1024);
    let io = GatedIo::client(stream, Limits::default());
    let handle = io.handle();
    let (mut sender, conn) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await.expect("no io yet");
    tokio::spawn(conn);
    tokio::spawn(async move {
        for answer in answers {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(app.read_u8().await.expect("a request"));
            }
            app.write_all(answer.as_bytes()).await.expect("open");
            if answer.contains("until the end") {
                return;
            }
        }
        // Stays open until the client goes.
        let _ = app.read_u8().await;
    });
    let mut results = Vec::new();
    for request in requests {
        let result = async {
            sender.ready().await?;
            let response = sender.send_request(request).await?;
            let status = response.status();
            Ok((status, response.into_body().collect().await?.to_bytes()))
        };
        results.push(timeout(LONG, result).await.expect("an answer in time"));
    }
    (results, handle)
}

fn request(method: Method) -> Request<Empty<Bytes>> {
    let request = Request::builder().method(method).uri("/").header(header::HOST, "a");
    request.body(Empty::new()).expect("a request")
}

#[tokio::test]
async fn answers_that_two_parsers_could_read_differently_fail_the_call() {
    for (answer, refusal) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", Refusal::LengthAndChunked),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n", Refusal::DuplicateContentLength),
        ("HTTP/1.1 200 OK\nContent-Length: 0\n\n", Refusal::BareLf),
        ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n", Refusal::UnaskedUpgrade),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\n\r\n", Refusal::BadChunk),
    ] {
        let (results, handle) = call(vec![request(Method::GET)], vec![answer]).await;
        assert!(results[0].is_err(), "{answer:?}");
        assert_eq!(handle.refusal(), Some(refusal), "{answer:?}");
        assert!(!handle.is_reusable());
    }
}

#[tokio::test]
async fn an_answer_of_two_leaves_the_connection_unusable() {
    let two = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    let (results, handle) = call(vec![request(Method::GET), request(Method::GET)], vec![two]).await;
    assert_eq!(results[0].as_ref().expect("the first answer").1, "hi");
    assert!(results[1].is_err());
    assert_eq!((handle.refusal(), handle.is_reusable()), (Some(Refusal::UnaskedAnswer), false));
}

#[tokio::test]
async fn head_and_get_take_turns_on_one_connection() {
    let (results, handle) = call(
        vec![request(Method::HEAD), request(Method::GET), request(Method::GET)],
        vec![
            "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n",
            "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
        ],
    )
    .await;
    let bodies: Vec<_> = results.into_iter().map(|result| result.expect("an answer").1).collect();
    assert_eq!(bodies, ["", "hi", ""]);
    assert!(handle.is_reusable() && handle.refusal().is_none() && handle.sent_refusal().is_none());
}

#[tokio::test]
async fn an_answer_that_ends_with_the_connection_is_whole_and_not_reusable() {
    let answer = "HTTP/1.1 200 OK\r\n\r\nuntil the end";
    let (results, handle) = call(vec![request(Method::GET)], vec![answer]).await;
    assert_eq!(results[0].as_ref().expect("an answer").1, "until the end");
    assert_eq!((handle.refusal(), handle.is_reusable()), (None, false));
}

#[tokio::test]
async fn a_request_of_our_own_that_the_gate_would_refuse_is_a_fault_of_ours() {
    let mut without_host = request(Method::GET);
    without_host.headers_mut().clear();
    let (results, handle) = call(vec![without_host], vec![]).await;
    assert!(results[0].is_err());
    assert_eq!((handle.refusal(), handle.sent_refusal()), (None, Some(Refusal::MissingHost)));
}

#[tokio::test]
async fn the_first_frame_glued_to_a_101_is_the_first_of_the_tunnel() {
    let (mut app, stream) = duplex(64 * 1024);
    let io = GatedIo::client(stream, Limits::default());
    let (mut sender, conn) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await.expect("no io yet");
    tokio::spawn(conn.with_upgrades());
    let mut upgrade = request(Method::GET);
    upgrade.headers_mut().insert(header::CONNECTION, "upgrade".parse().expect("a value"));
    upgrade.headers_mut().insert(header::UPGRADE, "websocket".parse().expect("a value"));
    let answer = async {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(app.read_u8().await.expect("a request"));
        }
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nframe\n";
        app.write_all(switch.as_bytes()).await.expect("room");
    };
    let (response, ()) =
        timeout(LONG, async { tokio::join!(sender.send_request(upgrade), answer) }).await.expect("in time");
    let mut response = response.expect("an answer");
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let upgraded = hyper::upgrade::on(&mut response).await.expect("an upgrade");
    let parts = upgraded.downcast::<TokioIo<GatedIo<DuplexStream>>>().expect("our stream");
    let (_stream, early) = parts.io.into_inner().into_parts();
    assert_eq!((parts.read_buf, early), (Bytes::new(), Bytes::from_static(b"frame\n")));
}
