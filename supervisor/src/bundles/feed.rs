//! From the bundle file to the active policy.
//!
//! ```text
//!   bundle file ──read──╮
//!   bundle server ─fetch┴─verify──serial──load──self-test──store──activate──> PolicyCell
//!   store (at start) ────verify─────────load──self-test─────────activate──> PolicyCell
//! ```
//! Any failure on the way keeps what is active. Time is a parameter everywhere, so that expiry can be tested.

mod watch;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest;
use nova_policy::bundle::BundleError;
use nova_policy::engine::Policy;

use super::http::Timing;
use super::refusal::Refusal;
use super::source::{self, Fingerprint};
use super::status::{FeedStatus, Live, State};
use super::store::{BundleStore, StoreError};
use super::verifier::{self, Verifier};
use crate::config::{BundleSource, PolicyConfig};
use crate::state::policy::PolicyCell;

/// What may pass without a new version of the files (a full disk, a clock that was wrong) is tried again this late.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Called with each policy just before it decides: certificates of external CAs must be trusted by then.
pub type OnActivate = Box<dyn Fn(&Policy) + Send + Sync>;

/// What a look at the files led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing new.
    Unchanged,
    /// This serial decides now.
    Activated(u64),
    /// The file was refused for this reason; what was active is still active.
    Refused(&'static str),
    /// The active bundle is past its expiry and its grace: everything is denied.
    Expired,
}

/// Keeps [`PolicyCell`] at the newest good bundle. One per process.
pub struct BundleFeed {
    cell: Arc<PolicyCell>,
    store: BundleStore,
    verifier: Verifier,
    source: BundleSource,
    timing: Timing,
    keys: PathBuf,
    grace: Duration,
    min_serial: u64,
    on_activate: OnActivate,
    /// One change at a time.
    work: Mutex<Seen>,
    state: Mutex<State>,
}

/// What the last look at the files saw.
#[derive(Default)]
struct Seen {
    files: Option<(Option<Fingerprint>, Option<Fingerprint>)>,
    /// When a bundle was refused for something that may pass without a new version of the files.
    may_pass: Option<SystemTime>,
}

impl BundleFeed {
    /// Takes the store of the configuration. Nothing is active before [`BundleFeed::start`].
    ///
    /// # Errors
    /// When the store cannot be used, others could write into it, or another supervisor has it.
    pub fn open(
        config: &PolicyConfig,
        node: &str,
        cell: Arc<PolicyCell>,
        on_activate: OnActivate,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            cell,
            store: BundleStore::open(&config.store)?,
            verifier: Verifier::new(config.keys.clone(), config.key_id.clone(), node.to_owned()),
            source: config.source.clone(),
            timing: Timing::default(),
            keys: config.keys.clone(),
            grace: config.stale_grace,
            min_serial: config.min_serial,
            on_activate,
            work: Mutex::default(),
            state: Mutex::default(),
        })
    }

    /// The same, asking a server at other times.
    #[must_use]
    pub fn with_timing(self, timing: Timing) -> Self {
        Self { timing, ..self }
    }

    /// Activates the newest stored bundle that verifies again, then looks at the file.
    pub fn start(&self, now: SystemTime) -> Outcome {
        let restored = self.restore(now);
        match self.poll(now) {
            Outcome::Unchanged => restored,
            outcome => outcome,
        }
    }

    /// Looks once at the files and at the clock.
    pub fn poll(&self, now: SystemTime) -> Outcome {
        let mut seen = lock(&self.work);
        let outcome = match &self.source {
            BundleSource::File(file) => self.poll_file(file, &mut seen, now),
            BundleSource::Http(_) => Outcome::Unchanged,
        };
        let expired = self.expire(now);
        if expired { Outcome::Expired } else { outcome }
    }

    /// Takes what a server sent, with the same checks as for a file.
    pub fn offer(&self, bytes: &[u8], now: SystemTime) -> Outcome {
        let _one_at_a_time = lock(&self.work);
        self.take(self.consider(bytes, now), now)
    }

    /// What is active, since when, and what went wrong.
    #[must_use]
    pub fn status(&self, now: SystemTime) -> FeedStatus {
        lock(&self.state).status(now)
    }

    /// The policy of an earlier revision, if its bundle is still in the store and still verifies. For `replay` only: it
    /// may be expired.
    #[must_use]
    pub fn by_revision(&self, revision: &str, now: SystemTime) -> Option<Arc<Policy>> {
        let live = lock(&self.state).live.as_ref().is_some_and(|live| live.revision == revision);
        if let Some(policy) = live.then(|| self.cell.load()).flatten() {
            return Some(policy);
        }
        let serials = self.store.serials().ok()?;
        serials.into_iter().find_map(|serial| {
            let bytes = self.store.read(serial).ok()?;
            let bundle = self.verifier.check(&bytes, now, Duration::MAX).ok()?;
            (bundle.manifest().revision == revision).then(|| Policy::load(bundle).ok().map(Arc::new)).flatten()
        })
    }

    fn restore(&self, now: SystemTime) -> Outcome {
        let serials = match self.store.serials() {
            Ok(serials) => serials,
            Err(error) => return self.refused(&Refusal::Store(error), now),
        };
        // A store that was wiped has forgotten how far it was; the operator may know.
        lock(&self.state).mark = serials.first().copied().unwrap_or_default().max(self.min_serial);
        let mut outcome = Outcome::Unchanged;
        for serial in serials {
            match self.read_stored(serial, now) {
                Ok(policy) => {
                    self.activate(policy, now);
                    return Outcome::Activated(serial);
                }
                Err(refusal) => outcome = self.refused(&refusal, now),
            }
        }
        outcome
    }

    /// A stored bundle was active before, so it still has its grace.
    fn read_stored(&self, serial: u64, now: SystemTime) -> Result<Policy, Refusal> {
        if serial < self.min_serial {
            return Err(Refusal::Serial { offered: serial, wanted: self.min_serial });
        }
        let bytes = self.store.read(serial).map_err(Refusal::Read)?;
        let bundle = self.verifier.check(&bytes, now, self.grace)?;
        match verifier::serial(&bundle)? {
            found if found == serial => verifier::load_tested(bundle),
            found => Err(Refusal::Misnamed { named: serial, found }),
        }
    }

    fn poll_file(&self, file: &Path, seen: &mut Seen, now: SystemTime) -> Outcome {
        let files = (source::fingerprint(file), source::fingerprint(&self.keys));
        // A clock that went back is a reason to look again, too.
        let retry = seen.may_pass.is_some_and(|since| now < since || now >= since + RETRY_AFTER);
        if seen.files == Some(files) && !retry {
            return Outcome::Unchanged;
        }
        seen.files = Some(files);
        seen.may_pass = None;
        let read = source::read(file).map_err(Refusal::Read);
        let considered = read.and_then(|(bytes, _)| self.consider(&bytes, now));
        if let Err(refusal) = &considered {
            seen.may_pass = refusal.may_pass().then_some(now);
        }
        self.take(considered, now)
    }

    fn take(&self, considered: Result<Option<Policy>, Refusal>, now: SystemTime) -> Outcome {
        match considered {
            Ok(Some(policy)) => {
                let serial = policy.serial();
                self.activate(policy, now);
                Outcome::Activated(serial)
            }
            Ok(None) => {
                lock(&self.state).recovered();
                Outcome::Unchanged
            }
            Err(refusal) => self.refused(&refusal, now),
        }
    }

    /// A published bundle, verified, tested and stored; `None` when it is the active one.
    fn consider(&self, bytes: &[u8], now: SystemTime) -> Result<Option<Policy>, Refusal> {
        let (live, mark) = {
            let state = lock(&self.state);
            (state.live.as_ref().map(|live| (live.serial, live.sha256.clone())), state.mark)
        };
        let active = live.as_ref().is_some_and(|(_, sha256)| *sha256 == sha256_of(bytes));
        // Never an expired bundle out of nothing; but the active one is not refused on top of its own warning.
        let grace = if active { self.grace } else { Duration::ZERO };
        let bundle = self.verifier.check(bytes, now, grace)?;
        if active {
            return Ok(None);
        }
        // The mark itself may come again when it is not active: what was stored under it may be damaged.
        let wanted = live.map_or(0, |(serial, _)| serial.saturating_add(1)).max(mark);
        let offered = verifier::serial(&bundle)?;
        if offered < wanted {
            return Err(Refusal::Serial { offered, wanted });
        }
        let policy = verifier::load_tested(bundle)?;
        self.store.save(offered, bytes).map_err(Refusal::Store)?;
        Ok(Some(policy))
    }

    fn activate(&self, policy: Policy, now: SystemTime) {
        let (serial, revision) = (policy.serial(), policy.revision().to_owned());
        tracing::info!(serial, revision, "policy bundle active");
        (self.on_activate)(&policy);
        let live = Live {
            serial,
            revision,
            sha256: policy.sha256().to_owned(),
            expires: UNIX_EPOCH.checked_add(Duration::from_secs(policy.expires_at())),
            grace: self.grace,
            activated: now,
        };
        let mut state = lock(&self.state);
        state.mark = state.mark.max(serial);
        state.live = Some(live);
        state.recovered();
        self.cell.activate(Some(Arc::new(policy)));
    }

    /// Serves an expired bundle for the time of grace, with one warning; then denies everything.
    fn expire(&self, now: SystemTime) -> bool {
        let mut state = lock(&self.state);
        let Some(live) = &state.live else { return false };
        let (serial, revision, expires) = (live.serial, live.revision.clone(), live.expires);
        if past(expires, self.grace, now) {
            tracing::error!(
                serial,
                revision,
                "policy bundle expired and its grace is over: everything is denied until a fresh one is published"
            );
            state.live = None;
            let at = expires.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
            state.fail(&Refusal::Bundle(BundleError::Expired(at.as_secs())), now);
            self.cell.activate(None);
            return true;
        }
        if past(expires, Duration::ZERO, now) && state.warn_stale(serial) {
            let grace = self.grace.as_secs();
            tracing::warn!(
                serial,
                revision,
                grace,
                "policy bundle expired: it decides for these seconds only; publish a fresh one"
            );
        }
        false
    }

    fn refused(&self, refusal: &Refusal, now: SystemTime) -> Outcome {
        let reason = refusal.reason();
        if lock(&self.state).fail(refusal, now) {
            tracing::error!(reason, error = %refusal, "policy bundle refused: what was active stays active");
        }
        Outcome::Refused(reason)
    }
}

fn sha256_of(bytes: &[u8]) -> String {
    hex::encode(digest::digest(&digest::SHA256, bytes))
}

fn past(expires: Option<SystemTime>, grace: Duration, now: SystemTime) -> bool {
    expires.and_then(|at| at.checked_add(grace)).is_some_and(|end| now >= end)
}

/// A panic in a loader must not stop the feed for good: each critical section leaves its value whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
