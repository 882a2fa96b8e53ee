//! The rules that an end-entity certificate must keep before any signature is looked at: those of an X.509-SVID (SPIFFE
//! X.509-SVID, sections 2 to 4), and for certificates of external CAs that name their holder otherwise, those of RFC 5280.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nova_policy::host::Host;
use nova_proto::ids::{InvalidId, SpiffeId};
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::time::ASN1Time;

use super::subject;

/// Names that one certificate may have beside its SPIFFE ID; each becomes a part of every decision's input.
const MAX_NAMES: usize = 64;

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
    /// The one URI name. `None`: the certificate is no SVID, and its other names may count under an external CA.
    pub(super) spiffe_id: Option<SpiffeId>,
    pub(super) names: Names,
    pub(super) serial: String,
    pub(super) not_after: SystemTime,
}

/// The names of a certificate beside a SPIFFE ID.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// DNS names. One with a wildcard names nobody and is left out.
    pub dns: Vec<Host>,
    /// The common name, if the subject has exactly one.
    pub cn: Option<String>,
    /// The subject as RFC 4514 writes it, in ASCII; `None` when it is too long.
    pub subject: Option<String>,
}

impl Leaf {
    pub(super) fn parse(der: &CertificateDer<'_>) -> Result<Self, LeafError> {
        let certificate = parse_certificate(der)?;
        refuse_ca(&certificate)?;
        let spiffe_id = spiffe_id(&certificate)?;
        check_key_usage(&certificate, spiffe_id.is_some())?;
        Ok(Self {
            names: names(&certificate)?,
            spiffe_id,
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

/// The common name in a certificate's subject; the last one, as Go reads it, if there are several. It is for people and logs:
/// nothing is decided by it here.
#[must_use]
pub fn common_name(der: &CertificateDer<'_>) -> Option<String> {
    let certificate = parse_certificate(der).ok()?;
    let name = certificate.subject().iter_common_name().last()?;
    name.as_str().ok().map(str::to_owned)
}

/// End of a certificate's validity, if it can be read.
#[must_use]
pub fn not_after(der: &CertificateDer<'_>) -> Option<SystemTime> {
    parse_certificate(der).ok().map(|certificate| system_time(certificate.validity().not_after))
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

/// An SVID must have the extension; any other certificate may leave it out.
fn check_key_usage(certificate: &X509Certificate<'_>, svid: bool) -> Result<(), LeafError> {
    let usage = certificate.key_usage().map_err(|_| LeafError::Malformed("keyUsage is repeated or malformed"))?;
    let usage = match usage {
        Some(usage) => usage.value,
        None if svid => return Err(LeafError::KeyUsage("the extension is absent")),
        None => return Ok(()),
    };
    if !usage.digital_signature() {
        return Err(LeafError::KeyUsage("digitalSignature is missing"));
    }
    if usage.key_cert_sign() || usage.crl_sign() {
        return Err(LeafError::KeyUsage("keyCertSign or cRLSign is set"));
    }
    Ok(())
}

/// The names of one kind in subjectAltName.
fn alternative_names<'a, T>(
    certificate: &'a X509Certificate<'_>,
    pick: impl Fn(&'a GeneralName<'a>) -> Option<T>,
) -> Result<Vec<T>, LeafError> {
    let names = certificate
        .subject_alternative_name()
        .map_err(|_| LeafError::Malformed("subjectAltName is repeated or malformed"))?;
    Ok(names.iter().flat_map(|names| &names.value.general_names).filter_map(pick).collect())
}

fn spiffe_id(certificate: &X509Certificate<'_>) -> Result<Option<SpiffeId>, LeafError> {
    let uris = alternative_names(certificate, |name| if let GeneralName::URI(uri) = name { Some(*uri) } else { None })?;
    match uris.as_slice() {
        [] => Ok(None),
        [uri] => SpiffeId::new(*uri).map(Some).map_err(LeafError::NotSpiffe),
        other => Err(LeafError::UriNames(other.len())),
    }
}

fn names(certificate: &X509Certificate<'_>) -> Result<Names, LeafError> {
    let dns =
        alternative_names(certificate, |name| if let GeneralName::DNSName(dns) = name { Some(*dns) } else { None })?;
    if dns.len() > MAX_NAMES {
        return Err(LeafError::Malformed("more than 64 DNS names"));
    }
    let is_name = |host: &Host| host.address().is_none();
    Ok(Names {
        dns: dns.iter().filter_map(|name| Host::parse(name).ok()).filter(is_name).collect(),
        cn: subject::common_name(certificate.subject()),
        subject: subject::text(certificate.subject()),
    })
}
