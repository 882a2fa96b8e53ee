//! Bundles over HTTP(S), as OPA fetches them: an entity tag, and a long poll where the server offers one.
//!
//! ```text
//!   GET, If-None-Match, Prefer: modes=snapshot;wait=30 --> 304 nothing new, ask again
//!                                                      --> 200 bundle --offer--> the same checks as for a file
//!                                                      --> anything else, or nothing: back off and ask again
//! ```
//! What comes is only bytes until the verifier has seen it: a server that lies can be slow or silent, nothing more.

mod fetch;

use std::time::Duration;

use thiserror::Error;

use super::source::MAX_BYTES;

pub(super) use fetch::{Fetched, Server};

/// When to ask again.
#[derive(Debug, Clone)]
pub struct Timing {
    /// After the first failure; it doubles with each further one.
    pub first: Duration,
    /// At most.
    pub longest: Duration,
    /// Between two questions to a server that has no long poll.
    pub interval: Duration,
    /// Between two questions in any case: a server that answers a long poll at once is not asked in a loop.
    pub shortest: Duration,
    /// For connecting, and for the answer beyond the time of the long poll.
    pub patience: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(60),
            interval: Duration::from_secs(10),
            shortest: Duration::from_millis(500),
            patience: Duration::from_secs(20),
        }
    }
}

impl Timing {
    /// How long to wait after so many failures in a row: between half and the whole of the doubled time, so that a
    /// fleet does not come back all at once.
    pub(super) fn back_off(&self, failures: u32) -> Duration {
        let whole = self.first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(self.longest);
        jitter(whole)
    }
}

/// Between half and the whole.
pub(super) fn jitter(whole: Duration) -> Duration {
    let mut byte = [0; 1];
    // Without entropy there is no jitter, and nothing else is wrong.
    let _ = getrandom::fill(&mut byte);
    whole.mul_f64(0.5 + f64::from(byte[0]) / 510.0)
}

/// Why a bundle could not be fetched.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The TLS settings cannot be used.
    #[error("policy.ca: {0}")]
    Ca(String),
    /// Nobody answers, or not as HTTP does.
    #[error("{server} cannot be asked for a bundle: {problem}; check policy.url and the server")]
    Unreachable {
        /// Where.
        server: String,
        /// Why not.
        problem: String,
    },
    /// It took too long.
    #[error("{server} did not send a whole answer in time; check the server and the way to it")]
    TimedOut {
        /// Where.
        server: String,
    },
    /// It sends elsewhere.
    #[error("{server} redirects ({status}); redirects are not followed: write the last address into policy.url")]
    Redirect {
        /// Where.
        server: String,
        /// Its status.
        status: u16,
    },
    /// Another status.
    #[error("{server} answered {status}; check that it serves a bundle at policy.url")]
    Status {
        /// Where.
        server: String,
        /// Its status.
        status: u16,
    },
    /// More than any bundle has.
    #[error("{server} sends more than {MAX_BYTES} bytes; that is not a bundle of this system")]
    TooLarge {
        /// Where.
        server: String,
    },
}
