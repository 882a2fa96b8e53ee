//! What signs the CAs of pods below a root that is offline.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::Issuer;
use rustls::pki_types::{CertificateDer, UnixTime};

use super::PodCa;
use crate::identity::disk::{Access, name, read};
use crate::identity::leaf::parse_certificate;
use crate::identity::signing::{EcKey, issuer_of};
use crate::identity::{IdentityError, pem};

/// For the proof that an intermediate can be used.
const PROBE: &str = "probe.nova";
/// How long what the proof makes would be good.
const PROBE_LIFE: Duration = Duration::from_secs(60);

/// An intermediate and its root, as read from files.
pub(super) struct Above {
    issuer: Issuer<'static, EcKey>,
    /// The intermediate and what stands between it and the root, in the order of a handshake.
    chain: Vec<CertificateDer<'static>>,
    root: CertificateDer<'static>,
    not_after: SystemTime,
}

impl Above {
    /// `chain` holds the intermediate first and a self-signed root last, `key` is the intermediate's.
    pub(super) fn read(chain: &Path, key: &Path) -> Result<Self, IdentityError> {
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
        let above = Self { issuer, chain: certificates, root, not_after };
        above.prove().map_err(|error| unusable(format!("what it signs does not verify ({error})")))?;
        Ok(above)
    }

    pub(super) fn issuer(&self) -> &Issuer<'static, EcKey> {
        &self.issuer
    }

    pub(super) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    pub(super) fn root(&self) -> &CertificateDer<'static> {
        &self.root
    }

    pub(super) fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Makes a CA and a leaf once and verifies them as a client does: what is wrong with an intermediate shows here.
    fn prove(&self) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let names = BTreeSet::from([PROBE.to_owned()]);
        let ca =
            PodCa::make(Some(self), PROBE_LIFE, "probe", &names, SystemTime::now()).map_err(|error| text(&error))?;
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

fn is_self_issued(certificate: &CertificateDer<'_>) -> bool {
    parse_certificate(certificate).is_ok_and(|parsed| parsed.subject().as_raw() == parsed.issuer().as_raw())
}
