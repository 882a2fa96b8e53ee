//! What the feed knows of itself, for the operator.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::refusal::Refusal;

/// The active bundle, apart from its policy.
pub(super) struct Live {
    pub(super) serial: u64,
    pub(super) revision: String,
    pub(super) sha256: String,
    pub(super) expires: Option<SystemTime>,
    pub(super) grace: Duration,
    pub(super) activated: SystemTime,
}

/// Everything that changes while the feed runs.
#[derive(Default)]
pub(super) struct State {
    pub(super) live: Option<Live>,
    /// Highest serial ever stored: nothing older is accepted.
    pub(super) mark: u64,
    failures: BTreeMap<&'static str, u64>,
    last_error: Option<LastError>,
    stale_warned: Option<u64>,
}

impl State {
    /// Counts a failure; true when it is not the one that was reported last.
    pub(super) fn fail(&mut self, refusal: &Refusal, now: SystemTime) -> bool {
        let (reason, message) = (refusal.reason(), refusal.to_string());
        *self.failures.entry(reason).or_default() += 1;
        let known = self.last_error.as_ref().is_some_and(|last| last.reason == reason && last.message == message);
        if !known {
            self.last_error = Some(LastError { reason, message, time: rfc3339(now) });
        }
        !known
    }

    /// The file is good (again).
    pub(super) fn recovered(&mut self) {
        self.last_error = None;
    }

    /// True once per serial.
    pub(super) fn warn_stale(&mut self, serial: u64) -> bool {
        self.stale_warned.replace(serial) != Some(serial)
    }

    pub(super) fn status(&self, now: SystemTime) -> FeedStatus {
        let live = self.live.as_ref();
        let expires = live.and_then(|live| live.expires);
        let denies_at = live.and_then(|live| live.expires?.checked_add(live.grace));
        FeedStatus {
            revision: live.map(|live| live.revision.clone()),
            serial: live.map(|live| live.serial),
            activated: live.map(|live| rfc3339(live.activated)),
            expires: expires.map(rfc3339),
            denies_at: denies_at.map(rfc3339),
            stale: expires.is_some_and(|at| now >= at),
            last_error: self.last_error.clone(),
            failures: self.failures.clone(),
        }
    }
}

/// What is active, and what went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FeedStatus {
    /// Revision of the active bundle; none: everything is denied.
    pub revision: Option<String>,
    /// Its serial.
    pub serial: Option<u64>,
    /// Since when it decides (RFC 3339).
    pub activated: Option<String>,
    /// When it expires; none: never.
    pub expires: Option<String>,
    /// When its grace ends and everything is denied.
    pub denies_at: Option<String>,
    /// It is past its expiry.
    pub stale: bool,
    /// Why the file is not what is active; none: it is.
    pub last_error: Option<LastError>,
    /// Refusals since the start, by reason.
    pub failures: BTreeMap<&'static str, u64>,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LastError {
    /// Closed set.
    pub reason: &'static str,
    /// For people, with what to do.
    pub message: String,
    /// When it was first seen.
    pub time: String,
}

fn rfc3339(time: SystemTime) -> String {
    // The formatter panics outside the years 1970 to 9999, and an expiry comes from outside.
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_seconds(time.clamp(SystemTime::UNIX_EPOCH, last)).to_string()
}
