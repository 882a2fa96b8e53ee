//! When an issuer's keys are looked at.
//!
//! ```text
//! file   looked at every second, read when it changed
//! URL    every `refresh`; after a failure sooner; when a token names an unknown key once per `shortest`, however many do
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};

use super::issuer::Issuer;
use super::keys::{KeySet, Purpose};
use super::source::{Source, read};
use crate::bundles::source as files;
use crate::fetch::{Bounds, Service};

/// A set of keys has a few KiB.
const MAX_BYTES: u64 = 256 * 1024;

/// When keys behind a URL are looked at.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Between two looks in any case: many tokens with unknown keys cause one of them.
    pub shortest: Duration,
    /// After the first failure; it doubles with each further one.
    pub retry: Duration,
    /// For connecting, and for the answer.
    pub patience: Duration,
    /// Between two looks at a file.
    pub poll: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            shortest: Duration::from_secs(10),
            retry: Duration::from_secs(10),
            patience: Duration::from_secs(10),
            poll: Duration::from_secs(1),
        }
    }
}

impl Issuer {
    /// Keeps the keys fresh, for ever.
    pub(super) async fn follow(&self, timing: Timing) {
        match &self.source {
            Source::File { path, purpose } => self.follow_file(path, *purpose, timing).await,
            Source::Url { service, refresh } => self.follow_url(service, *refresh, timing).await,
        }
    }

    async fn follow_file(&self, path: &Path, purpose: Purpose, timing: Timing) {
        // What came between the first look and now is new as well.
        let mut seen = None;
        loop {
            tokio::time::sleep(timing.poll).await;
            let now = files::fingerprint(path);
            if now == seen {
                continue;
            }
            seen = now;
            self.settle(read(path, purpose).map_err(|error| error.to_string()));
        }
    }

    async fn follow_url(&self, service: &Service, refresh: Duration, timing: Timing) {
        let mut failures = 0u32;
        loop {
            let fetched = fetch(service, timing).await;
            failures = if fetched.is_ok() { 0 } else { failures.saturating_add(1) };
            self.settle(fetched);
            let back_off = timing.retry.saturating_mul(1 << failures.saturating_sub(1).min(10));
            let next = if failures == 0 { refresh } else { refresh.min(back_off) };
            tokio::time::sleep(timing.shortest).await;
            tokio::select! {
                () = tokio::time::sleep(next.saturating_sub(timing.shortest)) => {}
                () = self.wanted.notified() => {}
            }
        }
    }

    /// Takes new keys into force; what cannot be used leaves the old ones there.
    fn settle(&self, keys: Result<KeySet, String>) {
        match keys {
            Ok(keys) => self.take(keys),
            Err(problem) => {
                tracing::error!(issuer = %self.name, %problem, "keys of a token issuer refused");
                self.problem.store(Some(Arc::new(problem)));
            }
        }
    }
}

async fn fetch(service: &Service, timing: Timing) -> Result<KeySet, String> {
    let bounds = Bounds { connect: timing.patience, answer: timing.patience, bytes: MAX_BYTES };
    let shown = || format!("{}{}", service.shown(), service.url.path);
    let answer = service.get(HeaderMap::new(), bounds).await.map_err(|fault| format!("{}: {fault}", shown()))?;
    match answer.status {
        StatusCode::OK => KeySet::parse(&shown(), &answer.body).map_err(|error| error.to_string()),
        status if status.is_redirection() => {
            Err(format!("{} redirects ({status}); redirects are not followed: write the last address", shown()))
        }
        status => Err(format!("{} answered {status}", shown())),
    }
}
