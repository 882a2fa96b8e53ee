//! A hyper server behind a gate.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nova_supervisor::gate::io::GatedIo;
use nova_supervisor::gate::{GateHandle, Limits, Refusal};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub(crate) const LONG: Duration = Duration::from_secs(10);

/// A request as the service saw it. A body that failed is `None`.
pub(crate) type Seen = Arc<Mutex<Vec<(Method, String, Option<Bytes>)>>>;

/// A hyper server behind a gate, and the client's end of its stream.
pub(crate) struct Server {
    pub(crate) client: DuplexStream,
    pub(crate) seen: Seen,
    pub(crate) handle: GateHandle,
    /// Answers to `/slow` wait for it.
    pub(crate) go: Arc<Notify>,
    pub(crate) task: JoinHandle<hyper::Result<()>>,
}

impl Server {
    pub(crate) fn start(limits: Limits) -> Self {
        Self::with_buffer(limits, 64 * 1024)
    }

    pub(crate) fn with_buffer(limits: Limits, bytes: usize) -> Self {
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

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.client.write_all(bytes.as_ref()).await.expect("the server reads");
    }

    /// Everything until the server closes.
    pub(crate) async fn rest(&mut self) -> String {
        let mut all = Vec::new();
        timeout(LONG, self.client.read_to_end(&mut all)).await.expect("the server closes").expect("a clean end");
        String::from_utf8(all).expect("text")
    }

    /// Reads until `text` came.
    pub(crate) async fn until(&mut self, text: &str) -> String {
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

    pub(crate) fn paths(&self) -> Vec<String> {
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

pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}
