//! Idle HTTP connections of one thread.
//!
//! A connection serves only calls with the same key. Keys name everything that makes two calls different: endpoint,
//! generation, peer or destination, bundle revision, SVID. So a change of any of them leaves the old connections to expire.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::http::HttpUpstream;

/// Most idle connections per key. As many as callers keep busy at a time: with fewer, one in seven requests of 64 callers
/// pays for a dial through the guest's relay.
const MAX_IDLE: usize = 64;
/// An idle connection is closed after this long: servers close theirs after 5 s at the earliest.
const IDLE_TIME: Duration = Duration::from_secs(4);

/// The pools, by key.
#[derive(Default)]
pub struct Pools {
    by_key: RefCell<HashMap<String, Rc<Pool>>>,
}

impl Pools {
    /// The pool of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Rc<Pool> {
        let mut pools = self.by_key.borrow_mut();
        if let Some(pool) = pools.get(key) {
            return Rc::clone(pool);
        }
        let pool = Rc::<Pool>::default();
        pools.insert(key.to_owned(), Rc::clone(&pool));
        pool
    }

    /// Closes what was idle for too long and forgets pools that nobody uses.
    pub fn tick(&self) {
        let now = Instant::now();
        self.by_key.borrow_mut().retain(|_, pool| {
            pool.idle.borrow_mut().retain(|(_, since)| now.duration_since(*since) < IDLE_TIME);
            Rc::strong_count(pool) > 1 || !pool.idle.borrow().is_empty()
        });
    }

    /// Closes every idle connection.
    pub fn clear(&self) {
        self.by_key.borrow_mut().retain(|_, pool| {
            pool.idle.borrow_mut().clear();
            Rc::strong_count(pool) > 1
        });
    }
}

/// Idle connections that are equal in every respect.
#[derive(Default)]
pub struct Pool {
    idle: RefCell<Vec<(HttpUpstream, Instant)>>,
}

impl Pool {
    /// The connection that was used last, if one is still open.
    #[must_use]
    pub fn take(&self) -> Option<HttpUpstream> {
        let mut idle = self.idle.borrow_mut();
        while let Some((upstream, since)) = idle.pop() {
            if since.elapsed() < IDLE_TIME && upstream.is_usable() {
                return Some(upstream);
            }
        }
        None
    }

    /// Keeps a connection whose last exchange ended as it should.
    pub fn put(&self, upstream: HttpUpstream) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MAX_IDLE && upstream.is_usable() {
            idle.push((upstream, Instant::now()));
        }
    }
}
