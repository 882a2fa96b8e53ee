//! Follows the files of the parent proxies.

use std::sync::Arc;
use std::time::Duration;

use crate::bundles::source::{self as files, Fingerprint};
use crate::dial::{Parent, Parents};

/// How often the files are looked at.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// Takes changed files into force, for ever. What cannot be used, or is half written, changes nothing.
pub(super) async fn watch(parents: Arc<Parents>) {
    let mut seen: Vec<_> = parents.iter().map(versions).collect();
    loop {
        tokio::time::sleep(POLL_EVERY).await;
        for (parent, seen) in parents.iter().zip(&mut seen) {
            // Looked at before reading: what is written meanwhile is another version, and read again.
            let now = versions(parent);
            if now == *seen {
                continue;
            }
            *seen = now;
            match parent.reload() {
                Ok(()) => tracing::info!(proxy = parent.name(), "files of the proxy reloaded"),
                Err(error) => tracing::error!(proxy = parent.name(), %error, "what was read before stays"),
            }
        }
    }
}

fn versions(parent: &Arc<Parent>) -> Vec<Option<Fingerprint>> {
    parent.files().map(|path| files::fingerprint(path)).collect()
}
