//! What the services behind a gate may know about it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, Ordering::Relaxed},
};

use super::Refusal;

#[derive(Debug, Default)]
struct Shared {
    refusal: AtomicU8,
    sent: AtomicU8,
    spent: AtomicBool,
}

/// A view of a [`super::io::GatedIo`] that is cheap to clone. It only tells; nobody steers a gate through it.
#[derive(Debug, Clone, Default)]
pub struct GateHandle(Arc<Shared>);

impl GateHandle {
    /// Why bytes of the peer were refused, if they were.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        Refusal::from_number(self.0.refusal.load(Relaxed))
    }

    /// Why bytes of our own were not fit to be sent, if that happened: a fault on this side of the connection.
    #[must_use]
    pub fn sent_refusal(&self) -> Option<Refusal> {
        Refusal::from_number(self.0.sent.load(Relaxed))
    }

    /// Whether the connection may carry another request: nothing was refused, no answer ended with the connection, and
    /// HTTP still goes on.
    #[must_use]
    pub fn is_reusable(&self) -> bool {
        !self.0.spent.load(Relaxed)
    }

    pub(super) fn set_refusal(&self, refusal: Refusal) {
        self.0.refusal.store(refusal as u8, Relaxed);
        self.set_spent();
    }

    pub(super) fn set_sent_refusal(&self, refusal: Refusal) {
        self.0.sent.store(refusal as u8, Relaxed);
        self.set_spent();
    }

    pub(super) fn set_spent(&self) {
        self.0.spent.store(true, Relaxed);
    }
}
