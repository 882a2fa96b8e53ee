//! What ends a connection before its peers do.

use crate::reason::Reason;

/// What happened to a connection from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Another policy is active, or the connection has reached its lifetime: decide again.
    PolicyChanged,
    /// Finish what is open, take nothing new.
    Draining,
    /// The caller's certificate has ended: finish what is open, take nothing new.
    PeerEnding(Reason),
    /// The caller is nobody any more: end now.
    PeerEnded(Reason),
    /// As old as it may get: finish what is open, take nothing new.
    Aged,
    /// End now.
    Closed,
}
