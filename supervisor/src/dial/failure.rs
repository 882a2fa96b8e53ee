//! Why a dial failed.

use std::io;
use std::net::SocketAddr;

use crate::reason::Reason;

/// A failed dial: the reason, and the address if one was dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DialFailure {
    /// For the record and the caller.
    pub reason: Reason,
    /// The address that was tried last.
    pub addr: Option<SocketAddr>,
}

impl DialFailure {
    pub(super) const fn new(reason: Reason) -> Self {
        Self { reason, addr: None }
    }

    pub(super) const fn at(reason: Reason, addr: SocketAddr) -> Self {
        Self { reason, addr: Some(addr) }
    }

    pub(super) fn connecting(error: &io::Error, addr: SocketAddr) -> Self {
        let reason = match error.kind() {
            io::ErrorKind::TimedOut => Reason::UpstreamTimeout,
            _ => Reason::UpstreamRefused,
        };
        tracing::debug!(%addr, %error, "dial failed");
        Self::at(reason, addr)
    }
}
