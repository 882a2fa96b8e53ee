//! Keeps the trust in force at what files and the active policy say: our own roots and those of federated domains, revocation
//! lists, and the policy's external CAs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use nova_policy::data::ExternalPeers;
use nova_policy::engine::Policy;
use rustls_pki_types::CertificateDer;

use crate::bundles::source::{self as files, Fingerprint};
use crate::config::TrustConfig;
use crate::control::Control;
use crate::identity::{Crls, Federated, IdentityError, IdentitySource, RootSet, TrustBundles, crl_files};
use crate::state::policy::PolicyCell;
use crate::tls::TrustCell;

/// How often the files are looked at.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// What the trust is made from, and the cell that it is put into.
pub(super) struct Trust {
    source: Arc<dyn IdentitySource>,
    config: TrustConfig,
    cell: Arc<TrustCell>,
    files: Mutex<FromFiles>,
}

/// What is read beside the identity source's own files. Each part keeps its old value while its file cannot be used.
#[derive(Default)]
struct FromFiles {
    federated: BTreeMap<String, Federated>,
    crls: Arc<Crls>,
    problems: Vec<String>,
}

impl Trust {
    /// Reads everything once.
    pub(super) fn open(source: Arc<dyn IdentitySource>, config: TrustConfig) -> Result<Self, IdentityError> {
        let mut files = FromFiles::default();
        if let Some(error) = files.read(&config).into_iter().next() {
            return Err(error);
        }
        let cell = Arc::new(TrustCell::from(source.trust_bundles()));
        let trust = Self { source, config, cell, files: Mutex::new(files) };
        trust.follow(None);
        Ok(trust)
    }

    pub(super) fn cell(&self) -> &Arc<TrustCell> {
        &self.cell
    }

    /// Puts into force what is known now, with the external CAs of `policy`.
    pub(super) fn follow(&self, policy: Option<&Policy>) {
        let base = {
            let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
            let federated = files.federated.clone();
            self.source.trust_bundles().with_federated(federated).with_crls(Arc::clone(&files.crls))
        };
        let bundles = policy.map_or(Ok(base.clone()), |policy| with_policy(&base, policy));
        self.cell.store(Arc::new(bundles.unwrap_or_else(|error| {
            // The old roots would trust what this policy may have taken away.
            tracing::error!(%error, "the policy's external CAs cannot be used: no external caller is trusted");
            base
        })));
    }

    /// What an operator should know.
    pub(super) fn warnings(&self, now: SystemTime) -> Vec<String> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.problems.iter().cloned().chain(files.crls.warnings(now)).collect()
    }

    fn reread(&self) {
        let errors = self.files.lock().unwrap_or_else(PoisonError::into_inner).read(&self.config);
        for error in errors {
            tracing::error!(%error, "trust file refused, what was read before stays");
        }
    }

    /// The files that are looked at beside the identity source's own.
    fn paths(&self) -> Vec<PathBuf> {
        let lists = self.config.crls.iter().flat_map(|path| crl_files(path).unwrap_or_default());
        self.config.federated.iter().map(|domain| domain.bundle.clone()).chain(lists).collect()
    }
}

impl FromFiles {
    fn read(&mut self, config: &TrustConfig) -> Vec<IdentityError> {
        let mut errors = Vec::new();
        for domain in &config.federated {
            match RootSet::read(&domain.bundle) {
                Ok(roots) => {
                    let known = Federated { name: domain.name.clone(), roots: Arc::new(roots) };
                    self.federated.insert(domain.trust_domain.clone(), known);
                }
                Err(error) => errors.push(error),
            }
        }
        match Crls::read(&config.crls, config.crl_grace) {
            Ok(crls) => self.crls = Arc::new(crls),
            Err(error) => errors.push(error),
        }
        self.problems = errors.iter().map(|error| format!("what was read before stays in force: {error}")).collect();
        errors
    }
}

fn with_policy(base: &TrustBundles, policy: &Policy) -> Result<TrustBundles, IdentityError> {
    let roots = |(name, certificates): (&String, &Vec<Vec<u8>>)| {
        let certificates = certificates.iter().cloned().map(CertificateDer::from).collect();
        Ok((name.clone(), Arc::new(RootSet::from_der(name, certificates)?)))
    };
    let external = policy.external_cas().iter().map(roots).collect::<Result<_, IdentityError>>()?;
    Ok(base.with_external(external)?.with_names_of(names_people(policy)))
}

/// The external CAs of which rules name peers by DNS or common name.
fn names_people(policy: &Policy) -> BTreeSet<String> {
    let by_name = |peers: &ExternalPeers| !(peers.dns.is_empty() && peers.dns_suffix.is_empty() && peers.cn.is_empty());
    let ports = policy.data().ingress.values().flat_map(|ports| ports.values());
    let external = ports.flat_map(|port| &port.external).filter(|(_, peers)| by_name(peers));
    external.map(|(name, _)| name.clone()).collect()
}

/// Takes changed files into force, for ever: the source's folder, if it has one, and what `[identity]` names beside it.
pub(super) async fn watch(trust: Arc<Trust>, dir: Option<PathBuf>, policy: Arc<PolicyCell>, control: Control) {
    let mut seen = (versions(dir.as_deref()), beside(&trust));
    loop {
        tokio::time::sleep(POLL_EVERY).await;
        let now = (versions(dir.as_deref()), beside(&trust));
        if now == seen {
            continue;
        }
        let (own_changed, others_changed) = (now.0 != seen.0, now.1 != seen.1);
        seen = now;
        let reloaded = own_changed && reload(&trust);
        trust.reread();
        if reloaded || others_changed {
            trust.follow(policy.load().as_deref());
            tracing::info!("certificates reloaded");
        }
        if reloaded {
            control.reissue_svids().await;
        }
    }
}

fn reload(trust: &Trust) -> bool {
    let reloaded = trust.source.reload();
    if let Err(error) = &reloaded {
        tracing::error!(%error, "certificates refused, the old ones stay");
    }
    reloaded.is_ok()
}

type Versions<Name> = Vec<(Name, Option<Fingerprint>)>;

/// Name and version of every file: an editor writes in place, a tool renames or changes the mode, Kubernetes swaps a link.
fn versions(dir: Option<&Path>) -> Versions<OsString> {
    let Some(Ok(entries)) = dir.map(std::fs::read_dir) else { return Vec::new() };
    let mut all: Vec<_> =
        entries.flatten().map(|entry| (entry.file_name(), files::fingerprint(&entry.path()))).collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

fn beside(trust: &Trust) -> Versions<PathBuf> {
    trust.paths().into_iter().map(|path| (path.clone(), files::fingerprint(&path))).collect()
}
