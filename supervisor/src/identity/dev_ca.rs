//! The embedded CA of development nodes and labs. P-256 throughout. Its key and the keys it issues are in memory only.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};

use nova_proto::ids::SpiffeId;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, UnixTime};
use zeroize::Zeroizing;

use super::peer::{Usage, verify_against};
use super::signing::{EcKey, issuer_of, random_hex, set_validity};
use super::{IdentityError, RootSet, pem};

/// The trust domain of everything the dev CA issues.
pub const DEV_TRUST_DOMAIN: &str = "dev.invalid";
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
        let key = EcKey::from_pkcs8(&pem::private_key("the dev CA", text)?).map_err(unusable)?;
        let (issuer, not_after) = issuer_of(&certificate, key).map_err(unusable)?;
        let ca = Self { issuer, certificate, not_after };
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
        let id = probe_id()?;
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

/// An ID that no endpoint can have: for the CA's self-test.
fn probe_id() -> Result<SpiffeId, IdentityError> {
    SpiffeId::new(format!("spiffe://{DEV_TRUST_DOMAIN}/probe")).map_err(IdentityError::TrustDomain)
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

fn unusable(problem: String) -> IdentityError {
    IdentityError::DevCa { problem }
}
