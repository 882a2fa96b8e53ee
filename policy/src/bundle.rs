//! Signed OPA bundles: a gzip tar with `.manifest`, `data.json`, Rego and `.signatures.json`.
//!
//! ```text
//!   bytes --archive--> entries --token--> signed file list --digest--> same bytes --manifest--> roots --> VerifiedBundle
//! ```
//! Stricter than OPA where a fleet needs it: always signed, asymmetric keys and SHA-2 only, no delta bundles, no
//! duplicate names or members, no dot segments, scope bound to the node, expiry checked, rollback refused.

mod archive;
pub mod canonical;
mod error;
mod inspect;
mod keys;
mod layout;
mod manifest;
mod modules;
mod shape;
mod sign;
mod token;
mod tree;
mod verify;

pub use error::BundleError;
pub use inspect::{Inspection, dangerous_unverified, inspect};
pub use keys::{KeyError, KeyPair, SigningKey, VerifyKeys};
pub use manifest::{Manifest, WasmModule};
pub use sign::{Claims, SignError, build};
pub(crate) use token::token_of;
pub use verify::{VerifiedBundle, VerifyOptions, verify};

/// Largest compressed bundle, in bytes.
pub const MAX_COMPRESSED: usize = 16 * 1024 * 1024;
/// Largest bundle once unpacked, in bytes: a gzip bomb stops here.
pub const MAX_UNPACKED: usize = 64 * 1024 * 1024;
/// Most entries of a bundle.
pub const MAX_ENTRIES: usize = 4096;

#[cfg(test)]
mod tests;
