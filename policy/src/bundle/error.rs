//! Why a bundle is refused.

use thiserror::Error;

/// Why a bundle is refused. The code of [`BundleError::reason`] is stable; the text is for people.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BundleError {
    /// Over one of the size limits.
    #[error("the bundle is over the limit of {0}")]
    TooLarge(&'static str),
    /// Not a complete gzip tar.
    #[error("the bundle cannot be unpacked: {0}")]
    Archive(String),
    /// An entry that is not a plain file, or whose name is not a plain relative path.
    #[error("entry {0:?}: {1}")]
    Entry(String, &'static str),
    /// Two entries of one name.
    #[error("entry {0:?} is there twice")]
    DuplicateEntry(String),
    /// A delta bundle: its files are not covered by signatures.
    #[error("delta bundles are refused: {0:?}")]
    Delta(String),
    /// No signature file.
    #[error("the bundle is not signed: no .signatures.json")]
    Unsigned,
    /// The signature file is not what it should be.
    #[error(".signatures.json: {0}")]
    SignaturesFile(String),
    /// The token is not a JWT we read.
    #[error("the signature token cannot be read: {0}")]
    Token(String),
    /// The token names a key that is not configured.
    #[error("no verification key with id {0:?}")]
    UnknownKey(String),
    /// The key is not of a kind we accept.
    #[error("key {0:?} has algorithm {1:?}: use ES256, EdDSA or RS256")]
    KeyAlgorithm(String, String),
    /// The key text cannot be read.
    #[error("key {0:?} cannot be read: {1}")]
    Key(String, String),
    /// The token was made with another algorithm than the key's.
    #[error("the token says another algorithm than its key has")]
    AlgorithmMismatch,
    /// The signature does not verify.
    #[error("the signature does not verify with key {0:?}")]
    Signature(String),
    /// Signed for another node.
    #[error("signed for scope {got:?}, this is {want:?}")]
    Scope {
        /// The scope of this node.
        want: String,
        /// The scope in the token.
        got: String,
    },
    /// Past its expiry.
    #[error("expired at {0} (Unix seconds)")]
    Expired(u64),
    /// Signed for a time that has not come.
    #[error("not valid before {0} (Unix seconds): check the clocks")]
    NotYetValid(u64),
    /// A file that the signature does not list.
    #[error("file {0:?} is not covered by the signature")]
    Unlisted(String),
    /// A file that the signature lists and the bundle lacks.
    #[error("file {0:?} is signed but not in the bundle")]
    Missing(String),
    /// A hash algorithm that is not SHA-256, SHA-384 or SHA-512.
    #[error("file {0:?} is hashed with {1:?}: use SHA-256, SHA-384 or SHA-512")]
    HashAlgorithm(String, String),
    /// A file is not what was signed.
    #[error("file {0:?} is not what was signed")]
    Digest(String),
    /// A file that must be one JSON document is not.
    #[error("file {0:?} is not one strict JSON document: {1}")]
    Json(String, String),
    /// The manifest is missing or wrong.
    #[error(".manifest: {0}")]
    Manifest(String),
    /// Another Rego version than 1.
    #[error("Rego version {0} is refused: use 1")]
    RegoVersion(i64),
    /// A package or data path that the manifest's roots do not cover.
    #[error("{0:?} lies outside the roots of the manifest")]
    OutsideRoots(String),
    /// Two data files define one path.
    #[error("data path {0:?} is defined twice")]
    DataConflict(String),
    /// A Rego module does not parse.
    #[error("module {0:?} does not parse: {1}")]
    Module(String, String),
    /// Data in a form we do not read.
    #[error("file {0:?} is refused: data must be in data.json")]
    UnsupportedFile(String),
    /// Not newer than the bundle that is active.
    #[error("serial {got:?} is not newer than {active}")]
    OlderSerial {
        /// The serial of the bundle, if it has one.
        got: Option<u64>,
        /// The serial that is active.
        active: u64,
    },
}

impl BundleError {
    /// The code for logs, metrics and the command line's JSON.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::TooLarge(_) => "too_large",
            Self::Archive(_) => "bad_archive",
            Self::Entry(..) => "bad_entry",
            Self::DuplicateEntry(_) => "duplicate_entry",
            Self::Delta(_) => "delta_bundle",
            Self::Unsigned => "unsigned",
            Self::SignaturesFile(_) => "bad_signatures_file",
            Self::Token(_) => "bad_token",
            Self::UnknownKey(_) => "unknown_key",
            Self::KeyAlgorithm(..) => "key_algorithm",
            Self::Key(..) => "bad_key",
            Self::AlgorithmMismatch => "algorithm_mismatch",
            Self::Signature(_) => "bad_signature",
            Self::Scope { .. } => "scope_mismatch",
            Self::Expired(_) => "expired",
            Self::NotYetValid(_) => "not_yet_valid",
            Self::Unlisted(_) => "unlisted_file",
            Self::Missing(_) => "missing_file",
            Self::HashAlgorithm(..) => "hash_algorithm",
            Self::Digest(_) => "digest_mismatch",
            Self::Json(..) => "bad_json",
            Self::Manifest(_) => "bad_manifest",
            Self::RegoVersion(_) => "rego_version",
            Self::OutsideRoots(_) => "outside_roots",
            Self::DataConflict(_) => "data_conflict",
            Self::Module(..) => "bad_module",
            Self::UnsupportedFile(_) => "unsupported_file",
            Self::OlderSerial { .. } => "older_serial",
        }
    }
}
