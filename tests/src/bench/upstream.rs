//! The app behind every proxy: plain HTTP/1.1 with keep-alive, on TCP, on a Unix socket, and on a hybrid socket on which it
//! plays muxer and relay itself, so that one supervisor hop can be compared with one HAProxy hop.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use nova_proto::hello::{HEAD_LEN, Status, parse_head};
use nova_proto::link::HYBRID_LINE_MAX;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// Bytes of a large answer's body.
pub(super) const LARGE: usize = 1024 * 1024;
/// Longest request head that is understood.
const HEAD_MAX: usize = 8192;
const BODY: &[u8; 44] = b"{\"order\": 42, \"state\": \"paid\", \"items\": 30}\n";

/// Where it listens.
pub(super) struct Listeners {
    /// Loopback TCP.
    pub(super) tcp: std::net::TcpListener,
    /// Plain Unix socket.
    pub(super) unix: std::os::unix::net::UnixListener,
    /// Hybrid socket of a guest.
    pub(super) hybrid: std::os::unix::net::UnixListener,
}

/// Its answers, made once.
struct Answers {
    small: Vec<u8>,
    large: Vec<u8>,
}

impl Listeners {
    pub(super) fn bind(unix: &Path, hybrid: &Path) -> anyhow::Result<Self> {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0")?;
        let unix = std::os::unix::net::UnixListener::bind(unix)?;
        let hybrid = std::os::unix::net::UnixListener::bind(hybrid)?;
        tcp.set_nonblocking(true)?;
        unix.set_nonblocking(true)?;
        hybrid.set_nonblocking(true)?;
        Ok(Self { tcp, unix, hybrid })
    }

    /// Serves on a thread of its own until the process ends.
    pub(super) fn serve(self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("upstream".into()).spawn(move || {
            if let Err(error) = runtime.block_on(accept(self)) {
                eprintln!("upstream: {error:#}");
            }
        })?;
        Ok(())
    }
}

async fn accept(listeners: Listeners) -> anyhow::Result<()> {
    let answers: &'static Answers = Box::leak(Box::new(Answers::new()));
    let tcp = TcpListener::from_std(listeners.tcp)?;
    let unix = UnixListener::from_std(listeners.unix)?;
    let hybrid = UnixListener::from_std(listeners.hybrid)?;
    loop {
        // A connection that breaks is the proxy's business, and shows as an error of the measurement.
        tokio::select! {
            accepted = tcp.accept() => {
                let (stream, _) = accepted?;
                stream.set_nodelay(true)?;
                tokio::spawn(serve(stream, answers));
            }
            accepted = unix.accept() => drop(tokio::spawn(serve(accepted?.0, answers))),
            accepted = hybrid.accept() => drop(tokio::spawn(serve_hybrid(accepted?.0, answers))),
        }
    }
}

async fn serve_hybrid(mut stream: UnixStream, answers: &'static Answers) -> anyhow::Result<()> {
    let mut line = Vec::with_capacity(HYBRID_LINE_MAX);
    while line.last() != Some(&b'\n') {
        line.push(stream.read_u8().await?);
        ensure!(line.len() <= HYBRID_LINE_MAX, "a long CONNECT line");
    }
    ensure!(line.starts_with(b"CONNECT "), "not a CONNECT line");
    stream.write_all(b"OK 1024\n").await?;
    let mut head = [0; HEAD_LEN];
    stream.read_exact(&mut head).await?;
    let head = parse_head(&head)?;
    let mut target = vec![0; head.target_len];
    stream.read_exact(&mut target).await?;
    ensure!(!head.with_target(&target)?.framed, "this link keeps half-close and needs no frames");
    stream.write_u8(Status::Ok as u8).await?;
    serve(stream, answers).await
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, answers: &Answers) -> anyhow::Result<()> {
    let mut buffer = vec![0; HEAD_MAX];
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).await?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        // Nobody pipelines here and no request has a body.
        if buffer[..filled].ends_with(b"\r\n\r\n") {
            let answer = if buffer.starts_with(b"GET /large ") { &answers.large } else { &answers.small };
            stream.write_all(answer).await.context("answer")?;
            filled = 0;
        } else if filled == buffer.len() {
            bail!("a long head");
        }
    }
}

impl Answers {
    fn new() -> Self {
        Self { small: answer(BODY), large: answer(&vec![b'x'; LARGE]) }
    }
}

fn answer(body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}
