//! Whether a log takes lines, as every thread may ask at any time.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;

/// A call to the kernel that takes longer has not come back: a disk or a server that is gone, a terminal that nobody reads.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// What times are counted from.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Written by the writer, read by all.
#[derive(Default)]
pub(super) struct Health {
    /// Lines are refused, or come faster than they can be written.
    fails: AtomicBool,
    /// What the kernel said.
    problem: ArcSwapOption<String>,
    /// When the call began that is in the kernel, in milliseconds since [`START`] and at least 1; 0: none is.
    since: AtomicU64,
    /// Somebody was told that it does not come back.
    told: AtomicBool,
}

impl Health {
    pub(super) fn is_good(&self) -> bool {
        !self.fails.load(Ordering::Relaxed) && !self.is_stuck()
    }

    /// What keeps lines from being written, for people.
    pub(super) fn problem(&self) -> Option<String> {
        if self.is_stuck() {
            return Some("a write to it does not return".to_owned());
        }
        let told = || self.problem.load().as_deref().cloned().unwrap_or_else(|| "lines come too fast".to_owned());
        self.fails.load(Ordering::Relaxed).then(told)
    }

    /// Too many lines wait, or nobody is there to write them.
    pub(super) fn overrun(&self) {
        self.fails.store(true, Ordering::Relaxed);
    }

    /// Notes how a write went; the problem, when it is a new one.
    pub(super) fn note(&self, outcome: std::io::Result<()>) -> Option<String> {
        let problem = outcome.err().map(|error| error.to_string());
        let is_new = problem.is_some() && *self.problem.load() != problem.clone().map(Into::into);
        self.problem.store(problem.clone().map(Into::into));
        self.fails.store(problem.is_some(), Ordering::Relaxed);
        problem.filter(|_| is_new)
    }

    /// A call that may not come back begins; it has come back when the value is dropped.
    pub(super) fn begin(&self) -> InKernel<'_> {
        self.since.store(now_ms().max(1), Ordering::Relaxed);
        InKernel(self)
    }

    /// Whether a call does not come back, when nobody was told yet.
    pub(super) fn is_newly_stuck(&self) -> bool {
        let is_stuck = self.is_stuck();
        is_stuck != self.told.load(Ordering::Relaxed) && !self.told.swap(is_stuck, Ordering::Relaxed) && is_stuck
    }

    fn is_stuck(&self) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        since != 0 && u128::from(now_ms().saturating_sub(since)) > PATIENCE.as_millis()
    }
}

/// A call to the kernel.
pub(super) struct InKernel<'a>(&'a Health);

impl Drop for InKernel<'_> {
    fn drop(&mut self) {
        self.0.since.store(0, Ordering::Relaxed);
    }
}

fn now_ms() -> u64 {
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}
