//! The gate around a stream, with hyper behind it: what hyper sees, what the client gets back, and that both call the
//! same bytes a message.
// covers: A7a (request gate)

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use nova_supervisor::gate::{Asked, Event, Gate, GateHandle, Limits, Refusal, io::GatedIo};
use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    sync::Notify,
    task::JoinHandle,
    time::timeout,
};

const LONG: Duration = Duration::from_secs(10);

/// A request as the service saw it. A body that failed is `None`.
type Seen = Arc<Mutex<Vec<(Method, String, Option<Bytes>)>>>;

/// A hyper server behind a gate, and the client's end of its stream.
struct Server {
    client: DuplexStream,
    seen: Seen,
    handle: GateHandle,
    /// Answers to `/slow` wait for it.
    go: Arc<Notify>,
    task: JoinHandle<hyper::Result<()>>,
}

impl Server {
    fn start(limits: Limits) -> Self {
        Self::with_buffer(limits, 64 * 1024)
    }

    fn with_buffer(limits: Limits, bytes: usize) -> Self {
        let (client, stream) = duplex(bytes);
        let io = GatedIo::server(stream, limits);
        let (seen, handle, go) = (Seen::default(), io.handle(), Arc::new(Notify::new()));
        let (log, gate, slow) = (seen.clone(), handle.clone(), go.clone());
        let service = service_fn(move |request| answer(request, log.clone(), gate.clone(), slow.clone()));
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new());
        let task = tokio::spawn(builder.serve_connection(TokioIo::new(io), service).with_upgrades());
        Self { client, seen, handle, go, task }
    }

    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.client.write_all(bytes.as_ref()).await.expect("the server reads");
    }

    /// Everything until the server closes.
    async fn rest(&mut self) -> String {
        let mut all = Vec::new();
        timeout(LONG, self.client.read_to_end(&mut all)).await.expect("the server closes").expect("a clean end");
        String::from_utf8(all).expect("text")
    }

    /// Reads until `text` came.
    async fn until(&mut self, text: &str) -> String {
        let mut all = String::new();
        while !all.contains(text) {
            let mut part = [0; 1024];
            let read = timeout(LONG, self.client.read(&mut part)).await;
            assert!(read.is_ok(), "no {text:?}: {all:?}");
            let read = read.expect("in time").expect("readable");
            assert!(read > 0, "closed before {text:?}: {all:?}");
            all.push_str(&String::from_utf8_lossy(&part[..read]));
        }
        all
    }

    fn paths(&self) -> Vec<String> {
        self.seen.lock().expect("no panic").iter().map(|(_, path, _)| path.clone()).collect()
    }
}

async fn answer(
    mut request: Request<Incoming>,
    seen: Seen,
    gate: GateHandle,
    go: Arc<Notify>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let upgrade = hyper::upgrade::on(&mut request);
    let (head, body) = request.into_parts();
    if head.uri.path() == "/slow" {
        go.notified().await;
    }
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).ok();
    let failed = body.is_none();
    let target = head.uri.to_string();
    seen.lock().expect("no panic").push((head.method.clone(), target.clone(), body));
    let mut response = Response::new(Full::new(Bytes::from_static(b"fine")));
    if failed {
        *response.status_mut() = gate.refusal().map_or(StatusCode::BAD_GATEWAY, Refusal::status);
    } else if target.contains("denied") {
        *response.status_mut() = StatusCode::FORBIDDEN;
    } else if target.ends_with("/ws") {
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert(header::CONNECTION, "upgrade".parse().expect("a value"));
        response.headers_mut().insert(header::UPGRADE, "websocket".parse().expect("a value"));
        *response.body_mut() = Full::default();
        tokio::spawn(echo(upgrade));
    } else if head.method == Method::CONNECT {
        *response.body_mut() = Full::default();
        tokio::spawn(echo(upgrade));
    }
    Ok(response)
}

/// The tunnel: what hyper read too much of must be nothing, what the gate held comes first.
async fn echo(upgrade: hyper::upgrade::OnUpgrade) {
    let upgraded = upgrade.await.expect("an upgrade");
    let parts = upgraded.downcast::<TokioIo<GatedIo<DuplexStream>>>().expect("our stream");
    assert!(parts.read_buf.is_empty(), "hyper saw bytes of the tunnel");
    let (mut stream, early) = parts.io.into_inner().into_parts();
    stream.write_all(&early).await.expect("open");
    let (mut from, mut to) = tokio::io::split(stream);
    tokio::io::copy(&mut from, &mut to).await.expect("a tunnel");
    to.shutdown().await.expect("open");
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

// --- server side ----------------------------------------------------------------------------------------------------

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

// --- client side ----------------------------------------------------------------------------------------------------

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

// --- real sockets ---------------------------------------------------------------------------------------------------

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

// --- differential ---------------------------------------------------------------------------------------------------

/// What the gate calls messages: their bodies, without chunk framing, and the refusal.
fn messages(input: &[u8]) -> (Vec<Bytes>, Option<Refusal>) {
    let mut gate = Gate::requests(Limits::default());
    let (mut at, mut done) = (0, Vec::new());
    let (mut raw, mut is_chunked) = (Vec::new(), false);
    loop {
        let step = match gate.step(&input[at..]) {
            Ok(step) => step,
            Err(refusal) => return (done, Some(refusal)),
        };
        let released = &input[at..at + step.release];
        at += step.release;
        match step.event {
            Event::Request(asked) => {
                raw.clear();
                is_chunked = String::from_utf8_lossy(released).to_lowercase().contains("\r\ntransfer-encoding:");
                assert_ne!(asked, Asked::Head, "no HEAD in the samples");
            }
            Event::End => {
                raw.extend_from_slice(released);
                done.push(if is_chunked { dechunk(&raw) } else { raw.clone().into() });
                match gate.is_held() && input.starts_with(b"CONNECT") {
                    true => gate.close(),
                    false => gate.resume(),
                }
            }
            Event::More if step.release > 0 => raw.extend_from_slice(released),
            _ => return (done, None),
        }
    }
}

fn dechunk(mut raw: &[u8]) -> Bytes {
    let mut body = Vec::new();
    loop {
        let end = raw.iter().position(|&byte| byte == b'\r').expect("a size line");
        let size = usize::from_str_radix(std::str::from_utf8(&raw[..end]).expect("digits"), 16).expect("a size");
        if size == 0 {
            return body.into();
        }
        body.extend_from_slice(&raw[end + 2..end + 2 + size]);
        raw = &raw[end + 4 + size..];
    }
}

fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let pool: Vec<&'static str> = vec![
        "GET /a HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://b.test/?q HTTP/1.1\r\nhost: a\r\nAccept: */*\r\n\r\n",
        "POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\nGET / HTTP/1",
        "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nb\r\n0\r\n\r\nGET / H\r\n0\r\n\r\n",
        "POST /d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n0\r\nX: y\r\n\r\n",
        "PUT /e HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
        "GET /f HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a:80\r\n\r\n",
    ];
    let byte = prop_oneof![prop::sample::select(b"\r\n\t\0 :;,#/*0159af+-_.%HT".to_vec()), any::<u8>()];
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..3u8, byte), 0..3);
    (prop::collection::vec(prop::sample::select(pool), 1..5), edits).prop_map(|(parts, edits)| {
        let mut bytes = parts.concat().into_bytes();
        for (at, kind, byte) in edits {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        bytes
    })
}

/// Sends `input` in pieces of `cut` bytes and compares what hyper's service saw with what the gate counted.
async fn compare(input: Vec<u8>, cut: usize) -> Result<(), TestCaseError> {
    let (expected, refusal) = messages(&input);
    let mut server = Server::with_buffer(Limits::default(), 256);
    let (mut from, mut to) = tokio::io::split(server.client);
    let text = String::from_utf8_lossy(&input).into_owned();
    let writer = tokio::spawn(async move {
        for piece in input.chunks(cut) {
            // The server may close early, after a refusal.
            if to.write_all(piece).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        to
    });
    let mut got = String::new();
    let mut part = [0; 4096];
    while refusal.is_some() || got.matches("\r\n\r\nfine").count() < expected.len() {
        let read = timeout(LONG, from.read(&mut part)).await;
        let Ok(read) = read else { return Err(TestCaseError::fail(format!("stuck: {text:?} {got:?}"))) };
        let read = read.unwrap_or(0);
        if read == 0 {
            break;
        }
        got.push_str(&String::from_utf8_lossy(&part[..read]));
    }
    let to = writer.await.expect("no panic");
    server.client = from.unsplit(to);
    drop(server.client);
    let _ = timeout(LONG, server.task).await.expect("the server ends");
    let seen: Vec<_> = server.seen.lock().expect("no panic").iter().filter_map(|(_, _, body)| body.clone()).collect();
    let closes = text.contains("HTTP/1.0") || text.to_lowercase().contains("close");
    if !closes {
        prop_assert_eq!(&seen, &expected, "{:?} {:?}", text, got);
        prop_assert_eq!(server.handle.refusal(), refusal, "{:?} {:?}", text, got);
        if refusal.is_some() {
            prop_assert!(got.contains("HTTP/1.1 400 Bad Request\r\n"), "{:?} {:?}", text, got);
        }
    }
    prop_assert_eq!(server.handle.sent_refusal(), None);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hyper_and_the_gate_agree_on_every_message(input in pieces(), cut in 1..200usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(compare(input, cut))?;
    }
}
