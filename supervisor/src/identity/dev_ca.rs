//! The embedded CA of development nodes and labs. P-256 throughout. Its key and the keys it issues are in memory only.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use nova_proto::ids::SpiffeId;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyIdMethod, KeyUsagePurpose, PublicKeyData, SanType, SigningKey, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::asn1_rs::Tag;
use x509_parser::prelude::{ParsedExtension, X509Certificate};
use zeroize::Zeroizing;

use super::leaf::{parse_certificate, system_time};
use super::peer::{Usage, verify_against};
use super::{IdentityError, RootSet, pem};

/// Callers whose clock is a little behind must not refuse what was just issued.
const BACKDATE: Duration = Duration::from_secs(60);
/// A CA in memory dies with its process; a year outlives every lab.
const CA_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// A CA certificate with its key is below 2 KiB; more is not what was meant to be handed over.
const MAX_INPUT: u64 = 64 * 1024;

/// A CA with its key in memory.
pub struct DevCa {
    issuer: Issuer<'static, EcKey>,
    certificate: CertificateDer<'static>,
    not_after: SystemTime,
}

/// A certificate that was just issued, with its key. The key's buffer is overwritten when this is dropped.
pub struct Issued {
    /// Leaf first. The CA's own certificate is not part of it.
    pub chain: Vec<CertificateDer<'static>>,
    key: Zeroizing<Vec<u8>>,
}

impl DevCa {
    /// Makes a new CA. Its subject holds a random number, so that two of them are never taken for each other.
    ///
    /// # Errors
    /// When the crypto library fails.
    pub fn generate() -> Result<Self, IdentityError> {
        let key = EcKey::generate()?;
        let now = SystemTime::now();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, format!("nova dev CA {}", random_hex()?));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        set_validity(&mut params, now - BACKDATE, now + CA_LIFE);
        let certificate =
            params.self_signed(&key).map_err(|_| IdentityError::Crypto { doing: "sign a certificate" })?;
        Ok(Self { certificate: certificate.into(), issuer: Issuer::new(params, key), not_after: now + CA_LIFE })
    }

    /// Reads a CA (certificate and PKCS#8 key, both PEM) from an inherited descriptor, once. The descriptor is closed.
    ///
    /// # Errors
    /// When it cannot be read, or is not a usable CA.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, IdentityError> {
        let mut text = Zeroizing::new(Vec::with_capacity(MAX_INPUT as usize + 1));
        let read = std::fs::File::from(fd).take(MAX_INPUT + 1).read_to_end(&mut text);
        read.map_err(|error| unusable(format!("its descriptor cannot be read ({error})")))?;
        if text.len() as u64 > MAX_INPUT {
            return Err(unusable(format!("more than {MAX_INPUT} bytes were handed over")));
        }
        Self::from_pem(&text)
    }

    /// Reads a CA from a text with its certificate and its PKCS#8 key, both PEM.
    ///
    /// # Errors
    /// When it is not a valid P-256 CA with its own key.
    pub fn from_pem(text: &[u8]) -> Result<Self, IdentityError> {
        let certificate = pem::certificates("the dev CA", text)?.swap_remove(0);
        let key = EcKey::from_pkcs8(&pem::private_key("the dev CA", text)?)?;
        let mut params = CertificateParams::default();
        let parsed = parse_certificate(&certificate).map_err(|error| unusable(error.to_string()))?;
        if parsed.public_key().subject_public_key.data.as_ref() != key.der_bytes() {
            return Err(unusable("the key is not the certificate's".to_owned()));
        }
        params.distinguished_name = subject(&parsed)?;
        if let Some(key_id) = key_id(&parsed) {
            params.key_identifier_method = KeyIdMethod::PreSpecified(key_id);
        }
        let not_after = system_time(parsed.validity().not_after);
        let ca = Self { issuer: Issuer::new(params, key), certificate: certificate.clone(), not_after };
        ca.prove()?;
        Ok(ca)
    }

    /// Issues an SVID that is valid from a minute ago and for `ttl`, with a key of its own.
    ///
    /// # Errors
    /// When the crypto library fails or `dns` is not a DNS name.
    pub fn issue(&self, id: &SpiffeId, dns: &str, ttl: Duration) -> Result<Issued, IdentityError> {
        let now = SystemTime::now();
        self.issue_between(id, dns, now - BACKDATE, now + ttl)
    }

    /// As [`issue`](Self::issue) with both ends given: labs want expired certificates too. It never outlives the CA.
    ///
    /// # Errors
    /// When the crypto library fails or `dns` is not a DNS name.
    pub fn issue_between(
        &self,
        id: &SpiffeId,
        dns: &str,
        not_before: SystemTime,
        not_after: SystemTime,
    ) -> Result<Issued, IdentityError> {
        let key = EcKey::generate()?;
        let params = leaf_params(id, dns, not_before, not_after.min(self.not_after))?;
        let certificate =
            params.signed_by(&key, &self.issuer).map_err(|_| IdentityError::Crypto { doing: "sign a certificate" })?;
        Ok(Issued { chain: vec![certificate.into()], key: key.to_pkcs8()? })
    }

    /// The CA's certificate. Public material: it may be written to a file for callers.
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        pem::encode("CERTIFICATE", &self.certificate).to_string()
    }

    /// Certificate and key, as [`from_fd`](Self::from_fd) reads them. For a pipe to a child, never for a file.
    ///
    /// # Errors
    /// When the crypto library fails.
    pub fn to_pem(&self) -> Result<Zeroizing<String>, IdentityError> {
        let certificate = pem::encode("CERTIFICATE", &self.certificate);
        let key = pem::encode("PRIVATE KEY", &self.issuer.key().to_pkcs8()?);
        let mut text = Zeroizing::new(String::with_capacity(certificate.len() + key.len()));
        text.push_str(&certificate);
        text.push_str(&key);
        Ok(text)
    }

    /// The CA as a set of one root.
    ///
    /// # Errors
    /// When its certificate is not one of a CA.
    pub fn roots(&self) -> Result<RootSet, IdentityError> {
        RootSet::from_der("the dev CA", vec![self.certificate.clone()])
    }

    /// Issues and verifies once: what a handed-over CA may have (an odd subject, no keyCertSign, a past end) shows here.
    fn prove(&self) -> Result<(), IdentityError> {
        let id = super::dev::probe_id()?;
        let probe = self.issue(&id, "probe.nova", BACKDATE)?;
        verify_against(&self.roots()?, &probe.chain, &id, Usage::Server, UnixTime::now())
            .map_err(|error| unusable(format!("what it issues does not verify ({error})")))
    }
}

impl Issued {
    /// The chain as PEM, leaf first.
    #[must_use]
    pub fn chain_pem(&self) -> String {
        self.chain.iter().map(|der| pem::encode("CERTIFICATE", der).to_string()).collect()
    }

    /// The key as PKCS#8 PEM.
    #[must_use]
    pub fn key_pem(&self) -> Zeroizing<String> {
        pem::encode("PRIVATE KEY", &self.key)
    }

    /// The key as PKCS#8 DER.
    #[must_use]
    pub fn key_der(&self) -> &[u8] {
        &self.key
    }
}

/// A P-256 key of the crypto library, which overwrites it when it is freed; rcgen's own type keeps a copy that it does not.
struct EcKey(EcdsaKeyPair);

impl EcKey {
    fn generate() -> Result<Self, IdentityError> {
        EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING)
            .map(Self)
            .map_err(|_| IdentityError::Crypto { doing: "make a key" })
    }

    fn from_pkcs8(der: &[u8]) -> Result<Self, IdentityError> {
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der)
            .map(Self)
            .map_err(|_| unusable("the key is not a P-256 key in PKCS#8 form".to_owned()))
    }

    fn to_pkcs8(&self) -> Result<Zeroizing<Vec<u8>>, IdentityError> {
        let document = self.0.to_pkcs8v1().map_err(|_| IdentityError::Crypto { doing: "encode a key" })?;
        Ok(Zeroizing::new(document.as_ref().to_vec()))
    }
}

impl PublicKeyData for EcKey {
    fn der_bytes(&self) -> &[u8] {
        self.0.public_key().as_ref()
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

impl SigningKey for EcKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let signature = self.0.sign(&SystemRandom::new(), message).map_err(|_| rcgen::Error::RemoteKeyError)?;
        Ok(signature.as_ref().to_vec())
    }
}

fn leaf_params(
    id: &SpiffeId,
    dns: &str,
    not_before: SystemTime,
    not_after: SystemTime,
) -> Result<CertificateParams, IdentityError> {
    let invalid = |_| unusable(format!("{dns:?} cannot be a DNS name"));
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "nova dev");
    params.subject_alt_names = vec![
        SanType::URI(id.as_str().try_into().map_err(invalid)?),
        SanType::DnsName(dns.try_into().map_err(invalid)?),
    ];
    params.is_ca = IsCa::ExplicitNoCa;
    // Strict callers (Python from 3.13 on) refuse a certificate that does not name its CA's key.
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    set_validity(&mut params, not_before, not_after);
    Ok(params)
}

fn set_validity(params: &mut CertificateParams, not_before: SystemTime, not_after: SystemTime) {
    let since_epoch = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
    params.not_before = date_time_ymd(1970, 1, 1) + since_epoch(not_before);
    params.not_after = date_time_ymd(1970, 1, 1) + since_epoch(not_after);
}

/// The subject in rcgen's form. Whatever this cannot express makes [`DevCa::prove`] fail, since issuer names are compared as bytes.
fn subject(certificate: &X509Certificate<'_>) -> Result<DistinguishedName, IdentityError> {
    let odd = || unusable("its subject has parts other than plain UTF-8 or printable text".to_owned());
    let mut name = DistinguishedName::new();
    for attribute in certificate.subject().iter_attributes() {
        let oid: Vec<u64> = attribute.attr_type().iter().ok_or_else(odd)?.collect();
        let text = attribute.as_str().map_err(|_| odd())?;
        let value = match attribute.attr_value().tag() {
            Tag::Utf8String => DnValue::Utf8String(text.to_owned()),
            Tag::PrintableString => DnValue::PrintableString(text.try_into().map_err(|_| odd())?),
            _ => return Err(odd()),
        };
        name.push(DnType::CustomDnType(oid), value);
    }
    Ok(name)
}

/// How the CA itself names its key, whichever tool made it.
fn key_id(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(key_id) => Some(key_id.0.to_vec()),
        _ => None,
    })
}

fn random_hex() -> Result<String, IdentityError> {
    let mut bytes = [0u8; 4];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| IdentityError::Crypto { doing: "draw random bytes" })?;
    Ok(hex::encode(bytes))
}

fn unusable(problem: String) -> IdentityError {
    IdentityError::DevCa { problem }
}
