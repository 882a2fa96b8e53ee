//! Pings for permits.

use std::io;
use std::net::IpAddr;

use super::{DialFailure, Dialer};
use crate::decide::Permit;
use crate::net::ping::{self, PingError};
use crate::reason::Reason;
use crate::state::endpoint::Endpoint;

impl Dialer {
    /// Pings the address that a permit for ICMP names, from the caller's own address, and waits for the answer.
    ///
    /// # Errors
    /// [`DialFailure`] with the reason for the record.
    pub async fn ping(&self, permit: &Permit, caller: &Endpoint) -> Result<(), DialFailure> {
        let to = permit.ping().ok_or(DialFailure::new(Reason::NoGrant))?.address;
        self.may_ping(IpAddr::V4(to)).map_err(|why| DialFailure::forbidden(why, IpAddr::V4(to), 0))?;
        let spec = caller.spec();
        let Some(IpAddr::V4(from)) = spec.ips().find(IpAddr::is_ipv4) else {
            return Err(DialFailure::new(Reason::Unsupported));
        };
        let sequence = self.next_sequence.get();
        self.next_sequence.set(sequence.wrapping_add(1));
        ping::echo(from, to, sequence).await.map_err(|error| match error {
            PingError::NotAllowed(_) => {
                tracing::warn!(%error, "a ping that a rule grants was not sent");
                DialFailure::new(Reason::PingUnavailable)
            }
            PingError::Io(error) => {
                tracing::debug!(%to, %error, "no answer to a ping");
                let timed_out = error.kind() == io::ErrorKind::TimedOut;
                DialFailure::new(if timed_out { Reason::UpstreamTimeout } else { Reason::UpstreamRefused })
            }
        })
    }
}
