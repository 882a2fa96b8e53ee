//! Chooses the identity source and keeps the trust roots at what the active policy says.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nova_policy::engine::Policy;
use rustls_pki_types::CertificateDer;

use crate::bundles::source::{self as files, Fingerprint};
use crate::config::{Config, IdentityConfig};
use crate::control::Control;
use crate::identity::{DevCa, DevSource, FilesSource, IdentityError, IdentitySource, RootSet, TrustDomain};
use crate::state::policy::PolicyCell;
use crate::tls::TrustCell;

use super::AppError;

/// Opens the configured source.
pub(super) fn open(config: &Config) -> Result<Arc<dyn IdentitySource>, AppError> {
    match &config.identity {
        IdentityConfig::Dev { ca_fd, bundle_out } => {
            let ca = match ca_fd {
                Some(fd) => {
                    let fd = crate::sys::take_inherited_fd(*fd)
                        .map_err(|error| AppError::System("[identity] ca_fd names no inherited descriptor", error))?;
                    DevCa::from_fd(fd)?
                }
                None => DevCa::generate()?,
            };
            let source = DevSource::new(config.node.mode, ca)?;
            if let Some(path) = bundle_out {
                std::fs::write(path, source.ca_certificate_pem())
                    .map_err(|error| AppError::System("[identity] bundle_out cannot be written", error))?;
            }
            Ok(Arc::new(source))
        }
        IdentityConfig::Files { dir, trust_domain } => {
            Ok(Arc::new(FilesSource::open(dir, TrustDomain::new(trust_domain)?)?))
        }
    }
}

/// The roots before any policy is active: our own.
pub(super) fn trust_cell(source: &dyn IdentitySource) -> TrustCell {
    TrustCell::from(source.trust_bundles())
}

/// What to do when a policy activates: its external CAs become roots, each under its name.
pub(super) fn trust_external_cas(
    source: Arc<dyn IdentitySource>,
    trust: Arc<TrustCell>,
) -> impl Fn(&Policy) + Send + Sync {
    move |policy| match external_roots(policy).and_then(|cas| source.trust_bundles().with_external(cas)) {
        Ok(bundles) => trust.store(Arc::new(bundles)),
        // The old roots would trust what this policy may have taken away.
        Err(error) => {
            tracing::error!(%error, "the policy's external CAs cannot be used: no external caller is trusted");
            trust.store(source.trust_bundles());
        }
    }
}

/// How often the certificate files are looked at.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// Takes new certificates into force when the files change: SVIDs of every endpoint, and the roots.
pub(super) async fn watch_files(
    dir: PathBuf,
    (source, policy, trust): (Arc<dyn IdentitySource>, Arc<PolicyCell>, Arc<TrustCell>),
    control: Control,
) {
    let retrust = trust_external_cas(Arc::clone(&source), trust);
    let mut seen = versions(&dir);
    loop {
        tokio::time::sleep(POLL_EVERY).await;
        let now = versions(&dir);
        if now == seen {
            continue;
        }
        seen = now;
        match source.reload() {
            Ok(()) => {
                if let Some(policy) = policy.load() {
                    retrust(&policy);
                }
                control.reissue_svids().await;
                tracing::info!(dir = %dir.display(), "certificates reloaded");
            }
            Err(error) => tracing::error!(%error, "certificates refused, the old ones stay"),
        }
    }
}

/// Name and version of every file: an editor writes in place, a tool renames or changes the mode, Kubernetes swaps a link.
fn versions(dir: &Path) -> Vec<(OsString, Option<Fingerprint>)> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut all: Vec<_> =
        entries.flatten().map(|entry| (entry.file_name(), files::fingerprint(&entry.path()))).collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

fn external_roots(policy: &Policy) -> Result<BTreeMap<String, Arc<RootSet>>, IdentityError> {
    policy
        .external_cas()
        .iter()
        .map(|(name, certificates)| {
            let certificates = certificates.iter().cloned().map(CertificateDer::from).collect();
            Ok((name.clone(), Arc::new(RootSet::from_der(name, certificates)?)))
        })
        .collect()
}
