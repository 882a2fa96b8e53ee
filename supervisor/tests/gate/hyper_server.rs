//! What hyper as a server sees behind the gate, and what the client gets back.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Method, Response};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nova_supervisor::gate::io::GatedIo;
use nova_supervisor::gate::{GateHandle, Limits, Refusal};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::time::timeout;

use crate::server::{LONG, Server, get};

#[tokio::test]
async fn a_partial_head_never_reaches_the_reader() {
    let (mut client, stream) = duplex(1024);
    let mut io = GatedIo::server(stream, Limits::default());
    let mut buffer = [0; 1024];
    let head = get("/a");
    for byte in &head.as_bytes()[..head.len() - 1] {
        client.write_all(&[*byte]).await.expect("room");
        assert!(io.read(&mut buffer).now_or_never().is_none());
    }
    client.write_all(b"\n").await.expect("room");
    let read = io.read(&mut buffer).await.expect("a head");
    assert_eq!(&buffer[..read], head.as_bytes());
}

#[tokio::test]
async fn a_reader_with_a_small_buffer_gets_the_same_bytes() {
    let (mut client, stream) = duplex(1024);
    let mut io = GatedIo::server(stream, Limits::default());
    let input = format!("{}POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", get("/a"));
    client.write_all(input.as_bytes()).await.expect("room");
    let mut all = Vec::new();
    while all.len() < input.len() {
        all.push(io.read_u8().await.expect("a byte"));
    }
    assert_eq!(all, input.as_bytes());
}

#[tokio::test]
async fn an_allowed_request_is_served_the_bad_one_behind_it_is_answered_400_and_the_third_is_never_seen() {
    let mut server = Server::start(Limits::default());
    server.send(format!("{}GET /bad HTTP/1.1\nHost: a\n\n{}", get("/slow"), get("/third"))).await;
    // The refused bytes are read while the first request is still being answered.
    while server.handle.refusal().is_none() {
        tokio::task::yield_now().await;
    }
    server.go.notify_one();
    let text = server.rest().await;
    assert_eq!(text.matches("HTTP/1.1 200 OK\r\n").count(), 1, "{text}");
    assert_eq!(text.matches("HTTP/1.1 400 Bad Request\r\n").count(), 1, "{text}");
    assert!(text.find(" 200 ") < text.find(" 400 "), "{text}");
    assert_eq!(server.paths(), ["/slow"]);
    assert_eq!(server.handle.refusal(), Some(Refusal::BareLf));
    assert!(!server.handle.is_reusable());
}

#[tokio::test]
async fn a_refused_first_request_gets_a_400_and_a_too_large_one_a_431() {
    for (input, status, refusal) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), " 400 ", Refusal::MissingHost),
        (format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "y".repeat(66_000)), " 431 ", Refusal::HeadTooLarge),
    ] {
        let mut server = Server::with_buffer(Limits::default(), 128 * 1024);
        server.send(input).await;
        let text = server.rest().await;
        assert!(text.contains(status) && text.contains("connection: close\r\n"), "{text}");
        assert!(text.contains("application/problem+json"), "{text}");
        assert_eq!((server.paths().len(), server.handle.refusal()), (0, Some(refusal)));
        drop(server.client);
        timeout(LONG, server.task).await.expect("ends").expect("no panic").expect("a clean end");
    }
}

#[tokio::test]
async fn a_head_that_does_not_end_in_time_gets_a_408() {
    let mut server = Server::start(Limits { head_time: Duration::from_millis(50), ..Limits::default() });
    server.send(get("/first")).await;
    server.until("fine").await;
    server.send("GET /second HTTP/1.1\r\nHo").await;
    let text = server.rest().await;
    assert!(text.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{text}");
    assert_eq!((server.paths(), server.handle.refusal()), (vec!["/first".to_owned()], Some(Refusal::HeadTimeout)));
}

#[tokio::test]
async fn an_idle_connection_and_a_lone_crlf_have_no_deadline() {
    let mut server = Server::start(Limits { head_time: Duration::from_millis(5), ..Limits::default() });
    for idle in ["", "\r\n"] {
        server.send(idle).await;
        assert!(timeout(Duration::from_millis(50), server.client.read_u8()).await.is_err());
        server.send(get("/a")).await;
        server.until("fine").await;
    }
    assert_eq!(server.handle.refusal(), None);
}

#[tokio::test]
async fn a_refusal_inside_a_body_reaches_the_service_as_an_error() {
    let mut server = Server::start(Limits::default());
    let head = "POST /up HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    server.send(format!("{head}5\r\nhello\r\n5;x\r\nhello\r\n0\r\n\r\n{}", get("/next"))).await;
    let text = server.rest().await;
    assert!(text.starts_with("HTTP/1.1 400 Bad Request\r\n") && !text.contains(" 200 "), "{text}");
    assert_eq!(*server.seen.lock().expect("no panic"), [(Method::POST, "/up".to_owned(), None)]);
    assert_eq!(server.handle.refusal(), Some(Refusal::BadChunk));
}

#[tokio::test]
async fn a_refused_connect_closes_and_the_request_in_its_payload_is_never_seen() {
    let mut server = Server::start(Limits::default());
    server.send(format!("CONNECT denied.test:443 HTTP/1.1\r\n\r\n{}", get("/smuggled"))).await;
    let text = server.rest().await;
    assert!(text.starts_with("HTTP/1.1 403 Forbidden\r\n") && text.matches("HTTP/1.1").count() == 1, "{text}");
    assert_eq!(server.paths(), ["denied.test:443"]);
    assert_eq!(server.handle.refusal(), None);
}

#[tokio::test]
async fn bytes_that_come_with_an_accepted_connect_go_through_the_tunnel_unscanned() {
    let mut server = Server::start(Limits::default());
    server.send("CONNECT a.test:443 HTTP/1.1\r\n\r\nGET \0\n\n").await;
    let text = server.until("GET \0\n\n").await;
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nGET \0\n\n"), "{text:?}");
    server.send("\n\r\0 more").await;
    server.until("\n\r\0 more").await;
    server.client.shutdown().await.expect("open");
    assert_eq!(server.rest().await, "");
    assert_eq!((server.paths().len(), server.handle.refusal()), (1, None));
}

#[tokio::test]
async fn websocket_frames_pass_after_a_101() {
    let mut server = Server::start(Limits::default());
    server.send("GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x01early").await;
    let text = server.until("\x01early").await;
    assert!(text.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{text}");
    server.send("\n\n").await;
    server.until("\n\n").await;
}

#[tokio::test]
async fn http_goes_on_after_an_upgrade_that_was_not_taken() {
    let mut server = Server::start(Limits::default());
    let upgrade =
        "POST /plain HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: foo\r\nContent-Length: 2\r\n\r\nhi";
    server.send(format!("{upgrade}{}", get("/next"))).await;
    let mut text = server.until("fine").await;
    while text.matches("fine").count() < 2 {
        text.push_str(&server.until("fine").await);
    }
    assert_eq!(server.paths(), ["/plain", "/next"]);
}

#[tokio::test]
async fn java_clients_that_always_offer_h2c_are_served() {
    let mut server = Server::start(Limits::default());
    let java = "GET /a HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
                HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n";
    server.send(java).await;
    assert!(server.until("fine").await.starts_with("HTTP/1.1 200 OK\r\n"));
}

#[tokio::test]
async fn head_requests_and_pipelines_longer_than_the_limit_are_answered_in_order() {
    let mut server = Server::start(Limits { pipelined: 4, ..Limits::default() });
    let mut input = "HEAD /h HTTP/1.1\r\nHost: a\r\n\r\n".to_owned();
    (0..50).for_each(|at| input.push_str(&get(&format!("/{at}"))));
    input.push_str("GET /last HTTP/1.1\r\n\r\n");
    server.send(input).await;
    let text = server.rest().await;
    assert_eq!((text.matches(" 200 OK").count(), text.matches(" 400 ").count()), (51, 1), "{text}");
    assert_eq!(server.paths().len(), 51);
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_gets_it() {
    let mut server = Server::start(Limits::default());
    server.send("PUT /up HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n").await;
    server.until("HTTP/1.1 100 Continue\r\n\r\n").await;
    server.send("body").await;
    server.until("fine").await;
    server.send(get("/next")).await;
    server.until("fine").await;
    assert_eq!(server.paths(), ["/up", "/next"]);
}

#[tokio::test]
async fn a_client_that_goes_away_while_a_connect_waits_is_noticed() {
    let (mut client, stream) = duplex(1024);
    let mut io = GatedIo::server(stream, Limits::default());
    client.write_all(b"CONNECT a:1 HTTP/1.1\r\n\r\n").await.expect("room");
    let mut buffer = [0; 1024];
    assert!(io.read(&mut buffer).await.expect("a head") > 0);
    drop(client);
    assert_eq!(timeout(LONG, io.read(&mut buffer)).await.expect("noticed").expect("an end"), 0);
}

#[tokio::test]
async fn the_400_arrives_although_the_client_still_sends() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let mut client = tokio::net::TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
    let (stream, _) = listener.accept().await.expect("a client");
    let service = service_fn(|_| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) });
    let io = TokioIo::new(GatedIo::server(stream, Limits::default()));
    tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
    client.write_all(b"POST / HTTP/1.1\nHost: a\n\n").await.expect("open");
    client.write_all(&[b'x'; 200_000]).await.expect("the gate drains");
    let mut text = String::new();
    timeout(LONG, client.read_to_string(&mut text)).await.expect("closed").expect("no reset");
    assert!(text.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{text}");
}

#[tokio::test]
async fn a_denial_arrives_although_the_client_still_sends_the_body() {
    for framing in ["Content-Length: 400000", "Transfer-Encoding: chunked"] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let mut client =
            tokio::net::TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
        let (stream, _) = listener.accept().await.expect("a client");
        // Answers without a look at the body, as a denial does.
        let service = service_fn(|_| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) });
        let io = TokioIo::new(GatedIo::server(stream, Limits::default()));
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service).with_upgrades());
        client.write_all(format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n").as_bytes()).await.expect("open");
        let part = [b"1000\r\n".as_slice(), &[b'x'; 0x1000], b"\r\n"].concat();
        for _ in 0..90 {
            client.write_all(&part).await.expect("what is still sent is read");
            tokio::task::yield_now().await;
        }
        let mut text = String::new();
        timeout(LONG, client.read_to_string(&mut text)).await.expect("closed").expect("no reset");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{framing}: {text}");
    }
}

#[test]
fn a_gated_stream_can_move_between_threads() {
    fn is_send<T: Send>() {}
    is_send::<GatedIo<tokio::net::TcpStream>>();
    is_send::<GateHandle>();
}
