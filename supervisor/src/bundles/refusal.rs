//! Why a bundle was not taken.

use nova_policy::bundle::{BundleError, KeyError};
use nova_policy::engine::LoadError;
use thiserror::Error;

use super::http::FetchError;
use super::source::ReadError;
use super::store::StoreError;

/// Why a bundle was not taken. The text says what to do; [`Refusal::reason`] is the closed set for metrics and status.
#[derive(Debug, Error)]
pub enum Refusal {
    /// The bundle's file cannot be read.
    #[error(transparent)]
    Read(ReadError),
    /// The server has none for us.
    #[error(transparent)]
    Fetch(FetchError),
    /// The verifier keys cannot be read.
    #[error("verifier keys: {0}")]
    Keys(ReadError),
    /// The verifier keys are not of the form we read.
    #[error("verifier keys: {0}")]
    KeyForm(KeyError),
    /// It does not verify.
    #[error("{0}; publish a bundle that nova-policy made and signed for this node")]
    Bundle(BundleError),
    /// Its manifest has no serial.
    #[error("the manifest has no metadata.serial; build it with nova-policy")]
    NoSerial,
    /// It is older than what was active.
    #[error(
        "serial {offered} is too old, {wanted} or more is needed; publish with a higher serial, also to go back to older rules"
    )]
    Serial {
        /// The bundle's.
        offered: u64,
        /// The least that would be accepted.
        wanted: u64,
    },
    /// A stored bundle is not the one that its name says.
    #[error("the stored bundle {named} has serial {found} inside; remove it from the store")]
    Misnamed {
        /// In the file's name.
        named: u64,
        /// In its manifest.
        found: u64,
    },
    /// The engine cannot use it, or it decides its own test vectors wrongly.
    #[error("{0}; build it with the nova-policy of this release")]
    Load(LoadError),
    /// It cannot be kept.
    #[error("{0}: {source}", source = cause(.0))]
    Store(StoreError),
}

impl Refusal {
    /// Closed set.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Read(ReadError::Missing(_)) => "bundle_missing",
            Self::Read(ReadError::TooLarge(_)) => "too_large",
            Self::Read(_) => "bundle_unreadable",
            Self::Fetch(FetchError::Ca(_)) => "server_ca",
            Self::Fetch(FetchError::Unreachable { .. }) => "server_unreachable",
            Self::Fetch(FetchError::TimedOut { .. }) => "server_timeout",
            Self::Fetch(FetchError::Redirect { .. }) => "server_redirect",
            Self::Fetch(FetchError::Status { .. }) => "server_status",
            Self::Fetch(FetchError::TooLarge { .. }) => "too_large",
            Self::Keys(_) | Self::KeyForm(_) => "verification_keys",
            Self::Bundle(error) => error.reason(),
            Self::NoSerial => "no_serial",
            Self::Serial { .. } => "older_serial",
            Self::Misnamed { .. } => "misnamed",
            Self::Load(error) => error.reason(),
            Self::Store(_) => "store_failed",
        }
    }

    /// Whether it may go away although neither file changes: the clock moves, disks are emptied, writers finish.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Store(_) | Self::Read(ReadError::Changing(_) | ReadError::Io { .. }) => true,
            Self::Bundle(error) => matches!(error, BundleError::Expired(_) | BundleError::NotYetValid(_)),
            _ => false,
        }
    }
}

fn cause(error: &StoreError) -> String {
    std::error::Error::source(error).map(ToString::to_string).unwrap_or_default()
}
