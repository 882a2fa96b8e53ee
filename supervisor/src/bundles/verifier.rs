//! The only place that makes a policy out of bytes. Keys are read again for each bundle, so that a corrected or rotated
//! key file needs no restart.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nova_policy::bundle::{self, VerifiedBundle, VerifyKeys, VerifyOptions};
use nova_policy::engine::Policy;

use super::refusal::Refusal;
use super::source;

/// What a bundle is checked against.
pub(super) struct Verifier {
    keys: PathBuf,
    key_id: Option<String>,
    scope: String,
}

impl Verifier {
    pub(super) fn new(keys: PathBuf, key_id: Option<String>, scope: String) -> Self {
        Self { keys, key_id, scope }
    }

    /// Verifies a bundle that may be past its expiry by `grace`.
    pub(super) fn check(&self, bytes: &[u8], now: SystemTime, grace: Duration) -> Result<VerifiedBundle, Refusal> {
        let (keys, _) = source::read(&self.keys).map_err(Refusal::Keys)?;
        let keys = VerifyKeys::from_json(&String::from_utf8_lossy(&keys)).map_err(Refusal::KeyForm)?;
        let options = VerifyOptions {
            keys: &keys,
            key_id: self.key_id.as_deref(),
            scope: &self.scope,
            now: now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            stale_grace: grace.as_secs(),
            newer_than: None,
        };
        bundle::verify(bytes, &options).map_err(Refusal::Bundle)
    }
}

/// The serial of a bundle; a policy cannot be made without one.
pub(super) fn serial(bundle: &VerifiedBundle) -> Result<u64, Refusal> {
    bundle.manifest().serial().ok_or(Refusal::NoSerial)
}

/// Makes the policy and has it decide the vectors that came with it.
pub(super) fn load_tested(bundle: VerifiedBundle) -> Result<Policy, Refusal> {
    let policy = Policy::load(bundle).map_err(Refusal::Load)?;
    policy.self_test().map_err(Refusal::Load)?;
    // Every data-plane thread decides with a machine of its own. Made here, none is made while a request waits.
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    policy.warm(threads).map_err(Refusal::Load)?;
    Ok(policy)
}
