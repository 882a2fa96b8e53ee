//! How many connections the relay carries at once. The app cannot lock the supervisor out by opening connections, nor
//! callers the app: each direction has a share that the other cannot take.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections kept free for each direction, at most a quarter of all.
const RESERVED: usize = 64;

/// The bound.
#[derive(Debug, Clone)]
pub struct Budget {
    total: Arc<Semaphore>,
    outbound: Arc<Semaphore>,
    inbound: Arc<Semaphore>,
}

/// One connection's place; dropping it frees the place.
#[derive(Debug)]
#[must_use]
pub struct Place {
    _total: OwnedSemaphorePermit,
    _direction: OwnedSemaphorePermit,
}

impl Budget {
    /// Room for `max` connections.
    #[must_use]
    pub fn new(max: usize) -> Self {
        let direction = max - RESERVED.min(max / 4);
        Self {
            total: Arc::new(Semaphore::new(max)),
            outbound: Arc::new(Semaphore::new(direction)),
            inbound: Arc::new(Semaphore::new(direction)),
        }
    }

    /// A place for a connection of the app to the host, if there is one.
    #[must_use]
    pub fn outbound(&self) -> Option<Place> {
        self.place(&self.outbound)
    }

    /// A place for a connection of the host to the app, if there is one.
    #[must_use]
    pub fn inbound(&self) -> Option<Place> {
        self.place(&self.inbound)
    }

    fn place(&self, direction: &Arc<Semaphore>) -> Option<Place> {
        let direction = Arc::clone(direction).try_acquire_owned().ok()?;
        let total = Arc::clone(&self.total).try_acquire_owned().ok()?;
        Some(Place { _total: total, _direction: direction })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_direction_can_take_it_all() {
        let budget = Budget::new(900);
        let outbound: Vec<Place> = std::iter::from_fn(|| budget.outbound()).collect();
        assert_eq!(outbound.len(), 836);
        let inbound: Vec<Place> = std::iter::from_fn(|| budget.inbound()).collect();
        assert_eq!(inbound.len(), 64);
        drop(outbound);
        assert!(budget.outbound().is_some());
    }

    #[test]
    fn one_connection_is_enough_for_one_place() {
        let budget = Budget::new(1);
        let place = budget.inbound();
        assert!(place.is_some() && budget.outbound().is_none());
    }
}
