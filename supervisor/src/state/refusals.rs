//! What a source of endpoints asked for and did not get: told to operators, since a file has nobody to tell.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most rows that are kept: beyond it a source invents pods.
const MAX_ROWS: usize = 4096;

/// A row that was refused; what was served before it stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Pod uid as sent.
    pub pod: String,
    /// Generation as sent.
    pub generation: u64,
    /// Phase that the source was told.
    pub phase: &'static str,
    /// Reason that it was told.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// All of them, as of now.
#[derive(Default)]
pub struct Refusals(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    rows: BTreeMap<String, Refusal>,
    source: Option<String>,
}

impl Refusals {
    /// Every refused row, by pod.
    #[must_use]
    pub fn rows(&self) -> Vec<Refusal> {
        self.lock().rows.values().cloned().collect()
    }

    /// Why the source as a whole is not followed.
    #[must_use]
    pub fn of_source(&self) -> Option<String> {
        self.lock().source.clone()
    }

    /// Notes what keeps the source from being followed, or that nothing does.
    pub fn note_source(&self, problem: Option<String>) {
        self.lock().source = problem;
    }

    /// Notes a refused row.
    pub fn insert(&self, refusal: Refusal) {
        let mut inner = self.lock();
        if inner.rows.len() < MAX_ROWS || inner.rows.contains_key(&refusal.pod) {
            inner.rows.insert(refusal.pod.clone(), refusal);
        }
    }

    /// The pod has another row now, or none.
    pub fn remove(&self, pod: &str) {
        self.lock().rows.remove(pod);
    }

    /// Every pod has another row now, or none.
    pub fn clear(&self) {
        self.lock().rows.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every critical section is one change: a panic elsewhere leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
