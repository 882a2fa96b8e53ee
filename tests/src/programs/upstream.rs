//! A TLS server outside the node: records who came (address, SNI) and what was asked.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::{block_on, http, records::Records};

/// Arguments of `nova-lab upstream`.
#[derive(clap::Args)]
pub struct Args {
    /// Address to listen on
    #[arg(long)]
    listen: SocketAddr,
    /// Certificate chain and key (PEM, one file)
    #[arg(long)]
    identity: PathBuf,
    /// Name in records
    #[arg(long)]
    name: String,
    /// File that gets one JSON line per request and per failed handshake
    #[arg(long)]
    records: Option<PathBuf>,
}

/// Runs until it is stopped.
///
/// # Errors
/// When the certificate cannot be used or the address cannot be listened on.
pub fn run(args: Args) -> anyhow::Result<()> {
    let chain = CertificateDer::pem_file_iter(&args.identity)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(&args.identity)?;
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("certificate and key")?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    block_on(async move {
        let records = Records::with_file(args.records.as_deref())?;
        let listener = TcpListener::bind(args.listen).await?;
        loop {
            let (stream, peer) = listener.accept().await?;
            let (acceptor, name, records) = (acceptor.clone(), args.name.clone(), records.clone());
            tokio::spawn(async move {
                if let Err(error) = serve(&acceptor, stream, peer, &name, records.clone()).await {
                    records.push(json!({"app": name, "peer": peer.ip().to_string(), "error": error.to_string()}));
                }
            });
        }
    })
}

async fn serve(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    peer: SocketAddr,
    name: &str,
    records: Records,
) -> anyhow::Result<()> {
    let stream = acceptor.accept(stream).await.context("handshake")?;
    let sni = stream.get_ref().1.server_name().map(ToOwned::to_owned);
    http::serve(stream, json!({"app": name, "peer": peer.ip().to_string(), "tls": true, "sni": sni}), records).await
}
