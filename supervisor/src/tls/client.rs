//! The client side: to a workload of ours by its SPIFFE ID, to an external host by its DNS name.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::verify_tls13_signature;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, PeerIncompatible, RootCertStore, SignatureScheme};

use super::failure::{WrongPeer, other, to_rustls};
use super::recent::identify_recent;
use super::web::web_roots;
use super::{SvidCell, TrustCell, VERSIONS, VERSIONS_WITH_1_2, Versions, alpn_protocols, provider};
use crate::identity::{RootSet, Usage};
use nova_proto::ids::SpiffeId;

/// The configuration for connections to one workload: the server must be exactly `expected` by our own bundle.
///
/// The name given to the connection is sent as SNI and not compared: the SPIFFE ID is the identity. Making one takes
/// microseconds; it holds no state but the cells, so the caller may keep it per (SVID cell, callee, ALPN).
///
/// # Errors
/// Only if the crypto provider lacks TLS 1.3.
pub fn client_config_for_workload(
    svid: Arc<SvidCell>,
    trust: Arc<TrustCell>,
    expected: SpiffeId,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, Error> {
    let verifier = WorkloadVerifier { svid: Arc::clone(&svid), trust, expected };
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(svid);
    config.alpn_protocols = alpn_protocols(alpn);
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Who vouches for an external host.
#[derive(Debug, Clone)]
pub enum ExternalRoots {
    /// The web's CAs, which are those of the system.
    Web,
    /// The rule's own CA, instead of the web's.
    Custom(Arc<RootSet>),
}

/// The configuration for connections to external hosts: the usual check of chain and DNS name, no client certificate, SNI on. TLS 1.2 is
/// spoken to those that know no better, if `versions` says so.
///
/// Keep it per roots and ALPN; the web's is about 150 roots large, which all such configurations share.
///
/// # Errors
/// When no root of `roots` is valid now.
pub fn client_config_for_external(
    roots: &ExternalRoots,
    alpn: &[&[u8]],
    versions: Versions,
) -> Result<Arc<ClientConfig>, Error> {
    let store = match roots {
        ExternalRoots::Web => web_roots(),
        ExternalRoots::Custom(set) => Arc::new(RootCertStore { roots: set.anchors_valid_at(UnixTime::now()) }),
    };
    let verifier = WebPkiServerVerifier::builder_with_provider(store, provider())
        .build()
        .map_err(|error| Error::General(format!("no CA certificate of the rule is valid now: {error}")))?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(match versions {
            Versions::Tls13 => VERSIONS,
            Versions::Tls12Too => VERSIONS_WITH_1_2,
        })?
        .with_webpki_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = alpn_protocols(alpn);
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Accepts one SPIFFE ID, vouched for by our own bundle.
#[derive(Debug)]
struct WorkloadVerifier {
    svid: Arc<SvidCell>,
    trust: Arc<TrustCell>,
    expected: SpiffeId,
}

impl ServerCertVerifier for WorkloadVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // rustls would go on without a client certificate; a caller without an SVID must not call at all.
        if self.svid.current().is_none() {
            return Err(other(WrongPeer::NoSvid));
        }
        let peer =
            identify_recent(leaf, intermediates, &self.trust.load_full(), Usage::Server, now).map_err(to_rustls)?;
        if peer.ca.is_some() || peer.spiffe_id.as_ref() != Some(&self.expected) {
            return Err(other(WrongPeer::Unexpected { found: peer.label(), expected: self.expected.clone() }));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _leaf: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::ServerDoesNotSupportTls12Or13.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, leaf, signature, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
