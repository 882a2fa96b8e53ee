//! Whom an app believes whose TLS is answered by a proxy.

use std::sync::Arc;

use nova_proto::hello::Kind;
use rustls::client::Resumption;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::io::AsyncReadExt;
use tokio_rustls::TlsConnector;

use crate::bench::call::Link;
use crate::bench::load::block_on;

/// The CA of a pod, as the supervisor tells it to the guest.
pub(super) fn of_guest(link: &Link) -> anyhow::Result<String> {
    block_on(async {
        let mut stream = link.open(Kind::Trust).await?;
        let mut pem = vec![0; usize::try_from(stream.read_u32().await?)?];
        stream.read_exact(&mut pem).await?;
        Ok(String::from_utf8(pem)?)
    })
}

/// An app that believes this CA. Every connection is a full handshake: no proxy may profit from resumption.
pub(super) fn connector(ca: &str) -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
