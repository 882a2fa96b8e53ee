//! A raw mutual TLS client: presents the identity it is given and reports exactly how far it came.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustls::client::WebPkiServerVerifier;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::block_on;

/// Arguments of `nova-lab client`.
#[derive(clap::Args)]
pub struct Args {
    /// Address to connect to
    #[arg(long)]
    connect: SocketAddr,
    /// Name that the server's certificate must have
    #[arg(long)]
    sni: String,
    /// PEM file of the roots that the server's certificate must lead to
    #[arg(long)]
    roots: PathBuf,
    /// Inherited descriptor with certificate chain and key (PEM); none: no client certificate
    #[arg(long)]
    identity_fd: Option<u32>,
    /// Address to connect from
    #[arg(long)]
    bind: Option<IpAddr>,
    /// Path to GET
    #[arg(long, default_value = "/")]
    get: String,
    /// Whole request instead of the GET
    #[arg(long)]
    raw: Option<String>,
    /// Deadline
    #[arg(long, default_value_t = 20_000)]
    timeout_ms: u64,
}

/// How far it came.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// TCP.
    pub connected: bool,
    /// TLS, as far as the client can tell: with TLS 1.3 a server refuses the client's certificate after this.
    pub handshake: bool,
    /// HTTP status of the answer.
    pub status: Option<u16>,
    /// The answer's body.
    pub body: String,
    /// The answer's head.
    pub head: String,
    /// What ended it before an answer came.
    pub error: Option<String>,
}

/// Connects, asks, prints the outcome as JSON. Ends with 0 whatever came: the lab judges.
///
/// # Errors
/// When the identity or the roots cannot be read.
pub fn run(args: Args) -> anyhow::Result<()> {
    let config = config(&args)?;
    block_on(async move {
        let mut outcome = Outcome::default();
        let limit = Duration::from_millis(args.timeout_ms);
        match tokio::time::timeout(limit, talk(&args, config, &mut outcome)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => outcome.error = Some(format!("{error:#}")),
            Err(_) => outcome.error = Some("timeout".into()),
        }
        println!("{}", serde_json::to_string(&outcome)?);
        Ok(())
    })
}

fn config(args: &Args) -> anyhow::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_file_iter(&args.roots).with_context(|| args.roots.display().to_string())? {
        roots.add(root?)?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_webpki_verifier(verifier);
    let Some(fd) = args.identity_fd else { return Ok(builder.with_no_client_auth()) };
    // Through /proc: the descriptor is opened again, so nothing unsafe is needed.
    let pem = std::fs::read(format!("/proc/self/fd/{fd}")).with_context(|| format!("descriptor {fd}"))?;
    let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>()?;
    Ok(builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&pem)?)?)
}

async fn talk(args: &Args, config: ClientConfig, outcome: &mut Outcome) -> anyhow::Result<()> {
    let socket = TcpSocket::new_v4()?;
    if let Some(ip) = args.bind {
        socket.bind(SocketAddr::new(ip, 0))?;
    }
    let stream = socket.connect(args.connect).await.context("connect")?;
    stream.set_nodelay(true)?;
    outcome.connected = true;
    let name = ServerName::try_from(args.sni.clone())?;
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.context("handshake")?;
    outcome.handshake = true;
    let get = || format!("GET {} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", args.get, args.sni);
    let request = args.raw.clone().unwrap_or_else(get);
    stream.write_all(request.as_bytes()).await.context("request")?;
    read_answer(&mut stream, outcome).await
}

async fn read_answer(stream: &mut TlsStream<TcpStream>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    let ended = stream.read_to_end(&mut bytes).await;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    outcome.status = text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|code| code.parse().ok());
    if let Some((head, body)) = text.split_once("\r\n\r\n") {
        (outcome.head, outcome.body) = (head.to_owned(), body.to_owned());
    }
    match (ended, outcome.status) {
        (Err(error), None) => Err(error).context("answer"),
        (Ok(_), None) => anyhow::bail!("closed without an answer"),
        _ => Ok(()),
    }
}
