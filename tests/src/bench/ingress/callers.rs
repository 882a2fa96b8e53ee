//! Who calls: one caller that the rule names, one that no rule names, one of another CA.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsConnector;

use crate::lab::pki::Ca;

/// Name of the callee in every server certificate.
pub(super) const CALLEE: &str = "service-a.t.nova";
/// Name of the callee behind the relay.
pub(super) const CALLEE_BEHIND_RELAY: &str = "service-b.t.nova";

/// The certificates of a run.
pub(super) struct Callers {
    /// The CA of both proxies.
    pub(super) ca: Ca,
    /// May call.
    pub(super) x: TlsConnector,
    /// Known, and no rule lets it call.
    pub(super) y: TlsConnector,
    /// Says that it is x, with another CA.
    pub(super) stranger: TlsConnector,
}

impl Callers {
    pub(super) fn new() -> anyhow::Result<Self> {
        let ca = Ca::new("bench CA", Some("spiffe://dev.invalid"))?;
        let strange = Ca::new("stranger CA", Some("spiffe://dev.invalid"))?;
        let (x, y) = ("spiffe://dev.invalid/t/t/w/x", "spiffe://dev.invalid/t/t/w/y");
        Ok(Self {
            x: connector(&ca, &ca.leaf_named("client-x", Some(x), None)?)?,
            y: connector(&ca, &ca.leaf_named("client-y", Some(y), None)?)?,
            stranger: connector(&ca, &strange.leaf_named("client-x", Some(x), None)?)?,
            ca,
        })
    }
}

/// Every connection is a full handshake: neither proxy may profit from resumption.
fn connector(ca: &Ca, identity: &str) -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.certificate().as_bytes())?)?;
    let chain = CertificateDer::pem_slice_iter(identity.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(identity.as_bytes())?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
