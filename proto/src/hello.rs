//! The hello: the first bytes of every connection between supervisor and relay, in both directions.
//!
//! ```text
//! offset 0   4        5      6       7            8          24           24+n
//!        magic version kind  flags   target len n token (16) target (n bytes)
//! ```
//!
//! All fields are fixed in place and the target is at most 255 bytes, so a receiver reads [`HEAD_LEN`] bytes, then `n`.
//! A hello never says who is calling: identity is the peer CID or the socket path, set by the host. The token proves that
//! the guest belongs to this boot of the endpoint, nothing more.
//!
//! After a host-to-guest hello the relay answers one [`Status`] byte. A guest-to-host hello gets no answer: the
//! supervisor either serves the connection or closes it. What a [`Kind::Trust`] connection is served is in [`crate::trust`].

/// First four bytes.
pub const MAGIC: [u8; 4] = *b"NOVR";
/// The only version so far.
pub const VERSION: u8 = 1;
/// Length of the fixed part, in bytes.
pub const HEAD_LEN: usize = 24;
/// Longest target, in bytes.
pub const TARGET_MAX: usize = 255;

/// What the connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Guest to host: the app's HTTP proxy or SOCKS5 connection; the target is empty.
    Proxy = 1,
    /// Guest to host: a fixed dependency; the target is `name:port`.
    Dependency = 2,
    /// Guest to host: [`crate::icmp`] messages; the target is empty.
    Icmp = 3,
    /// Guest to host: a connection to the egress socket of the guest, served as [`Kind::Proxy`]; the target is the socket's
    /// file name. Sockets of fixed dependencies are [`Kind::Dependency`].
    Unix = 4,
    /// Guest to host: kept open while the guest lives; the target is empty.
    Presence = 5,
    /// Guest to host: asks for the CAs that the guest shall trust, and is kept open; the target is empty. See
    /// [`crate::trust`].
    Trust = 6,
    /// Host to guest: a TCP port of the app; the target is the port in decimal.
    Tcp = 16,
    /// Host to guest: a Unix socket of the app; the target is one path segment.
    Socket = 17,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Proxy,
            2 => Self::Dependency,
            3 => Self::Icmp,
            4 => Self::Unix,
            5 => Self::Presence,
            6 => Self::Trust,
            16 => Self::Tcp,
            17 => Self::Socket,
            _ => return None,
        })
    }

    /// Whether a guest may send this kind.
    #[must_use]
    pub fn is_from_guest(self) -> bool {
        (self as u8) < 16
    }

    fn wants_target(self) -> bool {
        matches!(self, Self::Dependency | Self::Unix | Self::Tcp | Self::Socket)
    }
}

/// Bit of `flags`: what follows the hello (and the status byte) is [`crate::frame`] records instead of raw bytes, because
/// the muxer in between loses half-close.
pub const FLAG_FRAMED: u8 = 1;

/// A whole hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// What the connection is for.
    pub kind: Kind,
    /// Records instead of raw bytes from here on.
    pub framed: bool,
    /// Boot token of the endpoint.
    pub token: [u8; 16],
    /// Meaning depends on the kind; printable ASCII.
    pub target: String,
}

/// Why a hello is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// Does not start with [`MAGIC`].
    #[error("not a nova hello")]
    Magic,
    /// A version that this build does not speak.
    #[error("hello version is not supported")]
    Version,
    /// A kind that this build does not know.
    #[error("unknown kind of hello")]
    Kind,
    /// Reserved flag bits are set.
    #[error("reserved flag bits are set")]
    Flags,
    /// A target is missing, not wanted by the kind, too long or not printable ASCII.
    #[error("the target does not fit the kind of hello")]
    Target,
}

/// The fixed part, parsed: what is left to read is `target_len` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// What the connection is for.
    pub kind: Kind,
    framed: bool,
    token: [u8; 16],
    /// Bytes of target that follow.
    pub target_len: usize,
}

/// Parses the fixed part.
///
/// # Errors
/// When a field is not exactly what the layout allows.
pub fn parse_head(bytes: &[u8; HEAD_LEN]) -> Result<Head, HelloError> {
    if bytes[..4] != MAGIC {
        return Err(HelloError::Magic);
    }
    if bytes[4] != VERSION {
        return Err(HelloError::Version);
    }
    let kind = Kind::from_byte(bytes[5]).ok_or(HelloError::Kind)?;
    if bytes[6] & !FLAG_FRAMED != 0 {
        return Err(HelloError::Flags);
    }
    let target_len = usize::from(bytes[7]);
    if kind.wants_target() != (target_len > 0) {
        return Err(HelloError::Target);
    }
    let mut token = [0; 16];
    token.copy_from_slice(&bytes[8..24]);
    Ok(Head { kind, framed: bytes[6] & FLAG_FRAMED != 0, token, target_len })
}

impl Head {
    /// Joins the fixed part and the target bytes.
    ///
    /// # Errors
    /// When the length differs from the head's or a byte is not printable ASCII.
    pub fn with_target(self, target: &[u8]) -> Result<Hello, HelloError> {
        if target.len() != self.target_len || !target.iter().all(u8::is_ascii_graphic) {
            return Err(HelloError::Target);
        }
        let target = String::from_utf8(target.to_vec()).map_err(|_| HelloError::Target)?;
        Ok(Hello { kind: self.kind, framed: self.framed, token: self.token, target })
    }
}

impl Hello {
    /// The bytes on the wire.
    ///
    /// # Errors
    /// When the target does not fit the kind.
    pub fn encode(&self) -> Result<Vec<u8>, HelloError> {
        let target = self.target.as_bytes();
        let fits = target.len() <= TARGET_MAX && target.iter().all(u8::is_ascii_graphic);
        if !fits || self.kind.wants_target() == target.is_empty() {
            return Err(HelloError::Target);
        }
        let mut out = Vec::with_capacity(HEAD_LEN + target.len());
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        out.push(self.kind as u8);
        out.push(if self.framed { FLAG_FRAMED } else { 0 });
        out.push(u8::try_from(target.len()).map_err(|_| HelloError::Target)?);
        out.extend_from_slice(&self.token);
        out.extend_from_slice(target);
        Ok(out)
    }
}

/// The relay's one-byte answer to a host-to-guest hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The app accepted; its bytes follow.
    Ok = 0,
    /// The app refused the connection.
    Refused = 1,
    /// Nothing is there: no such port or socket is declared.
    Absent = 2,
    /// The relay will not: wrong token, wrong peer, wrong kind.
    Denied = 3,
    /// The app did not accept in time.
    Timeout = 4,
}

impl Status {
    /// Reads the status byte.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Ok,
            1 => Self::Refused,
            2 => Self::Absent,
            3 => Self::Denied,
            4 => Self::Timeout,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(bytes: &[u8]) -> Result<Hello, HelloError> {
        let head = parse_head(bytes[..HEAD_LEN].try_into().expect("24 bytes"))?;
        head.with_target(&bytes[HEAD_LEN..])
    }

    fn proxy() -> Vec<u8> {
        Hello { kind: Kind::Proxy, framed: true, token: [9; 16], target: String::new() }.encode().expect("valid")
    }

    #[test]
    fn every_reserved_value_is_refused() {
        for (at, value, error) in [
            (0, b'X', HelloError::Magic),
            (4, 2, HelloError::Version),
            (5, 0, HelloError::Kind),
            (5, 18, HelloError::Kind),
            (6, 2, HelloError::Flags),
            (7, 1, HelloError::Target),
        ] {
            let mut bytes = proxy();
            bytes[at] = value;
            assert_eq!(parse(&bytes), Err(error), "byte {at} = {value}");
        }
    }

    #[test]
    fn targets_are_printable_ascii() {
        let hello = Hello { kind: Kind::Dependency, framed: false, token: [0; 16], target: "db.t.nova:5432".into() };
        assert_eq!(parse(&hello.encode().expect("valid")), Ok(hello.clone()));
        for bad in ["", "a b", "a\n", "é"] {
            assert_eq!(Hello { target: bad.into(), ..hello.clone() }.encode(), Err(HelloError::Target));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_what_parses_round_trips(bytes in proptest::collection::vec(any::<u8>(), HEAD_LEN..HEAD_LEN + 300)) {
            if let Ok(hello) = parse(&bytes) {
                prop_assert_eq!(hello.encode().expect("a parsed hello encodes"), bytes);
            }
        }
    }
}
