//! The active policy: one swap, one signal.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use nova_policy::engine::Policy;
use tokio::sync::watch;

/// The bundle that decides now. Empty means: deny everything.
pub struct PolicyCell {
    live: ArcSwapOption<Policy>,
    changed: watch::Sender<u64>,
}

impl Default for PolicyCell {
    fn default() -> Self {
        Self { live: ArcSwapOption::empty(), changed: watch::Sender::new(0) }
    }
}

impl PolicyCell {
    /// The policy as of now. One load serves the verdict, the audit line and the dial of one decision.
    #[must_use]
    pub fn load(&self) -> Option<Arc<Policy>> {
        self.live.load_full()
    }

    /// As [`PolicyCell::load`], without counting in the count that all threads share: for a look on a request's path.
    #[must_use]
    pub fn peek(&self) -> Guard<Option<Arc<Policy>>> {
        self.live.load()
    }

    /// Makes `policy` the one that decides, and wakes every live connection to be decided again.
    pub fn activate(&self, policy: Option<Arc<Policy>>) {
        self.live.store(policy);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Changes whenever a policy is activated.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use std::sync::Arc;

    use nova_policy::bundle::{self, KeyPair, SigningKey, VerifyKeys, VerifyOptions};
    use nova_policy::data::{NodeData, SCHEMA};
    use nova_policy::engine::Policy;
    use nova_policy::publish::{Publish, bundle_of};

    const NOW: u64 = 1_800_000_000;

    /// A policy with these rules, signed and verified as any other.
    pub(crate) fn policy(serial: u64, data: NodeData) -> Arc<Policy> {
        let pair = KeyPair::es256().expect("a key");
        let key = SigningKey::from_pem(pair.private_pem.as_bytes()).expect("a signing key");
        let data = NodeData { schema: SCHEMA, node: "n".to_owned(), trust_domain: "t".to_owned(), ..data };
        let how = Publish { key: &key, key_id: "k", serial, now: NOW, expires_in: 3600 };
        let bytes = bundle_of(&data, &how).expect("a bundle");
        let mut keys = VerifyKeys::default();
        keys.insert("k", pair.algorithm, &pair.public_pem);
        let options =
            VerifyOptions { keys: &keys, key_id: None, scope: "n", now: NOW, stale_grace: 0, newer_than: None };
        let bundle = bundle::verify(&bytes, &options).expect("it verifies");
        Arc::new(Policy::load(bundle).expect("it loads"))
    }
}
