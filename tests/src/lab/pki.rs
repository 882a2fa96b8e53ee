//! Certificates of the lab: the node's dev CA, a partner's, a stranger's, and the one of the stub upstreams.

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SanType,
};

/// A CA that lives in memory.
pub struct Ca {
    pem: String,
    key: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    /// A fresh CA. `uri` is the trust domain, for CAs of SPIFFE identities.
    ///
    /// # Errors
    /// When the certificate cannot be made.
    pub fn new(name: &str, uri: Option<&str>) -> anyhow::Result<Self> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        if let Some(uri) = uri {
            params.subject_alt_names.push(SanType::URI(uri.try_into()?));
        }
        let certificate = params.self_signed(&key)?;
        let (pem, key_pem) = (certificate.pem(), key.serialize_pem());
        Ok(Self { pem, key: key_pem, issuer: Issuer::new(params, key) })
    }

    /// Its certificate.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.pem
    }

    /// Certificate and key.
    #[must_use]
    pub fn identity(&self) -> String {
        format!("{}{}", self.pem, self.key)
    }

    /// A leaf: chain and key, with these names.
    ///
    /// # Errors
    /// When a name is not valid.
    pub fn leaf(&self, uri: Option<&str>, dns: Option<&str>) -> anyhow::Result<String> {
        self.leaf_named("nova-lab", uri, dns)
    }

    /// As [`Ca::leaf`], with a common name: all that some proxies look at.
    ///
    /// # Errors
    /// When a name is not valid.
    pub fn leaf_named(&self, name: &str, uri: Option<&str>, dns: Option<&str>) -> anyhow::Result<String> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        if let Some(uri) = uri {
            params.subject_alt_names.push(SanType::URI(uri.try_into()?));
        }
        if let Some(dns) = dns {
            params.subject_alt_names.push(SanType::DnsName(dns.try_into()?));
        }
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(format!("{}{}", certificate.pem(), key.serialize_pem()))
    }
}

/// A pipe that holds `secret`, to be inherited by the next process only: drop it after the start.
pub struct Handover {
    end: OwnedFd,
}

impl Handover {
    /// Makes the pipe. The secret is smaller than a pipe's buffer, so nobody has to write it later.
    ///
    /// # Errors
    /// When the pipe cannot be made.
    pub fn new(secret: &str) -> anyhow::Result<Self> {
        // Without close-on-exec: the next child inherits it under the same number.
        let (end, write) = nix::unistd::pipe().context("pipe")?;
        std::fs::File::from(write).write_all(secret.as_bytes())?;
        Ok(Self { end })
    }

    /// The number under which the child has it.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.end.as_raw_fd()
    }
}
