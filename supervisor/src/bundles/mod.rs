//! Where the policy comes from: a signed bundle in a file, watched, or on a server, asked; the last good ones in a store.
//!
//! `feed` does the work, `verifier` is the only place that makes a policy out of bytes, `store` keeps the bytes on disk,
//! `source` reads files that others write, `http` asks a bundle server, `refusal` says why a bundle was not taken, `status` tells the operator.

mod feed;
mod http;
mod refusal;
pub(crate) mod source;
mod status;
mod store;
mod verifier;

pub use feed::{BundleFeed, OnActivate, Outcome};
pub use http::{FetchError, Timing};
pub use refusal::Refusal;
pub use source::{MAX_BYTES, ReadError};
pub use status::{FeedStatus, LastError};
pub use store::{BundleStore, KEPT, StoreError};
