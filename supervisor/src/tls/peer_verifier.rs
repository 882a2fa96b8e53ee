//! Who may call: the client certificate verifier of every mtls port, and the peer's identity after the handshake.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, ServerConnection, SignatureScheme};

use super::failure::to_rustls;
use super::recent::identify_recent;
use super::{HandshakeFailure, PeerIdentity, TrustCell, provider};
use crate::identity::Usage;

/// Accepts exactly the clients that [`identify`](crate::identity::identify) can name, by the bundles in force at that moment.
#[derive(Debug)]
pub struct PeerVerifier {
    trust: Arc<TrustCell>,
    grace: Duration,
}

/// How long a connection may go on after its peer's certificate has ended, unless the configuration says otherwise.
pub const PEER_GRACE: Duration = Duration::from_secs(60);

impl PeerVerifier {
    /// A verifier that follows `trust`.
    #[must_use]
    pub fn new(trust: Arc<TrustCell>) -> Arc<Self> {
        Self::with_grace(trust, PEER_GRACE)
    }

    /// The same, where a connection may go on for `grace` after its peer's certificate has ended.
    #[must_use]
    pub fn with_grace(trust: Arc<TrustCell>, grace: Duration) -> Arc<Self> {
        Arc::new(Self { trust, grace })
    }

    /// How long a connection may go on after its peer's certificate has ended.
    #[must_use]
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// Whether a peer that was identified is still the same by the bundles of now.
    ///
    /// # Errors
    /// Why it is nobody, or somebody else, now.
    pub fn confirm(&self, peer: &PeerIdentity) -> Result<(), HandshakeFailure> {
        let (leaf, intermediates) = peer.chain.split_first().ok_or(HandshakeFailure::NoClientCert)?;
        let now = self.identify(leaf, intermediates, UnixTime::now());
        let now = now.map_err(|error| HandshakeFailure::from(&error))?;
        let same = now.spiffe_id == peer.spiffe_id && now.ca == peer.ca;
        if same { Ok(()) } else { Err(HandshakeFailure::PeerUntrusted) }
    }

    /// The bundles it follows.
    #[must_use]
    pub fn trust(&self) -> &Arc<TrustCell> {
        &self.trust
    }

    fn identify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<PeerIdentity, crate::identity::IdentifyError> {
        identify_recent(leaf, intermediates, &self.trust.load_full(), Usage::Client, now)
    }
}

/// Who is at the other end of a finished handshake, by the same function that the handshake used.
///
/// # Errors
/// When the handshake is not finished, or the roots changed since and vouch for the peer no more.
pub fn peer_identity(connection: &ServerConnection, verifier: &PeerVerifier) -> Result<PeerIdentity, HandshakeFailure> {
    if connection.is_handshaking() {
        return Err(HandshakeFailure::Protocol);
    }
    let chain = connection.peer_certificates().unwrap_or_default();
    let (leaf, intermediates) = chain.split_first().ok_or(HandshakeFailure::NoClientCert)?;
    verifier.identify(leaf, intermediates, UnixTime::now()).map_err(|error| HandshakeFailure::from(&error))
}

impl ClientCertVerifier for PeerVerifier {
    /// No hints: they would tell strangers whom we do business with, and could not follow a change of the roots.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.identify(leaf, intermediates, now).map_err(to_rustls)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, leaf, signature, &provider().signature_verification_algorithms)
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
