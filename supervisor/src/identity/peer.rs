//! From a certificate chain to an identity: the only place where a peer becomes somebody.
//!
//! ```text
//! leaf's form (one canonical SPIFFE ID, no CA, keyUsage)
//!   own trust domain?   yes: must verify against OUR bundle, no other CA counts  -> ca = None
//!                       no : must verify against one of the external CAs         -> ca = Some(its name)
//! ```
//! So a partner's CA that signs one of our IDs is refused, whatever the policy says about that partner.

use std::time::SystemTime;

use nova_proto::ids::SpiffeId;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage, VerifiedPath};

use super::leaf::{Leaf, LeafError, parse_certificate};
use super::trust::{RootSet, TrustBundles};

/// Intermediates a peer may send. Real chains have one to three; path building is quadratic in the worst case.
const MAX_INTERMEDIATES: usize = 8;

/// Who the peer is, as its verified certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The one URI SAN of its leaf.
    pub spiffe_id: SpiffeId,
    /// `None`: verified by our own bundle. `Some`: by the external CA of this name.
    pub ca: Option<String>,
    /// SHA-256 of the leaf's DER, lower-case hex.
    pub cert_sha256: String,
    /// End of the leaf's validity.
    pub not_after: SystemTime,
}

/// Which side of the handshake the certificate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// It calls us: `clientAuth`, if the certificate limits its usage.
    Client,
    /// We call it: `serverAuth`, if the certificate limits its usage.
    Server,
}

/// Why a chain is nobody.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentifyError {
    /// The leaf's form is wrong.
    #[error(transparent)]
    Leaf(#[from] LeafError),
    /// More certificates than anybody needs.
    #[error("{0} intermediate certificates where at most {MAX_INTERMEDIATES} are looked at")]
    TooManyIntermediates(usize),
    /// It leads to no root that may vouch for this identity.
    #[error("the certificate is not signed by a CA that may vouch for {0}")]
    UnknownIssuer(SpiffeId),
    /// A partner's CA signed one of our IDs.
    #[error("external CA {ca} signed {spiffe_id}, which only our own bundle may vouch for")]
    OwnDomainFromForeignCa {
        /// The external CA.
        ca: String,
        /// The ID it signed.
        spiffe_id: SpiffeId,
    },
    /// Its time, or that of a CA above it, is over.
    #[error("a certificate of the chain has expired")]
    Expired,
    /// Its time has not come.
    #[error("a certificate of the chain is not valid yet")]
    NotYetValid,
    /// extendedKeyUsage excludes this use.
    #[error("extendedKeyUsage does not allow this use")]
    Purpose,
    /// The chain breaks another rule of RFC 5280.
    #[error("the chain does not verify: {0}")]
    Chain(webpki::Error),
}

/// Says who presented `leaf`, or why nobody did. Pure: the same input gives the same answer.
///
/// That the peer holds the leaf's key is for the handshake to prove.
///
/// # Errors
/// Whatever keeps the chain from being exactly one identity vouched for by the CA in charge of it.
pub fn identify(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    bundles: &TrustBundles,
    usage: Usage,
    now: UnixTime,
) -> Result<PeerIdentity, IdentifyError> {
    let facts = Leaf::parse(leaf)?;
    if intermediates.len() > MAX_INTERMEDIATES {
        return Err(IdentifyError::TooManyIntermediates(intermediates.len()));
    }
    let chain = Chain { leaf: end_entity(leaf)?, intermediates, usage, now };
    let own = facts.spiffe_id.trust_domain() == bundles.trust_domain().as_str();
    let ca = if own {
        verify_own(&chain, bundles, &facts.spiffe_id)?;
        None
    } else {
        Some(verify_external(&chain, bundles, &facts.spiffe_id)?)
    };
    Ok(PeerIdentity { cert_sha256: sha256_hex(leaf), not_after: facts.not_after, spiffe_id: facts.spiffe_id, ca })
}

/// Whether `roots` vouch for the chain: what a peer will ask of our own certificates.
pub(super) fn verify_against(
    roots: &RootSet,
    certificates: &[CertificateDer<'_>],
    id: &SpiffeId,
    usage: Usage,
    now: UnixTime,
) -> Result<(), IdentifyError> {
    let (leaf, intermediates) = certificates.split_first().ok_or(LeafError::Malformed("the chain is empty"))?;
    let chain = Chain { leaf: end_entity(leaf)?, intermediates, usage, now };
    chain.verify(roots).map_err(|error| explain(error, id))
}

struct Chain<'a> {
    leaf: EndEntityCert<'a>,
    intermediates: &'a [CertificateDer<'a>],
    usage: Usage,
    now: UnixTime,
}

impl Chain<'_> {
    fn verify(&self, roots: &RootSet) -> Result<(), webpki::Error> {
        let usage = match self.usage {
            Usage::Client => KeyUsage::client_auth(),
            Usage::Server => KeyUsage::server_auth(),
        };
        let check = |path: &VerifiedPath<'_>| check_path(path, roots, self.now);
        self.leaf
            .verify_for_usage(
                webpki::ALL_VERIFICATION_ALGS,
                roots.anchors(),
                self.intermediates,
                self.now,
                usage,
                None,
                Some(&check),
            )
            .map(|_path| ())
    }
}

fn end_entity<'a>(leaf: &'a CertificateDer<'a>) -> Result<EndEntityCert<'a>, IdentifyError> {
    EndEntityCert::try_from(leaf).map_err(IdentifyError::Chain)
}

fn verify_own(chain: &Chain<'_>, bundles: &TrustBundles, id: &SpiffeId) -> Result<(), IdentifyError> {
    let Err(error) = chain.verify(bundles.own()) else { return Ok(()) };
    // Only the text depends on this: the answer is no already.
    let foreign = bundles.external().find(|(_, roots)| chain.verify(roots).is_ok());
    Err(match foreign {
        Some((ca, _)) => IdentifyError::OwnDomainFromForeignCa { ca: ca.to_owned(), spiffe_id: id.clone() },
        None => explain(error, id),
    })
}

fn verify_external(chain: &Chain<'_>, bundles: &TrustBundles, id: &SpiffeId) -> Result<String, IdentifyError> {
    let mut why = IdentifyError::UnknownIssuer(id.clone());
    for (name, roots) in bundles.external() {
        match chain.verify(roots) {
            Ok(()) => return Ok(name.to_owned()),
            // The CA that knows the chain has the better reason.
            Err(error) if matches!(why, IdentifyError::UnknownIssuer(_)) => why = explain(error, id),
            Err(_) => {}
        }
    }
    Err(why)
}

/// What webpki does not check: the validity of the root itself, and keyCertSign of the CAs between.
fn check_path(path: &VerifiedPath<'_>, roots: &RootSet, now: UnixTime) -> Result<(), webpki::Error> {
    roots.check_validity(path.anchor(), now)?;
    for intermediate in path.intermediate_certificates() {
        let der = intermediate.der();
        let certificate = parse_certificate(&der).map_err(|_| webpki::Error::BadDer)?;
        let usage = certificate.key_usage().map_err(|_| webpki::Error::BadDer)?;
        if usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
            return Err(webpki::Error::EndEntityUsedAsCa);
        }
    }
    Ok(())
}

fn explain(error: webpki::Error, id: &SpiffeId) -> IdentifyError {
    match error {
        // A CA of the right name and another key is just another CA.
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
            IdentifyError::UnknownIssuer(id.clone())
        }
        webpki::Error::CertExpired { .. } => IdentifyError::Expired,
        webpki::Error::CertNotValidYet { .. } => IdentifyError::NotYetValid,
        webpki::Error::CaUsedAsEndEntity => IdentifyError::Leaf(LeafError::IsCa),
        webpki::Error::RequiredEkuNotFoundContext(_) | webpki::Error::EmptyEkuExtension => IdentifyError::Purpose,
        other => IdentifyError::Chain(other),
    }
}

fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes))
}
