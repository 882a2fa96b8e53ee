//! Follows files that somebody else writes: of certificates that ports name, of parent proxies, and of what signs the CAs of pods.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::bundles::source::{self as files, Fingerprint};
use crate::dial::Parents;
use crate::identity::PodCas;
use crate::tls::Certificates;

/// How often the files are looked at.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// Files that make up one thing.
pub(super) struct Followed {
    what: String,
    files: Vec<PathBuf>,
    seen: Vec<Option<Fingerprint>>,
    reload: Box<dyn Fn() -> Result<(), String> + Send>,
}

impl Followed {
    fn new<E: std::error::Error>(
        what: String,
        files: Vec<PathBuf>,
        reload: impl Fn() -> Result<(), E> + Send + 'static,
    ) -> Self {
        let seen = versions(&files);
        Self { what, files, seen, reload: Box::new(move || reload().map_err(|error| explained(&error))) }
    }

    /// Each certificate that ports may name.
    pub(super) fn certificates(certificates: &Certificates) -> impl Iterator<Item = Self> {
        certificates.iter().map(|(name, cell)| {
            let (files, cell) = (cell.files().map(Clone::clone).into(), Arc::clone(cell));
            Self::new(format!("certificate {name}"), files, move || cell.reload())
        })
    }

    /// Each parent proxy.
    pub(super) fn proxies(parents: &Parents) -> impl Iterator<Item = Self> {
        parents.iter().map(|parent| {
            let parent = Arc::clone(parent);
            Self::new(format!("proxy {}", parent.name()), parent.files().cloned().collect(), move || parent.reload())
        })
    }

    /// What signs the CAs of pods.
    pub(super) fn interception(pod_cas: &Arc<PodCas>) -> Self {
        let (files, pod_cas) = (pod_cas.files().cloned().collect(), Arc::clone(pod_cas));
        Self::new("interception".to_owned(), files, move || pod_cas.reload())
    }

    fn look(&mut self) {
        // Looked at before reading: what is written meanwhile is another version, and read again.
        let now = versions(&self.files);
        if now == self.seen {
            return;
        }
        self.seen = now;
        match (self.reload)() {
            Ok(()) => tracing::info!(what = self.what, "files reloaded"),
            Err(error) => tracing::error!(what = self.what, %error, "files refused, what was read before stays"),
        }
    }
}

/// Takes changed files into force, for ever. What cannot be used, or is half written, changes nothing.
pub(super) async fn follow(mut all: Vec<Followed>) {
    loop {
        tokio::time::sleep(POLL_EVERY).await;
        all.iter_mut().for_each(Followed::look);
    }
}

fn versions(files: &[PathBuf]) -> Vec<Option<Fingerprint>> {
    files.iter().map(|path| files::fingerprint(path)).collect()
}

fn explained(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
