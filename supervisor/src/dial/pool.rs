//! HTTP connections of one thread: idle ones of HTTP/1.1, and those of HTTP/2, which many exchanges share.
//!
//! A connection serves only calls with the same key. Keys name everything that makes two calls different: endpoint,
//! generation, peer or destination, bundle revision, SVID. So a change of any of them leaves the old connections to expire.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Semaphore;

use super::Speaks;
use super::http::HttpUpstream;
use super::shared::{Most, Shared};
use crate::gate::Limits;
use crate::identity::not_after;
use crate::net::stream::Stream;
use crate::reason::Reason;
use crate::state::room::{Held, Room};

/// Most idle connections per key. As many as callers keep busy at a time: with fewer, one in seven requests of 64 callers
/// pays for a dial through the guest's relay.
const MAX_IDLE: usize = 64;
/// An idle connection is closed after this long: servers close theirs after 5 s at the earliest.
const IDLE_TIME: Duration = Duration::from_secs(4);
/// A connection takes no exchange after this long, however busy: names lead elsewhere meanwhile.
const MAX_AGE: Duration = Duration::from_mins(5);

/// The pools, by key.
#[derive(Default)]
pub struct Pools {
    by_key: RefCell<HashMap<String, Rc<Pool>>>,
    /// The last key that was asked for: every request has one, and few are new.
    asked: RefCell<String>,
}

impl Pools {
    /// The pool of a key, for connections to somebody who speaks this and whose answers keep to `limits`; the key decides that
    /// as well.
    #[must_use]
    pub fn get(&self, key: fmt::Arguments<'_>, speaks: Speaks, limits: Limits) -> Rc<Pool> {
        let (mut pools, mut asked) = (self.by_key.borrow_mut(), self.asked.borrow_mut());
        asked.clear();
        // Writing to a text cannot fail.
        let _ = asked.write_fmt(key);
        if let Some(pool) = pools.get(asked.as_str()) {
            return Rc::clone(pool);
        }
        let pool = Rc::new(Pool::new(speaks, limits));
        pools.insert(asked.clone(), Rc::clone(&pool));
        pool
    }

    /// Closes what was idle for too long, and all of pods (and generations) that are not in use any more; forgets pools that
    /// nobody uses.
    pub fn tick(&self, in_use: impl Fn(&str, &str) -> bool) {
        let now = Instant::now();
        self.by_key.borrow_mut().retain(|key, pool| {
            let mut words = key.split(' ').skip(1);
            let is_in_use = words.next().zip(words.next()).is_some_and(|(pod, number)| in_use(pod, number));
            let idle_time = if is_in_use { IDLE_TIME } else { Duration::ZERO };
            let is_fresh = |since| now.duration_since(since) < idle_time;
            pool.idle.borrow_mut().retain(|(upstream, since)| now < upstream.until() && is_fresh(*since));
            pool.shared.borrow_mut().retain(|shared| now < shared.until() && shared.is_worth_keeping(idle_time));
            Rc::strong_count(pool) > 1 || !pool.is_empty()
        });
    }
}

/// Connections that are equal in every respect.
pub struct Pool {
    speaks: Speaks,
    limits: Limits,
    max_age: Duration,
    /// Whether the last connection agreed on HTTP/2. Until one is open, it is taken for granted.
    agreed_http2: Cell<bool>,
    idle: RefCell<Vec<(HttpUpstream, Instant)>>,
    shared: RefCell<Vec<Shared>>,
    most: Most,
    /// Who finds no place on a shared connection dials, one at a time: the others find a place on what it opened.
    dialling: Semaphore,
    /// The last dial failed then, for this reason.
    failed: Cell<Option<(Instant, Reason)>>,
}

impl Pool {
    fn new(speaks: Speaks, limits: Limits) -> Self {
        Self {
            speaks,
            limits,
            max_age: MAX_AGE,
            agreed_http2: Cell::new(true),
            idle: RefCell::default(),
            shared: RefCell::default(),
            most: Most::default(),
            dialling: Semaphore::new(1),
            failed: Cell::default(),
        }
    }

    /// What answers on its connections keep to.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The connection that was used last, if one is still open; or a place on a shared one. Never on the one of `but`.
    #[must_use]
    pub fn take(&self, but: Option<&HttpUpstream>) -> Option<HttpUpstream> {
        let now = Instant::now();
        let is_left = |shared: &Shared| but.is_some_and(|but| but.is_on(shared));
        let place = |shared: &Shared| {
            let place = if is_left(shared) { None } else { HttpUpstream::http2(shared) };
            place.filter(|place| now < place.until())
        };
        if let Some(upstream) = self.shared.borrow().iter().find_map(place) {
            return Some(upstream);
        }
        let mut idle = self.idle.borrow_mut();
        while let Some((upstream, since)) = idle.pop() {
            if since.elapsed() < IDLE_TIME && now < upstream.until() && upstream.is_usable() {
                return Some(upstream);
            }
        }
        None
    }

    /// A connection that `open` makes, or a place on one that somebody else made meanwhile. Never on the one of `but`.
    ///
    /// # Errors
    /// The reason for the record.
    pub async fn open(
        &self,
        room: &Rc<Room>,
        but: Option<&HttpUpstream>,
        open: impl Future<Output = Result<Stream, Reason>>,
    ) -> Result<HttpUpstream, Reason> {
        // Counted before it is dialled: a descriptor that there is no room for is not opened.
        let open = async {
            let held = room.take()?;
            self.start(open.await?, held).await
        };
        if !self.may_share() {
            return open.await;
        }
        let since = Instant::now();
        // Never closed, so a turn always comes.
        let turn = self.dialling.acquire().await;
        if let Some(upstream) = self.take(but) {
            return Ok(upstream);
        }
        // A dial of meanwhile was this one's as well: a queue of dials would wait for a dead app one after the other.
        if let Some((_, reason)) = self.failed.get().filter(|(at, _)| *at > since) {
            return Err(reason);
        }
        // Meanwhile the other side has turned out to speak HTTP/1.1: each exchange needs a connection of its own.
        if !self.may_share() {
            drop(turn);
            return open.await;
        }
        open.await.inspect_err(|reason| self.failed.set(Some((Instant::now(), *reason))))
    }

    /// Whether its connections carry many exchanges, as far as is known.
    fn may_share(&self) -> bool {
        match self.speaks {
            Speaks::Http1 => false,
            Speaks::Http2 => true,
            Speaks::Agreed => self.agreed_http2.get(),
        }
    }

    async fn start(&self, stream: Stream, held: Held) -> Result<HttpUpstream, Reason> {
        let is_http2 = self.speaks.is_http2(&stream);
        self.agreed_http2.set(is_http2);
        let until = Instant::now() + time_left(&stream).min(self.max_age);
        if !is_http2 {
            return HttpUpstream::http1(stream, self.limits, held, until).await;
        }
        let shared = Shared::start(stream, self.most.clone(), &self.limits, held.lasting()?, until).await?;
        let upstream = HttpUpstream::http2(&shared).ok_or(Reason::UpstreamClosed)?;
        self.shared.borrow_mut().push(shared);
        Ok(upstream)
    }

    /// Keeps a connection whose last exchange ended as it should.
    pub fn put(&self, upstream: HttpUpstream) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MAX_IDLE
            && upstream.is_usable()
            && let Some(upstream) = upstream.idle()
        {
            idle.push((upstream, Instant::now()));
        }
    }

    fn is_empty(&self) -> bool {
        self.idle.borrow().is_empty() && self.shared.borrow().is_empty()
    }
}

/// How long the certificate is good for that the other side presented, with its last second, as a handshake has it. Of those
/// above it, which may be others than were sent, the next handshake decides.
fn time_left(stream: &Stream) -> Duration {
    let Some(last) = stream.server_certificate().and_then(not_after) else { return Duration::MAX };
    (last + Duration::from_secs(1)).duration_since(SystemTime::now()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::state::table::tests::endpoint;

    /// A pool, and as many connections as it asks for.
    async fn opened(pool: &Pool, listener: &TcpListener) -> HttpUpstream {
        let addr = listener.local_addr().expect("bound");
        let open = async { TcpStream::connect(addr).await.map(Stream::Tcp).map_err(|_| Reason::UpstreamRefused) };
        pool.open(&Room::new(&endpoint("a", "10.0.0.1", 3)), None, open).await.expect("open")
    }

    // covers: D5f
    #[tokio::test]
    async fn a_connection_that_is_never_idle_is_still_given_up_at_its_age() {
        assert_eq!(Pool::new(Speaks::Http1, Limits::default()).max_age, Duration::from_secs(300));
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
                for speaks in [Speaks::Http1, Speaks::Http2] {
                    let max_age = Duration::from_millis(400);
                    let pool = Pool { max_age, ..Pool::new(speaks, Limits::default()) };
                    let born = Instant::now();
                    let upstream = opened(&pool, &listener).await;
                    pool.put(upstream);
                    while let Some(upstream) = pool.take(None) {
                        assert!(born.elapsed() < max_age * 50, "{speaks:?} is used for ever");
                        pool.put(upstream);
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    assert!(born.elapsed() >= max_age, "{speaks:?} was idle for no time at all");
                }
            })
            .await;
    }
}
