//! When the feed looks for a bundle, and asks for one.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{BundleFeed, Outcome, lock};
use crate::bundles::http::{Fetched, Server, jitter};
use crate::bundles::refusal::Refusal;
use crate::config::{BundleSource, HttpSource};

/// How often the files are looked at. Two calls of stat(2); a rename over either changes its inode, which no inotify
/// watch on the file itself would see.
const POLL_EVERY: Duration = Duration::from_millis(200);

impl BundleFeed {
    /// Looks at the files, or asks the server, until the future is dropped. Runs on the control runtime; the work is done
    /// on its blocking pool.
    pub async fn watch(self: Arc<Self>) {
        match &self.source {
            BundleSource::File(_) => self.watch_clock().await,
            BundleSource::Http(source) => {
                let asking = self.ask(source);
                tokio::join!(Arc::clone(&self).watch_clock(), asking);
            }
        }
    }

    /// Asks for ever. A failure of any kind makes the next question later, and changes nothing else.
    async fn ask(self: &Arc<Self>, source: &HttpSource) {
        let server = Server::new(source, &self.timing);
        let (mut etag, mut failures) = (None, 0_u32);
        loop {
            let asked = tokio::time::Instant::now();
            let (good, long_poll) = match server.fetch(etag.as_ref()).await {
                Ok((Fetched::NotModified, long_poll)) => {
                    lock(&self.state).recovered();
                    (true, long_poll)
                }
                Ok((Fetched::Bundle { bytes, etag: new }, long_poll)) => {
                    let feed = Arc::clone(self);
                    let offered = tokio::task::spawn_blocking(move || feed.offer(&bytes, SystemTime::now())).await;
                    let good = matches!(offered, Ok(Outcome::Activated(_) | Outcome::Unchanged));
                    // What was refused is fetched again: keys, clock and disk may be better by then.
                    etag = new.filter(|_| good);
                    (good, long_poll)
                }
                Err(error) => {
                    self.refused(&Refusal::Fetch(error), SystemTime::now());
                    (false, false)
                }
            };
            failures = if good { 0 } else { failures.saturating_add(1) };
            let next = match (good, long_poll) {
                (false, _) => tokio::time::Instant::now() + self.timing.back_off(failures),
                (true, true) => asked + self.timing.shortest,
                (true, false) => asked + jitter(self.timing.interval),
            };
            tokio::time::sleep_until(next).await;
        }
    }

    async fn watch_clock(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(POLL_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let feed = Arc::clone(&self);
            if tokio::task::spawn_blocking(move || feed.poll(SystemTime::now())).await.is_err() {
                tracing::error!("loading a bundle panicked: the active policy stays; report this with the bundle");
            }
        }
    }
}
