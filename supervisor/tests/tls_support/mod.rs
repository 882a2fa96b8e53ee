//! CAs that issue what a real one would not, and handshakes between our configurations over memory.
#![allow(dead_code, reason = "every test binary uses its own part of this module")]

#[path = "../any_server/mod.rs"]
mod any_server;

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nova_proto::ids::SpiffeId;
use nova_supervisor::identity::{PeerIdentity, RootSet, Svid, TrustBundles, TrustDomain};
use nova_supervisor::tls::{
    HandshakeFailure, PeerVerifier, SvidCell, TrustCell, client_config_for_workload, peer_identity, server_config,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType, SerialNumber, date_time_ymd,
};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub(crate) const X: &str = "spiffe://nova.test/t/t/w/x";
pub(crate) const SERVICE_A: &str = "spiffe://nova.test/t/t/w/service-a";
pub(crate) const PARTNER: &str = "spiffe://partner.example/billing";
const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn id(text: &str) -> SpiffeId {
    SpiffeId::new(text).expect("a valid SPIFFE ID")
}

/// A CA whose certificates are right unless a test spoils them.
pub(crate) struct Ca(CertifiedIssuer<'static, KeyPair>);

/// Chain (leaf first) and key.
pub(crate) struct Credential {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: KeyPair,
}

impl Ca {
    pub(crate) fn new(name: &str) -> Self {
        Self::with(name, |_| {})
    }

    pub(crate) fn with(name: &str, spoil: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = ca_params(name);
        spoil(&mut params);
        Self(CertifiedIssuer::self_signed(params, new_key()).expect("self-signing"))
    }

    /// A CA below this one.
    pub(crate) fn intermediate(&self, name: &str, spoil: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = ca_params(name);
        spoil(&mut params);
        Self(CertifiedIssuer::signed_by(params, new_key(), &self.0).expect("signing"))
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn roots(&self) -> Arc<RootSet> {
        Arc::new(RootSet::from_der("test", vec![self.der()]).expect("a CA"))
    }

    pub(crate) fn issue(&self, spiffe_id: &str) -> Credential {
        self.issue_with(spiffe_id, |_| {})
    }

    pub(crate) fn issue_with(&self, spiffe_id: &str, spoil: impl FnOnce(&mut CertificateParams)) -> Credential {
        let key = new_key();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![uri(spiffe_id)];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        set_validity(&mut params, SystemTime::now() - HOUR, SystemTime::now() + HOUR);
        spoil(&mut params);
        Credential { chain: vec![params.signed_by(&key, &self.0).expect("signing").into()], key }
    }

    /// A revocation list of these certificates, until `next_update`, as DER.
    pub(crate) fn crl(&self, revoked: &[&Credential], next_update: SystemTime) -> Vec<u8> {
        let date = |time: SystemTime| date_time_ymd(1970, 1, 1) + time.duration_since(UNIX_EPOCH).expect("after 1970");
        let entry = |credential: &&Credential| rcgen::RevokedCertParams {
            serial_number: SerialNumber::from_slice(&serial(&credential.chain[0])),
            revocation_time: date(SystemTime::now()),
            reason_code: None,
            invalidity_date: None,
        };
        let params = rcgen::CertificateRevocationListParams {
            this_update: date(next_update - 2 * HOUR),
            next_update: date(next_update),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(entry).collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        params.signed_by(&self.0).expect("signed").der().to_vec()
    }

    pub(crate) fn svid(&self, spiffe_id: &str) -> Svid {
        let issued = self.issue(spiffe_id);
        Svid::load("test", issued.chain, issued.key.serialized_der(), &id(spiffe_id), &self.roots()).expect("an SVID")
    }

    pub(crate) fn cell(&self, spiffe_id: &str) -> Arc<SvidCell> {
        let cell = SvidCell::empty();
        cell.replace(self.svid(spiffe_id));
        cell
    }
}

fn serial(leaf: &CertificateDer<'_>) -> Vec<u8> {
    use x509_parser::prelude::FromDer;
    let (_, parsed) = x509_parser::prelude::X509Certificate::from_der(leaf).expect("a certificate");
    parsed.raw_serial().to_vec()
}

pub(crate) fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().expect("ASCII"))
}

pub(crate) fn set_validity(params: &mut CertificateParams, not_before: SystemTime, not_after: SystemTime) {
    let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).expect("after 1970");
    params.not_before = date_time_ymd(1970, 1, 1) + since(not_before);
    params.not_after = date_time_ymd(1970, 1, 1) + since(not_after);
}

pub(crate) fn expired(params: &mut CertificateParams) {
    set_validity(params, SystemTime::now() - 2 * HOUR, SystemTime::now() - HOUR);
}

pub(crate) fn trust(own: &Ca, external: &[(&str, &Ca)]) -> Arc<TrustCell> {
    Arc::new(TrustCell::from_pointee(bundles(own, external)))
}

pub(crate) fn bundles(own: &Ca, external: &[(&str, &Ca)]) -> TrustBundles {
    let own = TrustBundles::new(TrustDomain::new("nova.test").expect("a domain"), own.roots());
    let external = external.iter().map(|(name, ca)| ((*name).to_owned(), ca.roots())).collect();
    own.with_external(external).expect("distinct CAs")
}

/// A client that presents whatever it is given and believes any server: the worst caller there is.
pub(crate) fn raw_client(credential: Option<Credential>) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(any_server::AnyServer));
    Arc::new(match credential {
        None => builder.with_no_client_auth(),
        Some(Credential { chain, key }) => {
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
            builder.with_client_auth_cert(chain, key).expect("a usable key")
        }
    })
}

/// What one side of a handshake saw.
pub(crate) struct Outcome {
    pub(crate) server: Result<PeerIdentity, HandshakeFailure>,
    pub(crate) client: Result<(), HandshakeFailure>,
    pub(crate) tickets: u32,
    pub(crate) resumed: bool,
    pub(crate) alpn: Option<Vec<u8>>,
}

/// Connects a client to an mtls port, lets the server send one byte if it accepted, and reports both ends.
pub(crate) async fn connect(server: &Server, client: &Arc<ClientConfig>) -> Outcome {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let config = server_config(Arc::clone(&server.svid), Arc::clone(&server.verifier), &[b"http/1.1"]).expect("config");
    let accept = async {
        let mut stream = TlsAcceptor::from(config).accept(near).await.map_err(|e| HandshakeFailure::from_io(&e))?;
        let peer = peer_identity(stream.get_ref().1, &server.verifier)?;
        stream.write_all(b"!").await.map_err(|e| HandshakeFailure::from_io(&e))?;
        stream.shutdown().await.map_err(|e| HandshakeFailure::from_io(&e))?;
        Ok(peer)
    };
    let dial = async {
        let name = ServerName::try_from("service-a.t.nova").expect("a name");
        let mut stream = TlsConnector::from(Arc::clone(client)).connect(name, far).await?;
        stream.read_exact(&mut [0u8; 1]).await?;
        stream.read_to_end(&mut Vec::new()).await?;
        let tls = stream.get_ref().1;
        let resumed = tls.handshake_kind() != Some(rustls::HandshakeKind::Full);
        io::Result::Ok((tls.tls13_tickets_received(), resumed, tls.alpn_protocol().map(<[u8]>::to_vec)))
    };
    let both = async { tokio::join!(accept, dial) };
    let (server, client) = tokio::time::timeout(Duration::from_secs(10), both).await.expect("both ends finish");
    let (tickets, resumed, alpn) = client.as_ref().map_or((0, false, None), Clone::clone);
    Outcome { server, client: client.map(|_| ()).map_err(|e| HandshakeFailure::from_io(&e)), tickets, resumed, alpn }
}

/// An mtls port.
pub(crate) struct Server {
    pub(crate) svid: Arc<SvidCell>,
    pub(crate) verifier: Arc<PeerVerifier>,
}

impl Server {
    pub(crate) fn new(svid: Arc<SvidCell>, trust: &Arc<TrustCell>) -> Self {
        Self { svid, verifier: PeerVerifier::new(Arc::clone(trust)) }
    }
}

pub(crate) fn workload_client(svid: &Arc<SvidCell>, trust: &Arc<TrustCell>, expected: &str) -> Arc<ClientConfig> {
    client_config_for_workload(Arc::clone(svid), Arc::clone(trust), id(expected), &[b"http/1.1"]).expect("config")
}

fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, SystemTime::now() - 3 * HOUR, SystemTime::now() + 24 * HOUR);
    params
}

fn new_key() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key")
}
