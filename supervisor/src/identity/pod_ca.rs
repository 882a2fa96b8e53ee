//! The CA of one pod whose rules let the supervisor look into the TLS of its app. Its key is in memory only and dies with the
//! endpoint; its certificate vouches for the names of those rules and for nothing else.
//!
//! ```text
//! by itself    pod CA (the guest trusts it) --> leaf for one name
//! two tiers    root, offline (the guest trusts it) --> intermediate, from files --> pod CA --> leaf for one name
//! ```
//! The certificate of a pod CA is never replaced: whoever runs in the guest has read it, and programs do not read such files
//! again. So it lives as long as pods are meant to, and it is the leaves that are short-lived.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyUsagePurpose, NameConstraints, SanType,
};
use rustls::crypto::aws_lc_rs::sign::any_ecdsa_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::sign::CertifiedKey;

use super::disk::{Access, name, read};
use super::leaf::parse_certificate;
use super::signing::{EcKey, issuer_of, random_hex, set_validity};
use super::{IdentityError, pem};

/// The clock of a guest may be behind: it must not refuse what was just made.
const BACKDATE: Duration = Duration::from_secs(3600);
/// A leaf is made anew when half of it is over.
const LEAF_LIFE: Duration = Duration::from_secs(24 * 3600);
/// How long before its end a CA is spoken of.
const NOTICE: Duration = Duration::from_secs(7 * 24 * 3600);
/// For the proof that an intermediate can be used.
const PROBE: &str = "probe.nova";

/// Makes the CAs of pods.
pub struct PodCas {
    above: Option<Above>,
    life: Duration,
}

/// What signs the CAs of pods, if they do not sign themselves.
struct Above {
    issuer: Issuer<'static, EcKey>,
    /// The intermediate and what stands between it and the root, in the order of a handshake.
    chain: Vec<CertificateDer<'static>>,
    root: CertificateDer<'static>,
    not_after: SystemTime,
}

/// The CA of one pod.
pub struct PodCa {
    issuer: Issuer<'static, EcKey>,
    /// What goes into a handshake behind the leaf: nothing that the guest has.
    chain: Vec<CertificateDer<'static>>,
    trust: CertificateDer<'static>,
    names: BTreeSet<String>,
    not_after: SystemTime,
}

/// A leaf, ready for the TLS library.
pub struct PodLeaf {
    /// Chain and key.
    pub certified_key: Arc<CertifiedKey>,
    /// When to make another.
    pub renew_after: SystemTime,
}

impl PodCas {
    /// Each CA signs itself and is good for `life`.
    #[must_use]
    pub fn self_signed(life: Duration) -> Self {
        Self { above: None, life }
    }

    /// An intermediate signs each: `chain` holds it first and a self-signed root last, `key` is the intermediate's.
    ///
    /// # Errors
    /// When the files cannot be read or others may read the key, or when what they make does not verify.
    pub fn signed_by(chain: &Path, key: &Path, life: Duration) -> Result<Self, IdentityError> {
        let what = name(chain);
        let unusable = |problem| IdentityError::Intermediate { what: what.clone(), problem };
        let mut certificates = pem::certificates(&what, &read(chain, Access::Public)?)?;
        let secret = pem::private_key(&name(key), &read(key, Access::Secret)?)?;
        let key = EcKey::from_pkcs8(&secret).map_err(unusable)?;
        let root = certificates.pop().filter(|_| !certificates.is_empty());
        let root = root.ok_or_else(|| unusable("it holds one certificate only".to_owned()))?;
        if !is_self_issued(&root) {
            return Err(unusable("its last certificate is not a root".to_owned()));
        }
        let (issuer, not_after) = issuer_of(&certificates[0], key).map_err(unusable)?;
        let cas = Self { above: Some(Above { issuer, chain: certificates, root, not_after }), life };
        cas.prove().map_err(|error| unusable(format!("what it signs does not verify ({error})")))?;
        Ok(cas)
    }

    /// Whether there is a root that guests trust whichever CA is below it.
    #[must_use]
    pub fn have_a_root(&self) -> bool {
        self.above.is_some()
    }

    /// Whether the pod of `ca` should be restarted: a week before its end, or in the last eighth of a shorter life. Below a root
    /// there is always another.
    #[must_use]
    pub fn ends_soon(&self, ca: &PodCa, now: SystemTime) -> bool {
        !self.have_a_root() && ca.not_after < now + NOTICE.min(self.life / 8)
    }

    /// Makes the CA of `workload` for `names`: each a host, or `*.` and a suffix.
    ///
    /// # Errors
    /// When the crypto library fails, or a name is none.
    pub fn make(&self, workload: &str, names: &BTreeSet<String>) -> Result<PodCa, IdentityError> {
        let names = bases(names);
        let key = EcKey::generate()?;
        let now = SystemTime::now();
        let not_after = self.above.as_ref().map_or(now + self.life, |above| above.not_after.min(now + self.life));
        let params = ca_params(workload, &names, now - BACKDATE, not_after)?;
        let failed = |_| IdentityError::Crypto { doing: "sign a certificate" };
        let (certificate, trust, chain) = match &self.above {
            None => {
                let own: CertificateDer<'static> = params.self_signed(&key).map_err(failed)?.into();
                (own.clone(), own, Vec::new())
            }
            Some(above) => {
                let own = params.signed_by(&key, &above.issuer).map_err(failed)?.into();
                (own, above.root.clone(), above.chain.clone())
            }
        };
        let chain = if self.above.is_some() { [vec![certificate], chain].concat() } else { chain };
        Ok(PodCa { issuer: Issuer::new(params, key), chain, trust, names, not_after })
    }

    /// Makes a CA and a leaf once and verifies them as a client does: what is wrong with an intermediate shows here.
    fn prove(&self) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let ca = self.make("probe", &BTreeSet::from([PROBE.to_owned()])).map_err(|error| text(&error))?;
        let leaf = ca.issue(PROBE).map_err(|error| text(&error))?;
        let (leaf, between) = leaf.certified_key.cert.split_first().ok_or("no certificate")?;
        let anchor = webpki::anchor_from_trusted_cert(&ca.trust).map_err(|error| text(&error))?;
        let leaf = webpki::EndEntityCert::try_from(leaf).map_err(|error| text(&error))?;
        let usage = webpki::KeyUsage::server_auth();
        let algorithms = webpki::ALL_VERIFICATION_ALGS;
        leaf.verify_for_usage(algorithms, &[anchor], between, UnixTime::now(), usage, None, None)
            .map_err(|error| text(&error))?;
        Ok(())
    }
}

impl PodCa {
    /// What the guest shall trust, as PEM. Public material.
    #[must_use]
    pub fn trust_pem(&self) -> String {
        pem::encode("CERTIFICATE", &self.trust).to_string()
    }

    /// Whether a leaf for `host` would be believed: the name itself, or one below, as name constraints are read.
    #[must_use]
    pub fn covers(&self, host: &str) -> bool {
        is_below_any(&self.names, host)
    }

    /// When nothing that it signs is believed any more.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Makes a leaf for exactly `host`, with a key of its own.
    ///
    /// # Errors
    /// When the CA is over or does not cover the name, or the crypto library fails.
    pub fn issue(&self, host: &str) -> Result<PodLeaf, IdentityError> {
        let now = SystemTime::now();
        if !self.covers(host) || now >= self.not_after {
            return Err(IdentityError::NotCovered { host: host.to_owned() });
        }
        let key = EcKey::generate()?;
        let not_after = self.not_after.min(now + LEAF_LIFE);
        let params = leaf_params(host, now - BACKDATE, not_after)?;
        let failed = |_| IdentityError::Crypto { doing: "sign a certificate" };
        let leaf = params.signed_by(&key, &self.issuer).map_err(failed)?.into();
        let pkcs8 = key.to_pkcs8()?;
        let signing = any_ecdsa_type(&PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8.as_slice())))
            .map_err(|_| IdentityError::Crypto { doing: "use a key" })?;
        let chain = [vec![leaf], self.chain.clone()].concat();
        let renew_after = now + not_after.duration_since(now).unwrap_or_default() / 2;
        Ok(PodLeaf { certified_key: Arc::new(CertifiedKey::new(chain, signing)), renew_after })
    }
}

/// The CA of one endpoint, or none yet: it is made when the guest asks what to trust.
#[derive(Default)]
pub struct PodCaCell(ArcSwapOption<PodCa>);

impl PodCaCell {
    /// The CA that the guest was given.
    #[must_use]
    pub fn get(&self) -> Option<Arc<PodCa>> {
        self.0.load_full()
    }

    /// The CA that is there already, or else `ca`: two who ask at once get the same.
    pub fn get_or_put(&self, ca: PodCa) -> Arc<PodCa> {
        let ca = Arc::new(ca);
        let before = self.0.compare_and_swap(std::ptr::null::<PodCa>(), Some(Arc::clone(&ca)));
        before.as_ref().map_or(ca, Arc::clone)
    }

    /// Puts `ca` in the place of whatever is there.
    pub fn replace(&self, ca: PodCa) -> Arc<PodCa> {
        let ca = Arc::new(ca);
        self.0.store(Some(Arc::clone(&ca)));
        ca
    }

    /// Takes the CA away, and its key with it once no handshake holds it.
    pub fn clear(&self) {
        self.0.store(None);
    }
}

/// The least names that cover all: a suffix covers its own name too, since name constraints know no other form.
fn bases(names: &BTreeSet<String>) -> BTreeSet<String> {
    let plain: BTreeSet<String> = names.iter().map(|name| name.trim_start_matches("*.").to_owned()).collect();
    let parent = |name: &str| name.split_once('.').map(|(_, parent)| parent.to_owned());
    let is_needed = |name: &&String| !parent(name).is_some_and(|parent| is_below_any(&plain, &parent));
    plain.iter().filter(is_needed).cloned().collect()
}

fn is_below_any(names: &BTreeSet<String>, host: &str) -> bool {
    let mut rest = Some(host);
    while let Some(name) = rest {
        if names.contains(name) {
            return true;
        }
        rest = name.split_once('.').map(|(_, parent)| parent);
    }
    false
}

fn is_self_issued(certificate: &CertificateDer<'_>) -> bool {
    parse_certificate(certificate).is_ok_and(|parsed| parsed.subject().as_raw() == parsed.issuer().as_raw())
}

fn ca_params(
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

fn leaf_params(host: &str, not_before: SystemTime, not_after: SystemTime) -> Result<CertificateParams, IdentityError> {
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

#[cfg(test)]
mod tests;
