//! What the configuration lists: tables that may be there several times, each with a name.

use std::collections::BTreeSet;
use std::time::Duration;

use super::document::{Document, Section};
use super::value;
use super::{CertificateConfig, FederatedConfig, TrustConfig};

/// As long as an expired bundle of rules decides.
const CRL_GRACE: Duration = Duration::from_hours(24);
/// A caller that holds a connection has this long to come back with a new certificate.
const PEER_GRACE: Duration = Duration::from_mins(1);

pub(super) fn certificates(document: &Document<'_>) -> Vec<CertificateConfig> {
    let mut names = BTreeSet::new();
    let mut all = Vec::new();
    for mut section in document.tables("certificates") {
        let name = section.required("name", value::name, "write the name that ports use in `certificate`");
        let mut file = |key, remedy| section.required(key, value::path, remedy).map(|path| section.path(path));
        let chain = file("chain", "write the path of the certificates, the server's own first, PEM");
        let key = file("key", "write the path of its key, PEM, mode 0400 or 0600");
        if let Some(name) = name.as_ref().filter(|name| !names.insert((*name).clone())) {
            section.refuse("name", format!("{name:?} is there twice"), "rename one");
        }
        section.finish();
        if let (Some(name), Some(chain), Some(key)) = (name, chain, key) {
            all.push(CertificateConfig { name, chain, key });
        }
    }
    all
}

/// What `[identity]` says of peers, whatever the source of our own identities.
pub(super) fn trust(section: &mut Section<'_>, own: &str) -> TrustConfig {
    let mut domains = BTreeSet::from([own.to_owned()]);
    let mut names = BTreeSet::new();
    let mut federated = Vec::new();
    for entry in section.list("federated", value::federated) {
        if !domains.insert(entry.trust_domain.clone()) {
            let problem = format!("{:?} is our own trust domain, or there twice", entry.trust_domain);
            section.refuse("federated", problem, "name every other trust domain once");
        }
        if !names.insert(entry.name.clone()) {
            section.refuse("federated", format!("the name {:?} is there twice", entry.name), "rename one");
        }
        federated.push(FederatedConfig { bundle: section.path(entry.bundle), ..entry });
    }
    let crls = section.list("crls", value::path).into_iter().map(|path| section.path(path)).collect();
    let crl_grace = section.optional("crl_grace", value::duration).unwrap_or(CRL_GRACE);
    let peer_grace = section.optional("peer_grace", value::duration).unwrap_or(PEER_GRACE);
    TrustConfig { federated, crls, crl_grace, peer_grace }
}
