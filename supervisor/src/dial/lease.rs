//! A connection of a pool while an exchange goes on over it.

use std::rc::Rc;

use super::http::HttpUpstream;
use super::pool::Pool;
use crate::conn::body::Lease;
use crate::reason::Reason;

/// Gives a connection back to its pool when the exchange ended as it should.
pub struct PoolLease {
    upstream: HttpUpstream,
    pool: Rc<Pool>,
}

impl PoolLease {
    /// A lease of a connection that came from, or will go to, `pool`.
    #[must_use]
    pub fn new(upstream: HttpUpstream, pool: Rc<Pool>) -> Box<Self> {
        Box::new(Self { upstream, pool })
    }
}

impl Lease for PoolLease {
    fn broken(&self) -> (Reason, &'static str) {
        self.upstream.broken()
    }

    fn give_back(self: Box<Self>) {
        self.pool.put(self.upstream);
    }
}
