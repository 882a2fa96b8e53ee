//! Where an issuer's keys come from.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::keys::{KeyError, KeySet, Purpose};
use crate::bundles::source as files;
use crate::config::KeySource;
use crate::fetch::Service;
use crate::net::guard::AddressGuard;

/// Where keys come from.
pub(super) enum Source {
    File { path: PathBuf, purpose: Purpose },
    Url { service: Service, refresh: Duration },
}

impl Source {
    pub(super) fn new(keys: &KeySource, refresh: Duration, guard: &AddressGuard) -> Self {
        match keys {
            KeySource::File(path) => Self::File { path: path.clone(), purpose: Purpose::Signatures },
            KeySource::Url { url, ca } => {
                let service = Service { url: url.clone(), ca: ca.clone(), guard: Some(guard.clone()) };
                Self::Url { service, refresh }
            }
        }
    }

    pub(super) fn svids(bundle: &Path) -> Self {
        Self::File { path: bundle.to_owned(), purpose: Purpose::Svids }
    }

    pub(super) fn is_remote(&self) -> bool {
        matches!(self, Self::Url { .. })
    }

    /// The keys of a file; `None` when they are elsewhere.
    pub(super) fn read_file(&self) -> Option<Result<KeySet, KeyError>> {
        match self {
            Self::Url { .. } => None,
            Self::File { path, purpose } => Some(read(path, *purpose)),
        }
    }
}

pub(super) fn read(path: &Path, purpose: Purpose) -> Result<KeySet, KeyError> {
    let (bytes, _) = files::read(path)?;
    KeySet::parse_for(&path.display().to_string(), &bytes, purpose)
}
