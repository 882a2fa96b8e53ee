//! Whom we believe: the roots of our own trust domain, and the external CAs that the policy names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nova_proto::ids::{InvalidId, SpiffeId};
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::anchor_from_trusted_cert;

use super::crl::Crls;
use super::disk::{Access, name, read};
use super::leaf::{parse_certificate, system_time};
use super::{IdentityError, pem};

/// A trust domain, without `spiffe://`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrustDomain(String);

impl TrustDomain {
    /// Validates `name`.
    ///
    /// # Errors
    /// When no SPIFFE ID can have this trust domain.
    pub fn new(name: &str) -> Result<Self, IdentityError> {
        // The rule lives in one place: a name is valid exactly if an ID with it is. `a/b` would be domain `a`, path `b/x`.
        match SpiffeId::new(format!("spiffe://{name}/x")) {
            Ok(id) if id.trust_domain() == name => Ok(Self(name.to_owned())),
            Ok(_) => Err(IdentityError::TrustDomain(InvalidId {
                what: "trust domain",
                value: name.chars().take(128).collect(),
                rule: "it has no path",
            })),
            Err(error) => Err(IdentityError::TrustDomain(error)),
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// CA certificates that are believed together. Never empty.
#[derive(Debug, Clone)]
pub struct RootSet {
    anchors: Vec<TrustAnchor<'static>>,
    /// First and last moment of each anchor: an anchor itself has none, so an expired CA would be believed for ever.
    validity: Vec<(u64, u64)>,
    certificates: Vec<CertificateDer<'static>>,
    fingerprint: String,
}

impl RootSet {
    /// Reads a PEM text with one or more CA certificates. `what` names it in errors.
    ///
    /// # Errors
    /// When the text holds no certificate, or one that is not a CA.
    pub fn from_pem(what: &str, text: &[u8]) -> Result<Self, IdentityError> {
        Self::from_der(what, pem::certificates(what, text)?)
    }

    /// Reads a PEM file with one or more CA certificates.
    ///
    /// # Errors
    /// When it cannot be read, or as [`RootSet::from_pem`].
    pub fn read(path: &Path) -> Result<Self, IdentityError> {
        Self::from_pem(&name(path), &read(path, Access::Public)?)
    }

    /// Takes CA certificates as DER. `what` names them in errors.
    ///
    /// # Errors
    /// When there is none, or one is not a CA.
    pub fn from_der(what: &str, certificates: Vec<CertificateDer<'static>>) -> Result<Self, IdentityError> {
        let refuse = |index, problem| IdentityError::Root { what: what.to_owned(), index, problem };
        if certificates.is_empty() {
            return Err(refuse(0, "there is none".to_owned()));
        }
        let mut set = Self { anchors: vec![], validity: vec![], fingerprint: fingerprint(&certificates), certificates };
        for (index, der) in set.certificates.iter().enumerate() {
            let (anchor, validity) = root(der).map_err(|problem| refuse(index + 1, problem))?;
            set.anchors.push(anchor);
            set.validity.push(validity);
        }
        Ok(set)
    }

    /// SHA-256 over all certificates, hex: the "trust roots" of a connection pool's key.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The certificates as PEM. Public material.
    #[must_use]
    pub fn to_pem(&self) -> String {
        self.certificates.iter().map(|der| pem::encode("CERTIFICATE", der).to_string()).collect()
    }

    /// The anchors whose time includes `now`.
    #[must_use]
    pub fn anchors_valid_at(&self, now: UnixTime) -> Vec<TrustAnchor<'static>> {
        let valid = self.anchors.iter().zip(&self.validity).filter(|(_, time)| contains(**time, now));
        valid.map(|(anchor, _)| anchor.clone()).collect()
    }

    /// When other anchors will be valid than at `now`; never, when nothing begins or ends after it.
    #[must_use]
    pub fn next_change(&self, now: UnixTime) -> Option<UnixTime> {
        let changes = self.validity.iter().flat_map(|(first, last)| [*first, last.saturating_add(1)]);
        let next = changes.filter(|at| *at > now.as_secs()).min()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(next)))
    }

    pub(super) fn anchors(&self) -> &[TrustAnchor<'static>] {
        &self.anchors
    }

    /// Refuses a path that ends in a root whose time is over. A renewed root has the same name and key, so any valid one counts.
    pub(super) fn check_validity(&self, anchor: &TrustAnchor<'_>, now: UnixTime) -> Result<(), webpki::Error> {
        let mut not_after = 0;
        for (known, time) in self.anchors.iter().zip(&self.validity) {
            if same_key(known, anchor) {
                if contains(*time, now) {
                    return Ok(());
                }
                not_after = not_after.max(time.1);
            }
        }
        let not_after = UnixTime::since_unix_epoch(Duration::from_secs(not_after));
        Err(webpki::Error::CertExpired { time: now, not_after })
    }
}

/// Everything a peer can be verified with. Immutable: a change makes a new value.
#[derive(Debug, Clone)]
pub struct TrustBundles {
    trust_domain: TrustDomain,
    own: Arc<RootSet>,
    federated: BTreeMap<String, Federated>,
    external: BTreeMap<String, Arc<RootSet>>,
    /// External CAs whose certificates may name their holder otherwise than by a SPIFFE ID.
    names_people: BTreeSet<String>,
    crls: Arc<Crls>,
}

/// Another trust domain whose bundle we have.
#[derive(Debug, Clone)]
pub struct Federated {
    /// What rules call it: the name of an external CA.
    pub name: String,
    /// Its roots, the only ones that count for its IDs.
    pub roots: Arc<RootSet>,
}

impl TrustBundles {
    /// The own trust domain alone.
    #[must_use]
    pub fn new(trust_domain: TrustDomain, own: Arc<RootSet>) -> Self {
        Self {
            trust_domain,
            own,
            federated: BTreeMap::new(),
            external: BTreeMap::new(),
            names_people: BTreeSet::new(),
            crls: Arc::default(),
        }
    }

    /// The same own trust domain with exactly these external CAs, by the name that rules use.
    ///
    /// # Errors
    /// When two of them share a CA, so that the name of a peer's CA would depend on their order.
    pub fn with_external(&self, external: BTreeMap<String, Arc<RootSet>>) -> Result<Self, IdentityError> {
        refuse_shared(&external)?;
        Ok(Self { external, ..self.clone() })
    }

    /// The same with exactly these other trust domains, by their names.
    #[must_use]
    pub fn with_federated(&self, federated: BTreeMap<String, Federated>) -> Self {
        Self { federated, ..self.clone() }
    }

    /// The same, where these external CAs may name their peers by DNS and common names.
    #[must_use]
    pub fn with_names_of(&self, names_people: BTreeSet<String>) -> Self {
        Self { names_people, ..self.clone() }
    }

    /// The same with these revocation lists.
    #[must_use]
    pub fn with_crls(&self, crls: Arc<Crls>) -> Self {
        Self { crls, ..self.clone() }
    }

    /// Our own trust domain.
    #[must_use]
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// Its roots.
    #[must_use]
    pub fn own(&self) -> &RootSet {
        &self.own
    }

    /// The bundle of another trust domain.
    #[must_use]
    pub fn federated(&self, trust_domain: &str) -> Option<&Federated> {
        self.federated.get(trust_domain)
    }

    /// Whether rules look at other names than SPIFFE IDs in certificates of the external CA `ca`.
    #[must_use]
    pub fn names_people(&self, ca: &str) -> bool {
        self.names_people.contains(ca)
    }

    /// The revocation lists.
    #[must_use]
    pub fn crls(&self) -> &Crls {
        &self.crls
    }

    /// Whether both believe the same.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        let domains = |bundles: &Self| -> Vec<_> {
            let entry = |(domain, federated): (&String, &Federated)| {
                (domain.clone(), federated.name.clone(), federated.roots.fingerprint().to_owned())
            };
            bundles.federated.iter().map(entry).collect()
        };
        let external = |bundles: &Self| -> Vec<_> {
            bundles.external.iter().map(|(name, roots)| (name.clone(), roots.fingerprint().to_owned())).collect()
        };
        self.trust_domain == other.trust_domain
            && self.own.fingerprint() == other.own.fingerprint()
            && self.names_people == other.names_people
            && domains(self) == domains(other)
            && external(self) == external(other)
            && self.crls.same_as(&other.crls)
    }

    /// The external CAs by name, in the order of their names.
    pub fn external(&self) -> impl Iterator<Item = (&str, &RootSet)> {
        self.external.iter().map(|(name, roots)| (name.as_str(), roots.as_ref()))
    }
}

fn root(der: &CertificateDer<'static>) -> Result<(TrustAnchor<'static>, (u64, u64)), String> {
    let certificate = parse_certificate(der).map_err(|error| error.to_string())?;
    let constraints = certificate.basic_constraints().map_err(|error| error.to_string())?;
    if !constraints.is_some_and(|found| found.value.ca) {
        return Err("it is not a CA (BasicConstraints CA:TRUE is missing)".to_owned());
    }
    let usage = certificate.key_usage().map_err(|error| error.to_string())?;
    if usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
        return Err("its keyUsage does not allow it to sign certificates".to_owned());
    }
    let anchor = anchor_from_trusted_cert(der).map_err(|error| error.to_string())?.to_owned();
    let validity = certificate.validity();
    Ok((anchor, (seconds(system_time(validity.not_before)), seconds(system_time(validity.not_after)))))
}

fn refuse_shared(external: &BTreeMap<String, Arc<RootSet>>) -> Result<(), IdentityError> {
    for (first, roots) in external {
        for (second, others) in external.range::<String, _>(first..).skip(1) {
            if roots.anchors.iter().any(|a| others.anchors.iter().any(|b| same_key(a, b))) {
                return Err(IdentityError::AmbiguousCa { first: first.clone(), second: second.clone() });
            }
        }
    }
    Ok(())
}

fn same_key(a: &TrustAnchor<'_>, b: &TrustAnchor<'_>) -> bool {
    a.subject == b.subject && a.subject_public_key_info == b.subject_public_key_info
}

fn contains((first, last): (u64, u64), now: UnixTime) -> bool {
    (first..=last).contains(&now.as_secs())
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn fingerprint(certificates: &[CertificateDer<'_>]) -> String {
    let mut hash = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
    for der in certificates {
        hash.update(&(der.len() as u64).to_be_bytes());
        hash.update(der);
    }
    hex::encode(hash.finish())
}
