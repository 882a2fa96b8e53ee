//! The trust bundles in force: one swap, one signal, shared by all configurations of the node.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::identity::TrustBundles;

/// Whom we believe now.
pub struct TrustCell {
    current: ArcSwap<TrustBundles>,
    version: AtomicU64,
    changed: watch::Sender<u64>,
}

impl TrustCell {
    /// A cell that starts with `bundles`.
    #[must_use]
    pub fn from_pointee(bundles: TrustBundles) -> Self {
        Self::from(Arc::new(bundles))
    }

    /// The bundles as of now.
    #[must_use]
    pub fn load_full(&self) -> Arc<TrustBundles> {
        self.current.load_full()
    }

    /// Puts other bundles in force, and wakes every live connection to be identified again. The same ones again change nothing.
    pub fn store(&self, bundles: Arc<TrustBundles>) {
        if !bundles.same_as(&self.current.load()) {
            self.current.store(bundles);
            self.version.fetch_add(1, Ordering::Release);
            self.changed.send_modify(|count| *count += 1);
        }
    }

    /// Grows whenever other bundles come into force.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Changes whenever other bundles come into force.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

impl From<Arc<TrustBundles>> for TrustCell {
    fn from(bundles: Arc<TrustBundles>) -> Self {
        Self { current: ArcSwap::from(bundles), version: AtomicU64::new(0), changed: watch::Sender::new(0) }
    }
}

impl fmt::Debug for TrustCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TrustCell").field(&self.current.load()).finish()
    }
}
