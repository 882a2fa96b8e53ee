//! The rules that an end-entity certificate must keep to be an X.509-SVID (SPIFFE X.509-SVID, sections 2 to 4), before any
//! signature is looked at.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nova_proto::ids::{InvalidId, SpiffeId};
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::time::ASN1Time;

/// Which rule a leaf breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeafError {
    /// Not one well-formed certificate.
    #[error("not a well-formed certificate: {0}")]
    Malformed(&'static str),
    /// A CA as the end of a chain.
    #[error("a CA certificate was presented as the peer's own")]
    IsCa,
    /// The key may not sign handshakes, or may sign certificates.
    #[error("keyUsage is not fit for a leaf: {0}")]
    KeyUsage(&'static str),
    /// Not exactly one URI SAN.
    #[error("{0} URI names where exactly one is required")]
    UriNames(usize),
    /// The URI is not a canonical SPIFFE ID.
    #[error("the URI name is not a SPIFFE ID")]
    NotSpiffe(#[source] InvalidId),
}

/// What a leaf says, once its form is right. Not yet verified by anybody.
pub(super) struct Leaf {
    pub(super) spiffe_id: SpiffeId,
    pub(super) serial: String,
    pub(super) not_after: SystemTime,
}

impl Leaf {
    pub(super) fn parse(der: &CertificateDer<'_>) -> Result<Self, LeafError> {
        let certificate = parse_certificate(der)?;
        refuse_ca(&certificate)?;
        check_key_usage(&certificate)?;
        Ok(Self {
            spiffe_id: only_spiffe_id(&certificate)?,
            serial: hex::encode(certificate.raw_serial()),
            not_after: system_time(certificate.validity().not_after),
        })
    }
}

/// Parses exactly one certificate: bytes after it are refused, since another parser may look at them.
pub(super) fn parse_certificate<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, LeafError> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) => Err(LeafError::Malformed("bytes after the end")),
        Err(_) => Err(LeafError::Malformed("not DER")),
    }
}

/// Times before 1970 count as 1970: expired either way.
pub(super) fn system_time(time: ASN1Time) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(time.timestamp()).unwrap_or(0))
}

fn refuse_ca(certificate: &X509Certificate<'_>) -> Result<(), LeafError> {
    let constraints =
        certificate.basic_constraints().map_err(|_| LeafError::Malformed("two BasicConstraints extensions"))?;
    if constraints.is_some_and(|found| found.value.ca) { Err(LeafError::IsCa) } else { Ok(()) }
}

fn check_key_usage(certificate: &X509Certificate<'_>) -> Result<(), LeafError> {
    let usage = certificate.key_usage().map_err(|_| LeafError::Malformed("keyUsage is repeated or malformed"))?;
    let usage = usage.ok_or(LeafError::KeyUsage("the extension is absent"))?.value;
    if !usage.digital_signature() {
        return Err(LeafError::KeyUsage("digitalSignature is missing"));
    }
    if usage.key_cert_sign() || usage.crl_sign() {
        return Err(LeafError::KeyUsage("keyCertSign or cRLSign is set"));
    }
    Ok(())
}

fn only_spiffe_id(certificate: &X509Certificate<'_>) -> Result<SpiffeId, LeafError> {
    let names = certificate
        .subject_alternative_name()
        .map_err(|_| LeafError::Malformed("subjectAltName is repeated or malformed"))?;
    let uris: Vec<&str> = names
        .iter()
        .flat_map(|names| &names.value.general_names)
        .filter_map(|name| if let GeneralName::URI(uri) = name { Some(*uri) } else { None })
        .collect();
    match uris.as_slice() {
        [uri] => SpiffeId::new(*uri).map_err(LeafError::NotSpiffe),
        other => Err(LeafError::UriNames(other.len())),
    }
}
