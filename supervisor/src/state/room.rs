//! Descriptors that lead to the other side: to apps and to destinations.
//!
//! A connection of a caller stands for two descriptors in the budget: its own, and one to the other side. Callers of HTTP/2
//! need more than one, and what waits in a pool belongs to no caller. So each such connection is counted where it is held:
//!
//! ```text
//! the first of a caller's connection ----> its own place                      back in a pool: a spare of the endpoint
//! every other, and shared ones of HTTP/2 -> a spare, or else a place of the budget, or else refused
//! ```

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::budget::Place;
use super::endpoint::{Endpoint, NoRoom};

/// What one connection of a caller may have open to the other side.
pub struct Room {
    endpoint: Arc<Endpoint>,
    own_in_use: Cell<bool>,
}

/// The count of one connection to the other side; given back when dropped.
pub struct Held(Cover);

/// A count that is kept by whoever uses a connection and by the task that runs it, so that it is given back when the descriptor is
/// gone and not before. Who uses the connection may change of what it is one.
#[derive(Clone)]
pub struct Kept(Rc<RefCell<Option<Held>>>);

enum Cover {
    Caller(Rc<Room>),
    Spare(Arc<Endpoint>),
    Place(Arc<Endpoint>, Place),
}

impl Room {
    /// For a connection of a caller that has its place in the budget.
    #[must_use]
    pub fn new(endpoint: &Arc<Endpoint>) -> Rc<Self> {
        Rc::new(Self { endpoint: Arc::clone(endpoint), own_in_use: Cell::new(false) })
    }

    /// Counts a connection that ends with the exchange on it, unless a pool takes it.
    ///
    /// # Errors
    /// When the endpoint's part of the budget is used up, and so is what all share.
    pub fn take(self: &Rc<Self>) -> Result<Held, NoRoom> {
        if self.own_in_use.replace(true) {
            return self.take_lasting();
        }
        Ok(Held(Cover::Caller(Rc::clone(self))))
    }

    /// Counts a connection that may outlast the caller's.
    ///
    /// # Errors
    /// As [`Room::take`].
    pub fn take_lasting(&self) -> Result<Held, NoRoom> {
        if let Some(spare) = spare(&self.endpoint) {
            return Ok(spare);
        }
        let place = self.endpoint.share.take().ok_or(NoRoom::Process)?;
        Ok(Held(Cover::Place(Arc::clone(&self.endpoint), place)))
    }
}

impl Held {
    /// The count of a connection that nobody uses from now on.
    ///
    /// # Errors
    /// The count as it was, until the connection is closed: it must be.
    pub fn idle(self) -> Result<Self, Self> {
        match &self.0 {
            Cover::Spare(_) => Ok(self),
            Cover::Caller(room) => spare(&room.endpoint).ok_or(self),
            Cover::Place(endpoint, _) => spare(endpoint).ok_or(self),
        }
    }

    /// The count of a connection that turned out to outlast the caller's.
    ///
    /// # Errors
    /// As [`Room::take`].
    pub fn lasting(self) -> Result<Self, NoRoom> {
        match &self.0 {
            Cover::Caller(room) => room.take_lasting(),
            Cover::Spare(_) | Cover::Place(..) => Ok(self),
        }
    }
}

impl Kept {
    /// Keeps `held`.
    #[must_use]
    pub fn new(held: Held) -> Self {
        Self(Rc::new(RefCell::new(Some(held))))
    }

    /// As [`Held::idle`]; false when the connection must be closed.
    #[must_use]
    pub fn idle(&self) -> bool {
        let idle = self.0.take().map(Held::idle);
        let is_idle = matches!(idle, Some(Ok(_)));
        self.0.replace(idle.map(|idle| idle.unwrap_or_else(|held| held)));
        is_idle
    }
}

fn spare(endpoint: &Arc<Endpoint>) -> Option<Held> {
    endpoint.share.take_spare().then(|| Held(Cover::Spare(Arc::clone(endpoint))))
}

impl Drop for Held {
    fn drop(&mut self) {
        match &self.0 {
            Cover::Caller(room) => room.own_in_use.set(false),
            Cover::Spare(endpoint) => endpoint.share.give_back_spare(),
            Cover::Place(endpoint, place) => endpoint.share.give_back(*place),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::budget::Budget;
    use crate::state::endpoint::EndpointSpec;
    use crate::state::table::tests::endpoint;

    /// An endpoint with 12 places and 4 spares.
    fn alone() -> Arc<Endpoint> {
        let budget = Budget::of_files(32);
        Endpoint::within(&budget, EndpointSpec::clone(&endpoint("a", "10.0.0.1", 3).spec()))
    }

    fn all(room: &Rc<Room>) -> Vec<Held> {
        std::iter::from_fn(|| room.take().ok()).collect()
    }

    // covers: C10b
    #[test]
    fn what_one_caller_opens_is_bounded_by_its_endpoints_part_and_comes_back() {
        let endpoint = alone();
        let room = Room::new(&endpoint);
        let held = all(&room);
        assert_eq!(held.len(), 1 + 4 + 12);
        assert!(endpoint.take_connection().is_err(), "the places are used up");
        assert_eq!(all(&Room::new(&endpoint)).len(), 1, "what comes with a caller's own place");
        drop(held);
        assert!(endpoint.take_connection().is_ok());
        assert_eq!(all(&room).len(), 17);
    }

    // covers: C10b
    #[test]
    fn what_is_kept_with_a_connection_is_given_back_with_it_whoever_used_it() {
        let endpoint = alone();
        let room = Room::new(&endpoint);
        let (used, connection) = {
            let kept = Kept::new(room.take().expect("its own"));
            (kept.clone(), kept)
        };
        drop(used);
        assert!(room.own_in_use.get(), "the connection is not closed yet");
        assert!(connection.idle() && !room.own_in_use.get(), "a spare now");
        let others: Vec<_> = (0..3).map(|_| spare(&endpoint).expect("a spare")).collect();
        assert!(spare(&endpoint).is_none());
        let second = Kept::new(room.take().expect("its own"));
        assert!(!second.idle() && room.own_in_use.get(), "no spare is left: closed, and counted until then");
        drop((others, connection, second));
        assert!(spare(&endpoint).is_some() && !room.own_in_use.get());
    }

    // covers: C10b
    #[test]
    fn what_waits_in_a_pool_takes_no_place_of_a_caller() {
        let endpoint = alone();
        let idle: Vec<_> = all(&Room::new(&endpoint)).into_iter().filter_map(|held| held.idle().ok()).collect();
        assert_eq!(idle.len(), 4, "the spares");
        let callers: Vec<_> = std::iter::from_fn(|| endpoint.take_connection().ok()).collect();
        assert_eq!(callers.len(), 12);
        assert!(Room::new(&endpoint).take().is_ok_and(|held| held.lasting().is_err()));
    }
}
