//! How fast an endpoint's payload may pass. Whoever carries a piece charges it before it is sent on, and waits as long as
//! the bucket says; so a connection at the limit is slowed and never cut, and all of the endpoint's connections get their
//! turns one after the other, on whichever thread they are.

use std::sync::Arc;
use std::time::Duration;

use super::endpoint::Endpoint;
use super::way::Way;

/// A piece is at most what the rate gives in this fraction of a second, so that turns come often.
const PIECES_PER_SECOND: u64 = 32;
/// The size of a read, and a size below which the turns cost more than they even out.
const PIECE: std::ops::RangeInclusive<u64> = 1024..=64 * 1024;

/// The rate of one way of one endpoint. Each way has the whole rate.
pub struct Pace {
    endpoint: Arc<Endpoint>,
    way: Way,
}

impl Pace {
    /// Of an endpoint.
    #[must_use]
    pub fn new(endpoint: &Arc<Endpoint>, way: Way) -> Self {
        Self { endpoint: Arc::clone(endpoint), way }
    }

    /// Most bytes to charge at a time; `None`: there is no rate now.
    #[must_use]
    pub fn piece(&self) -> Option<usize> {
        let rate = self.endpoint.bytes_per_second();
        let piece = (rate / PIECES_PER_SECOND).clamp(*PIECE.start(), *PIECE.end());
        (rate > 0).then(|| usize::try_from(piece).unwrap_or(usize::MAX))
    }

    /// Charges `bytes`, and says how long to wait before they are sent on.
    #[must_use]
    pub fn charge(&self, bytes: usize) -> Duration {
        self.endpoint.charge(self.way, bytes as u64)
    }
}
