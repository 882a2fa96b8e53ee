//! From a certificate chain to an identity: the only place where a peer becomes somebody.
//!
//! ```text
//! leaf's form (one canonical SPIFFE ID, no CA, keyUsage)
//!   own trust domain?        must verify against OUR bundle, no other CA counts      -> ca = None
//!   a federated domain?      must verify against THAT domain's bundle                -> ca = Some(the name rules use)
//!   another, or no SPIFFE ID must verify against one of the external CAs; without an -> ca = Some(its name)
//!                            ID only against one that rules let name people otherwise
//! ```
//! So a partner's CA that signs one of our IDs is refused, whatever the policy says about that partner.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nova_proto::ids::SpiffeId;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage, RevocationOptionsBuilder, UnknownStatusPolicy, VerifiedPath};

use super::crl::{Choice, Crls};
use super::leaf::{Leaf, LeafError, Names, parse_certificate};
use super::refusal::{IdentifyError, MAX_INTERMEDIATES};
use super::trust::{RootSet, TrustBundles};

/// Who the peer is, as its verified certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The one URI SAN of its leaf. `None` only under an external CA that names people otherwise.
    pub spiffe_id: Option<SpiffeId>,
    /// Its other names, under an external CA whose rules look at them.
    pub names: Option<Arc<Names>>,
    /// `None`: verified by our own bundle. `Some`: by the external CA of this name.
    pub ca: Option<String>,
    /// SHA-256 of the leaf's DER, lower-case hex.
    pub cert_sha256: String,
    /// End of the leaf's validity.
    pub not_after: SystemTime,
    /// What it presented, leaf first: as long as it is connected, the question may be asked again.
    pub chain: Arc<[CertificateDer<'static>]>,
}

impl PeerIdentity {
    /// What records call it: its SPIFFE ID, or one of its other names with its kind in front.
    #[must_use]
    pub fn label(&self) -> String {
        let name = |names: &Names| match (names.dns.first(), &names.cn) {
            (Some(dns), _) => format!("dns:{dns}"),
            (None, Some(cn)) => format!("cn:{cn}"),
            (None, None) => String::new(),
        };
        let id = self.spiffe_id.as_ref().map(ToString::to_string);
        id.or_else(|| self.names.as_deref().map(name)).unwrap_or_default()
    }
}

/// Which side of the handshake the certificate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// It calls us: `clientAuth`, if the certificate limits its usage.
    Client,
    /// We call it: `serverAuth`, if the certificate limits its usage.
    Server,
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
    let chain = Chain { leaf: end_entity(leaf)?, intermediates, usage, now, crls: bundles.crls() };
    let ca = match &facts.spiffe_id {
        Some(id) => vouched_for(&chain, bundles, id)?,
        None => Some(named(&chain, bundles, &facts.names)?),
    };
    let looked_at = ca.as_deref().is_some_and(|ca| bundles.names_people(ca));
    let owned = std::iter::once(leaf).chain(intermediates).map(|der| der.clone().into_owned());
    Ok(PeerIdentity {
        cert_sha256: sha256_hex(leaf),
        not_after: facts.not_after,
        spiffe_id: facts.spiffe_id,
        names: looked_at.then(|| Arc::new(facts.names)),
        ca,
        chain: owned.collect(),
    })
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
    let chain = Chain { leaf: end_entity(leaf)?, intermediates, usage, now, crls: &Crls::default() };
    chain.verify(roots).map_err(|error| explain(error, id.as_str()))
}

struct Chain<'a> {
    leaf: EndEntityCert<'a>,
    intermediates: &'a [CertificateDer<'a>],
    usage: Usage,
    now: UnixTime,
    crls: &'a Crls,
}

impl Chain<'_> {
    /// With each choice of lists: what one of them says of the chain is said, and one of them must be its own CA's.
    fn verify(&self, roots: &RootSet) -> Result<(), webpki::Error> {
        let mut outcome = None;
        for choice in self.crls.choices() {
            match self.verify_with(roots, &choice) {
                Err(error @ (webpki::Error::CertRevoked | webpki::Error::UnknownRevocationStatus)) => {
                    return Err(error);
                }
                Ok(()) => outcome = Some(Ok(())),
                Err(error) => outcome = outcome.or(Some(Err(error))),
            }
        }
        // There is always a choice, if only that of no list.
        outcome.unwrap_or(Err(webpki::Error::UnknownRevocationStatus))
    }

    fn verify_with(&self, roots: &RootSet, choice: &Choice<'_>) -> Result<(), webpki::Error> {
        let usage = match self.usage {
            Usage::Client => KeyUsage::client_auth(),
            Usage::Server => KeyUsage::server_auth(),
        };
        // Lists are kept for some CAs only, and used past their end for a while: what is too old is found in `check_path`.
        let lists = choice.lists();
        let revocation = RevocationOptionsBuilder::new(&lists)
            .ok()
            .map(|options| options.with_status_policy(UnknownStatusPolicy::Allow).build());
        let check = |path: &VerifiedPath<'_>| check_path(path, roots, self.now, choice);
        self.leaf
            .verify_for_usage(
                webpki::ALL_VERIFICATION_ALGS,
                roots.anchors(),
                self.intermediates,
                self.now,
                usage,
                revocation,
                Some(&check),
            )
            .map(|_path| ())
    }
}

fn end_entity<'a>(leaf: &'a CertificateDer<'a>) -> Result<EndEntityCert<'a>, IdentifyError> {
    EndEntityCert::try_from(leaf).map_err(IdentifyError::Chain)
}

/// The CA that vouches for an ID: that of its own domain if we know one, else any external one.
fn vouched_for(chain: &Chain<'_>, bundles: &TrustBundles, id: &SpiffeId) -> Result<Option<String>, IdentifyError> {
    if id.trust_domain() == bundles.trust_domain().as_str() {
        return verify_domain(chain, bundles, bundles.own(), id).map(|()| None);
    }
    match bundles.federated(id.trust_domain()) {
        Some(domain) => verify_domain(chain, bundles, &domain.roots, id).map(|()| Some(domain.name.clone())),
        None => verify_external(chain, bundles, id).map(Some),
    }
}

fn verify_domain(
    chain: &Chain<'_>,
    bundles: &TrustBundles,
    roots: &RootSet,
    id: &SpiffeId,
) -> Result<(), IdentifyError> {
    let Err(error) = chain.verify(roots) else { return Ok(()) };
    // Only the text depends on this: the answer is no already.
    let foreign = bundles.external().find(|(_, roots)| chain.verify(roots).is_ok());
    Err(match foreign {
        Some((ca, _)) => IdentifyError::OwnDomainFromForeignCa { ca: ca.to_owned(), spiffe_id: id.clone() },
        None => explain(error, id.as_str()),
    })
}

fn verify_external(chain: &Chain<'_>, bundles: &TrustBundles, id: &SpiffeId) -> Result<String, IdentifyError> {
    one_of(chain, bundles.external(), id.as_str())
}

/// The CA that vouches for a certificate without a SPIFFE ID. Without a CA of which rules want other names, it is no SVID.
fn named(chain: &Chain<'_>, bundles: &TrustBundles, names: &Names) -> Result<String, IdentifyError> {
    let mut candidates = bundles.external().filter(|(ca, _)| bundles.names_people(ca)).peekable();
    let who = match (names.dns.first(), &names.cn) {
        (Some(dns), _) => dns.to_string(),
        (None, Some(cn)) => cn.clone(),
        (None, None) => return Err(LeafError::UriNames(0).into()),
    };
    if candidates.peek().is_none() {
        return Err(LeafError::UriNames(0).into());
    }
    one_of(chain, candidates, &who)
}

fn one_of<'b>(
    chain: &Chain<'_>,
    candidates: impl Iterator<Item = (&'b str, &'b RootSet)>,
    who: &str,
) -> Result<String, IdentifyError> {
    let mut why = IdentifyError::UnknownIssuer(who.to_owned());
    for (name, roots) in candidates {
        match chain.verify(roots) {
            Ok(()) => return Ok(name.to_owned()),
            // The CA that knows the chain has the better reason.
            Err(error) if matches!(why, IdentifyError::UnknownIssuer(_)) => why = explain(error, who),
            Err(_) => {}
        }
    }
    Err(why)
}

/// What webpki does not check: the validity of the root itself, keyCertSign of the CAs between, and lists that are too old.
fn check_path(path: &VerifiedPath<'_>, roots: &RootSet, now: UnixTime, crls: &Choice<'_>) -> Result<(), webpki::Error> {
    roots.check_validity(path.anchor(), now)?;
    let time = UNIX_EPOCH + Duration::from_secs(now.as_secs());
    judge_issuer(&path.end_entity().der(), crls, time)?;
    for intermediate in path.intermediate_certificates() {
        let der = intermediate.der();
        let certificate = parse_certificate(&der).map_err(|_| webpki::Error::BadDer)?;
        let usage = certificate.key_usage().map_err(|_| webpki::Error::BadDer)?;
        if usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
            return Err(webpki::Error::EndEntityUsedAsCa);
        }
        judge_issuer(&der, crls, time)?;
    }
    Ok(())
}

fn judge_issuer(der: &CertificateDer<'_>, crls: &Choice<'_>, time: SystemTime) -> Result<(), webpki::Error> {
    if crls.is_empty() {
        return Ok(());
    }
    let certificate = parse_certificate(der).map_err(|_| webpki::Error::BadDer)?;
    let overdue = crls.is_overdue_for(certificate.issuer().as_raw(), time);
    if overdue { Err(webpki::Error::UnknownRevocationStatus) } else { Ok(()) }
}

fn explain(error: webpki::Error, who: &str) -> IdentifyError {
    match error {
        // A CA of the right name and another key is just another CA.
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
            IdentifyError::UnknownIssuer(who.to_owned())
        }
        webpki::Error::CertExpired { .. } => IdentifyError::Expired,
        webpki::Error::CertNotValidYet { .. } => IdentifyError::NotYetValid,
        webpki::Error::CertRevoked => IdentifyError::Revoked,
        webpki::Error::UnknownRevocationStatus => {
            IdentifyError::RevocationUnknown("it has expired and its grace is over".to_owned())
        }
        webpki::Error::InvalidCrlSignatureForPublicKey
        | webpki::Error::UnsupportedCrlSignatureAlgorithmContext(_)
        | webpki::Error::UnsupportedCrlSignatureAlgorithmForPublicKeyContext(_)
        | webpki::Error::IssuerNotCrlSigner => IdentifyError::RevocationUnknown(error.to_string()),
        webpki::Error::CaUsedAsEndEntity => IdentifyError::Leaf(LeafError::IsCa),
        webpki::Error::RequiredEkuNotFoundContext(_) | webpki::Error::EmptyEkuExtension => IdentifyError::Purpose,
        other => IdentifyError::Chain(other),
    }
}

fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes))
}
