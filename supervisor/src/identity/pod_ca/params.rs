//! What stands in the certificates of pods' CAs and their leaves.

use std::collections::BTreeSet;
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, KeyUsagePurpose, NameConstraints, SanType,
};

use crate::identity::IdentityError;
use crate::identity::signing::{random_hex, set_validity};

/// The least names that cover all: a suffix covers its own name too, since name constraints know no other form.
pub(super) fn bases(names: &BTreeSet<String>) -> BTreeSet<String> {
    let plain: BTreeSet<String> = names.iter().map(|name| name.trim_start_matches("*.").to_owned()).collect();
    let parent = |name: &str| name.split_once('.').map(|(_, parent)| parent.to_owned());
    let is_needed = |name: &&String| !parent(name).is_some_and(|parent| is_below_any(&plain, &parent));
    plain.iter().filter(is_needed).cloned().collect()
}

pub(super) fn is_below_any(names: &BTreeSet<String>, host: &str) -> bool {
    let mut rest = Some(host);
    while let Some(name) = rest {
        if names.contains(name) {
            return true;
        }
        rest = name.split_once('.').map(|(_, parent)| parent);
    }
    false
}

pub(super) fn ca_params(
    workload: &str,
    names: &BTreeSet<String>,
    not_before: SystemTime,
    not_after: SystemTime,
) -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "nova interception");
    params.distinguished_name.push(DnType::CommonName, format!("{} {}", shortened(workload), random_hex()?));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: names.iter().cloned().map(GeneralSubtree::DnsName).collect(),
        // A kind of name that no subtree speaks of would be free.
        excluded_subtrees: vec![
            GeneralSubtree::IpAddress(CidrSubnet::V4([0; 4], [0; 4])),
            GeneralSubtree::IpAddress(CidrSubnet::V6([0; 16], [0; 16])),
        ],
    });
    set_validity(&mut params, not_before, not_after);
    Ok(params)
}

/// A common name has room for 64 characters.
fn shortened(workload: &str) -> String {
    workload.chars().take(48).collect()
}

pub(super) fn leaf_params(
    host: &str,
    not_before: SystemTime,
    not_after: SystemTime,
) -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "nova interception");
    let dns = host.try_into().map_err(|_| IdentityError::NotCovered { host: host.to_owned() })?;
    params.subject_alt_names = vec![SanType::DnsName(dns)];
    params.is_ca = IsCa::ExplicitNoCa;
    // Strict clients (Python from 3.13 on) refuse a certificate that does not name its CA's key.
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    set_validity(&mut params, not_before, not_after);
    Ok(params)
}
