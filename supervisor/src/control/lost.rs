//! Guests that are gone, until the control service looks at them: bounded by the number of endpoints, and told without waiting.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use super::order::Key;

/// Lost guests that nobody has looked at yet.
#[derive(Default)]
pub(super) struct Lost {
    keys: Mutex<HashSet<Key>>,
    news: Notify,
}

impl Lost {
    /// A guest is gone. Any thread may say so; it never waits.
    pub(super) fn tell(&self, key: Key) {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        self.news.notify_one();
    }

    /// Resolves when there is something to take. Cancel-safe.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// All that was told since the last time.
    pub(super) fn take(&self) -> HashSet<Key> {
        std::mem::take(&mut *self.keys.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
