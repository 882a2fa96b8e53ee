//! Messages of an ICMP connection: what the relay asks for and what it is told. Both directions have the same layout:
//!
//! ```text
//! offset 0    1            5       7
//!        type destination  id      sequence     type: 1 request (guest to host), 2 reply (host to guest)
//!        u8   IPv4 address u16     u16          numbers are big endian
//! ```
//!
//! No payload crosses: what the app put into its ping stays with the relay, and what the supervisor sends is its own. Id and
//! sequence are those of the app; they only tell its pings apart and go no further than the supervisor. A ping that is
//! refused or stays without an answer gets no message: to the app both are silence, and the audit log says which it was.

use std::net::Ipv4Addr;

/// Length of a message, in bytes.
pub const LEN: usize = 9;

/// One ping of the app, by everything that tells it from its others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Echo {
    /// Who is pinged.
    pub destination: Ipv4Addr,
    /// The app's identifier.
    pub id: u16,
    /// The app's sequence number.
    pub sequence: u16,
}

/// A whole message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// Guest to host: please ping.
    Request(Echo),
    /// Host to guest: the destination answered.
    Reply(Echo),
}

/// A message of no known type. The connection cannot be resynchronised: close it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown type of ICMP message")]
pub struct UnknownMessage;

impl Message {
    /// The bytes on the wire.
    #[must_use]
    pub fn encode(self) -> [u8; LEN] {
        let (kind, echo) = match self {
            Self::Request(echo) => (1, echo),
            Self::Reply(echo) => (2, echo),
        };
        let [a, b, c, d] = echo.destination.octets();
        let ([id_high, id_low], [high, low]) = (echo.id.to_be_bytes(), echo.sequence.to_be_bytes());
        [kind, a, b, c, d, id_high, id_low, high, low]
    }

    /// Parses a message.
    ///
    /// # Errors
    /// On an unknown type; every other field may have any value.
    pub fn parse(bytes: [u8; LEN]) -> Result<Self, UnknownMessage> {
        let [kind, a, b, c, d, id_high, id_low, high, low] = bytes;
        let echo = Echo {
            destination: Ipv4Addr::new(a, b, c, d),
            id: u16::from_be_bytes([id_high, id_low]),
            sequence: u16::from_be_bytes([high, low]),
        };
        match kind {
            1 => Ok(Self::Request(echo)),
            2 => Ok(Self::Reply(echo)),
            _ => Err(UnknownMessage),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // covers: D10e
    #[test]
    fn the_layout_is_as_documented() {
        let echo = Echo { destination: Ipv4Addr::new(10, 64, 3, 1), id: 0x1234, sequence: 7 };
        assert_eq!(Message::Request(echo).encode(), [1, 10, 64, 3, 1, 0x12, 0x34, 0, 7]);
        assert_eq!(Message::Reply(echo).encode()[0], 2);
    }

    proptest! {
        // covers: D10e, D15a
        #[test]
        fn fuzz_smoke_no_bytes_panic_and_what_parses_round_trips(bytes in any::<[u8; LEN]>()) {
            match Message::parse(bytes) {
                Ok(message) => prop_assert_eq!(message.encode(), bytes),
                Err(UnknownMessage) => prop_assert!(!(1..=2).contains(&bytes[0])),
            }
        }
    }
}
