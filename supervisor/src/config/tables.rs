//! What the configuration lists: tables that may be there several times, each with a name.

use std::collections::BTreeSet;
use std::time::Duration;

use super::document::{Document, Section};
use super::value;
use super::{CertificateConfig, FederatedConfig, KeySource, Reach, TokenConfig, TrustConfig};

/// Clocks of providers and ours differ by less.
const LEEWAY: Duration = Duration::from_secs(30);
/// More would keep tokens alive that their issuer ended.
const MAX_LEEWAY: Duration = Duration::from_mins(5);
/// Providers publish a key at least this long before they sign with it.
const REFRESH: Duration = Duration::from_mins(5);
/// As long as an expired bundle of rules decides.
const MAX_AGE: Duration = Duration::from_hours(24);
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

pub(super) fn tokens(document: &Document<'_>, dev: bool) -> Vec<TokenConfig> {
    let mut issuers = BTreeSet::new();
    let mut all = Vec::new();
    for mut section in document.tables("tokens") {
        let issuer = section.required("issuer", value::plain_text, "write the `iss` of its tokens as it is");
        let remedy = "write the `aud` that its tokens for this node must have: [\"orders\"]";
        if !section.has("audiences") {
            section.required("audiences", value::plain_text, remedy);
        }
        let audiences = section.list("audiences", value::plain_text);
        if section.has("audiences") && audiences.is_empty() {
            section.refuse("audiences", "is empty, so no token would be for us", remedy);
        }
        let keys = key_source(&mut section, dev);
        let remedy = "write what it signs with: [\"ES256\"] or [\"RS256\"]";
        if !section.has("algorithms") {
            section.required("algorithms", value::algorithm, remedy);
        }
        let algorithms = section.list("algorithms", value::algorithm);
        let leeway = section.optional("leeway", value::duration).unwrap_or(LEEWAY);
        if leeway > MAX_LEEWAY {
            section.refuse("leeway", "is longer than 5 minutes", "write \"30s\", and set the clocks");
        }
        let refresh = section.optional("refresh", value::duration).unwrap_or(REFRESH);
        let max_age = section.optional("max_age", value::duration).unwrap_or(MAX_AGE);
        if let Some(issuer) = issuer.as_ref().filter(|issuer| !issuers.insert((*issuer).clone())) {
            section.refuse("issuer", format!("{issuer:?} is there twice"), "write its keys and audiences in one entry");
        }
        section.finish();
        if let (Some(issuer), Some(keys), false) = (issuer, keys, algorithms.is_empty()) {
            all.push(TokenConfig { issuer, audiences, keys, algorithms, leeway, refresh, max_age });
        }
    }
    all
}

fn key_source(section: &mut Section<'_>, dev: bool) -> Option<KeySource> {
    if !section.has("jwks_url") {
        section.only_with(&["ca", "refresh", "max_age"], "jwks_url");
        let file = section.required("jwks", value::path, "write the path of its keys, or add jwks_url");
        section.ignore(&["jwks_url"]);
        return file.map(|path| KeySource::File(section.path(path)));
    }
    if section.has("jwks") {
        section.refuse("jwks", "stands beside jwks_url", "keep exactly one of jwks and jwks_url");
        section.ignore(&["jwks"]);
    }
    let url = section.optional("jwks_url", value::bundle_url);
    let ca = section.optional("ca", value::path).map(|path| section.path(path));
    if let Some(url) = &url {
        if matches!(url.reach, Reach::Plain { .. }) && !dev {
            section.refuse("jwks_url", "is plaintext", "write https://host/path or unix:///run/x.sock:/path");
        }
        if ca.is_some() && !matches!(url.reach, Reach::Tls { .. }) {
            section.refuse("ca", "has no meaning without https://", "remove it, or write an https:// address");
        }
    }
    url.map(|url| KeySource::Url { url, ca })
}
