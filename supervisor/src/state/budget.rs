//! How many connections the process can carry, and each endpoint's share of them.
//!
//! ```text
//! limit of open files
//! |-- 3/4: two descriptors for each connection of the budget, the caller's and one to the other side
//! |   |-- half: guaranteed      equal parts, one for each endpoint: nobody else can take them
//! |   '-- half: shared          whoever comes first
//! |-- 1/8: spare descriptors    equal parts as well: connections to the other side that wait in pools or are a caller's
//! |                             second and further ones (see `room`); more of these take places of the budget
//! '-- 1/8: listeners and everything else
//! ```
//! What novalet says of an endpoint, its caps and rates, holds for all instances of the node together: each live one has its part.
//!
//! An endpoint uses its own part first. When another endpoint joins, parts get smaller; what an endpoint holds above its
//! part by then stays until it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The budget of the process.
#[derive(Debug)]
pub struct Budget {
    connections: usize,
    spare: usize,
    endpoints: AtomicUsize,
    shared_used: AtomicUsize,
    live_slots: AtomicU32,
}

/// The budget as an operator sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetView {
    /// All connections that the process may carry.
    pub connections: usize,
    /// Of them, those that belong to each endpoint alone.
    pub guaranteed: usize,
    /// Those that all endpoints share.
    pub shared: usize,
    /// Shared ones that are in use.
    pub shared_used: usize,
}

impl Budget {
    /// What a limit of open files allows.
    #[must_use]
    pub fn of_files(limit: u64) -> Arc<Self> {
        let part = usize::try_from(limit / 8).unwrap_or(usize::MAX);
        Self::new(part.saturating_mul(3), part)
    }

    /// Without a limit, for an endpoint that stands alone.
    #[must_use]
    pub fn unlimited() -> Arc<Self> {
        Self::new(usize::MAX, usize::MAX)
    }

    fn new(connections: usize, spare: usize) -> Arc<Self> {
        Arc::new(Self {
            connections,
            spare,
            endpoints: AtomicUsize::new(0),
            shared_used: AtomicUsize::new(0),
            live_slots: AtomicU32::new(1),
        })
    }

    /// The budget as of now.
    #[must_use]
    pub fn view(&self) -> BudgetView {
        let guaranteed = self.guaranteed();
        BudgetView {
            connections: self.connections,
            guaranteed,
            shared: self.shared(guaranteed),
            shared_used: self.shared_used.load(Ordering::Relaxed),
        }
    }

    /// So many instances serve the same endpoints now; 0 is nobody's answer and counts as one.
    pub fn share_with(&self, live_slots: u32) {
        self.live_slots.store(live_slots.max(1), Ordering::Relaxed);
    }

    fn guaranteed(&self) -> usize {
        self.connections / 2 / self.endpoints.load(Ordering::Relaxed).max(1)
    }

    fn shared(&self, guaranteed: usize) -> usize {
        self.connections - guaranteed * self.endpoints.load(Ordering::Relaxed)
    }
}

/// One endpoint's part of the budget.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    own_used: AtomicUsize,
    spare_used: AtomicUsize,
}

/// Where a connection's place came from, and goes back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Own,
    Shared,
}

impl Share {
    pub(super) fn join(budget: &Arc<Budget>) -> Self {
        budget.endpoints.fetch_add(1, Ordering::Relaxed);
        Self { budget: Arc::clone(budget), own_used: AtomicUsize::new(0), spare_used: AtomicUsize::new(0) }
    }

    /// A place for a connection; `None` when the part is used up and so is what all share.
    pub(super) fn take(&self) -> Option<Place> {
        let guaranteed = self.budget.guaranteed();
        if one_more(&self.own_used, guaranteed) {
            return Some(Place::Own);
        }
        one_more(&self.budget.shared_used, self.budget.shared(guaranteed)).then_some(Place::Shared)
    }

    /// One of the endpoint's spare descriptors; false when they are used up.
    pub(super) fn take_spare(&self) -> bool {
        one_more(&self.spare_used, self.budget.spare / self.budget.endpoints.load(Ordering::Relaxed).max(1))
    }

    pub(super) fn give_back_spare(&self) {
        self.spare_used.fetch_sub(1, Ordering::Relaxed);
    }

    /// This instance's part of what an endpoint may have: at least one of it, and all of nothing.
    pub(super) fn part_of(&self, whole: u64) -> u64 {
        let slots = u64::from(self.budget.live_slots.load(Ordering::Relaxed));
        if whole == 0 { 0 } else { (whole / slots).max(1) }
    }

    pub(super) fn give_back(&self, place: Place) {
        match place {
            Place::Own => self.own_used.fetch_sub(1, Ordering::Relaxed),
            Place::Shared => self.budget.shared_used.fetch_sub(1, Ordering::Relaxed),
        };
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.endpoints.fetch_sub(1, Ordering::Relaxed);
    }
}

fn one_more(used: &AtomicUsize, most: usize) -> bool {
    used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| (used < most).then_some(used + 1)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: C10b
    #[test]
    fn no_endpoint_can_take_anothers_share() {
        // T14
        let budget = Budget::new(40, 8);
        let (greedy, quiet) = (Share::join(&budget), Share::join(&budget));
        let taken: Vec<_> = std::iter::from_fn(|| greedy.take()).collect();
        assert_eq!(taken.len(), 30, "its own ten and all that is shared");
        for _ in 0..10 {
            assert_eq!(quiet.take(), Some(Place::Own));
        }
        assert_eq!(quiet.take(), None);
        assert_eq!(budget.view(), BudgetView { connections: 40, guaranteed: 10, shared: 20, shared_used: 20 });
        for place in taken {
            greedy.give_back(place);
        }
        assert_eq!(quiet.take(), Some(Place::Shared));
    }

    // covers: C10b
    #[test]
    fn an_endpoint_that_joins_a_full_node_has_its_share_at_once() {
        let budget = Budget::new(40, 8);
        let first = Share::join(&budget);
        assert_eq!(std::iter::from_fn(|| first.take()).count(), 40);
        let second = Share::join(&budget);
        assert_eq!(std::iter::from_fn(|| second.take()).count(), 10);
        drop(second);
        assert_eq!(budget.view().guaranteed, 20);
    }

    // covers: C10b
    #[test]
    fn spare_descriptors_have_equal_parts_too() {
        let budget = Budget::new(40, 8);
        let (greedy, quiet) = (Share::join(&budget), Share::join(&budget));
        assert_eq!(std::iter::repeat_with(|| greedy.take_spare()).take_while(|taken| *taken).count(), 4);
        assert!(quiet.take_spare());
        greedy.give_back_spare();
        assert!(greedy.take_spare() && !greedy.take_spare());
    }

    // covers: C9e
    #[test]
    fn what_an_endpoint_may_have_is_divided_by_those_who_serve_it() {
        let budget = Budget::unlimited();
        let share = Share::join(&budget);
        assert_eq!(share.part_of(900), 900, "alone until somebody says otherwise");
        for (slots, part) in [(0, 900), (1, 900), (2, 450), (7, 128), (1000, 1), (u32::MAX, 1)] {
            budget.share_with(slots);
            assert_eq!((share.part_of(900), share.part_of(0)), (part, 0), "{slots}");
        }
    }

    // covers: C10b
    #[test]
    fn the_budget_leaves_a_quarter_of_the_files_for_everything_else() {
        assert_eq!(Budget::of_files(1024).view().connections, 384);
        assert_eq!(Budget::of_files(0).view().connections, 0);
    }
}
