//! The app behind every proxy: HTTP/1.1 with keep-alive, on TCP, in TLS, on a Unix socket, and on a hybrid socket on which it
//! plays muxer and relay itself, so that one supervisor hop can be compared with one hop of a peer.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use nova_proto::hello::{HEAD_LEN, Status, parse_head};
use nova_proto::link::HYBRID_LINE_MAX;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;

/// Bytes of a large answer's body.
pub(super) const LARGE: usize = 1024 * 1024;
/// Large answers in a huge one.
pub(super) const HUGE: usize = 512;
/// What `/v1/locked` wants to see as a bearer token.
pub(super) const KEY: &str = "bench-key-0123456789abcdef";
/// Longest request head that is understood.
const HEAD_MAX: usize = 8192;
const BODY: &[u8; 44] = b"{\"order\": 42, \"state\": \"paid\", \"items\": 30}\n";

/// Where it listens.
pub(super) struct Upstream {
    tcp: std::net::TcpListener,
    tls: Option<(std::net::TcpListener, TlsAcceptor)>,
    unix: Option<std::os::unix::net::UnixListener>,
    hybrid: Option<std::os::unix::net::UnixListener>,
}

/// Its answers, made once.
struct Answers {
    small: Vec<u8>,
    large: Vec<u8>,
    huge_head: Vec<u8>,
    locked: Vec<u8>,
}

impl Upstream {
    /// On loopback TCP, and nothing else so far.
    pub(super) fn bind() -> anyhow::Result<Self> {
        Ok(Self { tcp: listener()?, tls: None, unix: None, hybrid: None })
    }

    pub(super) fn addr(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.tcp.local_addr()?)
    }

    pub(super) fn unix(&mut self, path: &Path) -> anyhow::Result<()> {
        self.unix = Some(unix_listener(path)?);
        Ok(())
    }

    /// The hybrid socket of a guest.
    pub(super) fn hybrid(&mut self, path: &Path) -> anyhow::Result<()> {
        self.hybrid = Some(unix_listener(path)?);
        Ok(())
    }

    /// As a host outside with this chain and key: TLS 1.3, and HTTP/1.1 in it. Gives where.
    pub(super) fn tls(&mut self, identity: &str) -> anyhow::Result<SocketAddr> {
        let chain = CertificateDer::pem_slice_iter(identity.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(identity.as_bytes())?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let tcp = listener()?;
        let addr = tcp.local_addr()?;
        self.tls = Some((tcp, TlsAcceptor::from(Arc::new(config))));
        Ok(addr)
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

fn listener() -> anyhow::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn unix_listener(path: &Path) -> anyhow::Result<std::os::unix::net::UnixListener> {
    let listener = std::os::unix::net::UnixListener::bind(path).with_context(|| path.display().to_string())?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A connection that breaks is the proxy's business, and shows as an error of the measurement.
async fn accept(upstream: Upstream) -> anyhow::Result<()> {
    let answers: &'static Answers = Box::leak(Box::new(Answers::new()));
    let mut all = tokio::task::JoinSet::new();
    all.spawn(accept_tcp(upstream.tcp, None, answers));
    if let Some((tcp, acceptor)) = upstream.tls {
        all.spawn(accept_tcp(tcp, Some(acceptor), answers));
    }
    if let Some(unix) = upstream.unix {
        all.spawn(accept_unix(unix, false, answers));
    }
    if let Some(hybrid) = upstream.hybrid {
        all.spawn(accept_unix(hybrid, true, answers));
    }
    while let Some(ended) = all.join_next().await {
        ended??;
    }
    Ok(())
}

async fn accept_tcp(
    tcp: std::net::TcpListener,
    tls: Option<TlsAcceptor>,
    answers: &'static Answers,
) -> anyhow::Result<()> {
    let tcp = TcpListener::from_std(tcp)?;
    loop {
        let (stream, _) = tcp.accept().await?;
        stream.set_nodelay(true)?;
        let tls = tls.clone();
        tokio::spawn(async move {
            match tls {
                Some(tls) => serve(tls.accept(stream).await?, answers).await,
                None => serve(stream, answers).await,
            }
        });
    }
}

async fn accept_unix(
    unix: std::os::unix::net::UnixListener,
    is_hybrid: bool,
    answers: &'static Answers,
) -> anyhow::Result<()> {
    let unix = UnixListener::from_std(unix)?;
    loop {
        let (mut stream, _) = unix.accept().await?;
        tokio::spawn(async move {
            if is_hybrid {
                greet(&mut stream).await?;
            }
            serve(stream, answers).await
        });
    }
}

/// Plays muxer and relay.
async fn greet(stream: &mut UnixStream) -> anyhow::Result<()> {
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
    Ok(())
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
        if buffer.starts_with(b"POST /sink ") {
            return swallow(stream).await;
        }
        // Nobody pipelines here and no other request has a body.
        if buffer[..filled].ends_with(b"\r\n\r\n") {
            answer_one(&mut stream, &buffer[..filled], answers).await.context("answer")?;
            filled = 0;
        } else if filled == buffer.len() {
            bail!("a long head");
        }
    }
}

async fn answer_one<S: AsyncWrite + Unpin>(stream: &mut S, head: &[u8], answers: &Answers) -> anyhow::Result<()> {
    match head {
        _ if head.starts_with(b"GET /large ") => stream.write_all(&answers.large).await?,
        _ if head.starts_with(b"GET /huge ") => {
            stream.write_all(&answers.huge_head).await?;
            for _ in 0..HUGE {
                stream.write_all(&answers.large[answers.large.len() - LARGE..]).await?;
            }
        }
        _ if head.starts_with(b"GET /v1/locked ") && !has_key(head) => stream.write_all(&answers.locked).await?,
        _ => stream.write_all(&answers.small).await?,
    }
    Ok(stream.flush().await?)
}

fn has_key(head: &[u8]) -> bool {
    let wanted = format!("Bearer {KEY}\r\n");
    head.windows(wanted.len()).any(|part| part == wanted.as_bytes())
}

/// Reads a body that nobody ends.
async fn swallow<S: AsyncRead + Unpin>(mut stream: S) -> anyhow::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

impl Answers {
    fn new() -> Self {
        Self {
            small: answer(BODY),
            large: answer(&vec![b'x'; LARGE]),
            huge_head: head("200 OK", HUGE * LARGE),
            locked: head("401 Unauthorized", 0),
        }
    }
}

fn answer(body: &[u8]) -> Vec<u8> {
    [&head("200 OK", body.len()), body].concat()
}

fn head(status: &str, length: usize) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n").into_bytes()
}
