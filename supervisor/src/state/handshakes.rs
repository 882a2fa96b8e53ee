//! The TLS handshakes of one endpoint that are in flight. One source gets at most a quarter of the places, so that a silent
//! client cannot keep everybody else out. The app behind an endpoint is alone with the places for its own TLS, so it may have
//! them all.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One source may hold this fraction of an endpoint's places, and always one.
const SHARE: usize = 4;

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPlace {
    /// All of the endpoint's are taken.
    Endpoint,
    /// The source has its share.
    Source,
}

impl NoPlace {
    /// For the record's detail.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Endpoint => "handshakes",
            Self::Source => "handshakes_of_source",
        }
    }
}

/// The places of one endpoint. The lock is the endpoint's own and taken once per handshake; a source is remembered only
/// while it holds a place, so there are never more of them than places.
#[derive(Default)]
pub(super) struct Handshakes {
    now: Mutex<InFlight>,
}

#[derive(Default)]
struct InFlight {
    all: usize,
    by_source: HashMap<IpAddr, usize>,
}

impl Handshakes {
    /// A place for a client at `source`, or for the app itself.
    pub(super) fn take(self: &Arc<Self>, source: Option<IpAddr>, cap: usize) -> Result<HandshakeSlot, NoPlace> {
        let source = source.map(network);
        let mut now = self.lock();
        if now.all >= cap {
            return Err(NoPlace::Endpoint);
        }
        if let Some(source) = source {
            let held = now.by_source.get(&source).copied().unwrap_or(0);
            if held >= (cap / SHARE).max(1) {
                return Err(NoPlace::Source);
            }
            now.by_source.insert(source, held + 1);
        }
        now.all += 1;
        drop(now);
        Ok(HandshakeSlot { places: Arc::clone(self), source })
    }

    fn give_back(&self, source: Option<IpAddr>) {
        let mut now = self.lock();
        now.all -= 1;
        let Some(source) = source else { return };
        if let Some(held) = now.by_source.get_mut(&source) {
            *held -= 1;
            if *held == 0 {
                now.by_source.remove(&source);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, InFlight> {
        // Nothing in a critical section can panic half-way.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place; given back when dropped.
pub struct HandshakeSlot {
    places: Arc<Handshakes>,
    source: Option<IpAddr>,
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.places.give_back(self.source);
    }
}

/// Who counts as one source: an IPv4 address, or the /64 of an IPv6 one, within which a host chooses freely.
fn network(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().expect("an address"))
    }

    // covers: C9a
    #[test]
    fn one_source_gets_a_quarter_of_the_places_and_the_rest_is_for_others() {
        let places = Arc::<Handshakes>::default();
        let held: Vec<_> = (0..16).map(|_| places.take(ip("192.0.2.1"), 64).expect("within its share")).collect();
        assert_eq!(places.take(ip("192.0.2.1"), 64).err(), Some(NoPlace::Source));
        assert_eq!(places.take(ip("::ffff:192.0.2.1"), 64).err(), Some(NoPlace::Source), "the same host");
        let others: Vec<_> =
            (2..50).map(|n| places.take(ip(&format!("192.0.2.{n}")), 64).expect("another source")).collect();
        assert_eq!(places.take(ip("192.0.2.99"), 64).err(), Some(NoPlace::Endpoint));
        drop(held);
        assert!(places.take(ip("192.0.2.1"), 64).is_ok());
        drop(others);
        assert!(places.lock().by_source.is_empty(), "nobody is remembered who holds nothing");
    }

    // covers: C9a
    #[test]
    fn hosts_of_one_ipv6_network_are_one_source() {
        let places = Arc::<Handshakes>::default();
        let _held = [places.take(ip("2001:db8:0:1::1"), 8), places.take(ip("2001:db8:0:1:ffff::2"), 8)];
        assert_eq!(places.take(ip("2001:db8:0:1::3"), 8).err(), Some(NoPlace::Source));
        assert!(places.take(ip("2001:db8:0:2::1"), 8).is_ok());
    }

    // covers: C9a
    #[test]
    fn a_source_may_always_have_one_place() {
        let places = Arc::<Handshakes>::default();
        let first = places.take(ip("192.0.2.1"), 2);
        assert!(first.is_ok());
        assert_eq!(places.take(ip("192.0.2.1"), 2).err(), Some(NoPlace::Source));
        assert!(places.take(ip("192.0.2.2"), 2).is_ok());
    }
    // covers: D6j
    #[test]
    fn an_app_may_have_all_places_for_its_own_tls_and_not_one_more() {
        let places = Arc::<Handshakes>::default();
        let held: Vec<_> = (0..4).map(|_| places.take(None, 4).expect("a place")).collect();
        assert_eq!(places.take(None, 4).err(), Some(NoPlace::Endpoint));
        drop(held);
        assert!(places.take(None, 4).is_ok());
    }
}
