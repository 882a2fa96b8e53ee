//! What signs certificates: a P-256 key in memory, and the CA that a certificate and its key make.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, DnValue, Issuer, KeyIdMethod, PublicKeyData, SigningKey,
    date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use x509_parser::asn1_rs::Tag;
use x509_parser::prelude::{ParsedExtension, X509Certificate};
use zeroize::Zeroizing;

use super::IdentityError;
use super::leaf::{parse_certificate, system_time};

/// A P-256 key of the crypto library, which overwrites it when it is freed; rcgen's own type keeps a copy that it does not.
pub(super) struct EcKey(EcdsaKeyPair);

impl EcKey {
    pub(super) fn generate() -> Result<Self, IdentityError> {
        EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING)
            .map(Self)
            .map_err(|_| IdentityError::Crypto { doing: "make a key" })
    }

    pub(super) fn from_pkcs8(der: &[u8]) -> Result<Self, String> {
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der)
            .map(Self)
            .map_err(|_| "the key is not a P-256 key in PKCS#8 form".to_owned())
    }

    pub(super) fn to_pkcs8(&self) -> Result<Zeroizing<Vec<u8>>, IdentityError> {
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

/// The CA of this certificate and key, and when it ends; or what is wrong with it.
pub(super) fn issuer_of(
    certificate: &CertificateDer<'_>,
    key: EcKey,
) -> Result<(Issuer<'static, EcKey>, SystemTime), String> {
    let parsed = parse_certificate(certificate).map_err(|error| error.to_string())?;
    if parsed.public_key().subject_public_key.data.as_ref() != key.der_bytes() {
        return Err("the key is not the certificate's".to_owned());
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = subject(&parsed)?;
    if let Some(key_id) = key_id(&parsed) {
        params.key_identifier_method = KeyIdMethod::PreSpecified(key_id);
    }
    Ok((Issuer::new(params, key), system_time(parsed.validity().not_after)))
}

pub(super) fn set_validity(params: &mut CertificateParams, not_before: SystemTime, not_after: SystemTime) {
    let since_epoch = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
    params.not_before = date_time_ymd(1970, 1, 1) + since_epoch(not_before);
    params.not_after = date_time_ymd(1970, 1, 1) + since_epoch(not_after);
}

/// The subject in rcgen's form. Whatever this cannot express makes the proof of the CA fail, since issuer
/// names are compared as bytes.
fn subject(certificate: &X509Certificate<'_>) -> Result<DistinguishedName, String> {
    let odd = || "its subject has parts other than plain UTF-8 or printable text".to_owned();
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

pub(super) fn random_hex() -> Result<String, IdentityError> {
    let mut bytes = [0u8; 4];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| IdentityError::Crypto { doing: "draw random bytes" })?;
    Ok(hex::encode(bytes))
}
