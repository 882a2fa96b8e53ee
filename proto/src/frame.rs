//! Records of the framed mode: they carry half-close and reset over muxers that lose them (several hybrid vsock muxers do).
//!
//! ```text
//! type u8 | length u16, big endian | payload
//! DATA 0  | 1..=MAX_PAYLOAD        | bytes
//! FIN  1  | 0                      | the sender will write no more; it still reads
//! RST  2  | 0                      | the sender's peer was reset; nothing follows
//! ```
//!
//! A connection that ends without FIN or RST in a direction was cut: the receiver treats it as a reset, never as an end.

/// Bytes of a record's head.
pub const HEAD_LEN: usize = 3;
/// Longest payload of a DATA record, in bytes.
pub const MAX_PAYLOAD: usize = 65_535;

/// The head of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// This many payload bytes follow (at least one).
    Data(usize),
    /// No more bytes in this direction.
    Fin,
    /// The stream was reset.
    Rst,
}

/// A record head that breaks the layout. The connection cannot be resynchronised: close it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("broken record head")]
pub struct BrokenRecord;

impl Record {
    /// The head on the wire. A `Data` longer than [`MAX_PAYLOAD`] is cut to it: send the rest as another record.
    #[must_use]
    pub fn encode(self) -> [u8; HEAD_LEN] {
        let (kind, len) = match self {
            Self::Data(len) => (0, u16::try_from(len).unwrap_or(u16::MAX)),
            Self::Fin => (1, 0),
            Self::Rst => (2, 0),
        };
        let [high, low] = len.to_be_bytes();
        [kind, high, low]
    }

    /// Parses a head.
    ///
    /// # Errors
    /// On an unknown type, an empty DATA record, or a FIN or RST with a payload.
    pub fn parse(head: [u8; HEAD_LEN]) -> Result<Self, BrokenRecord> {
        match (head[0], usize::from(u16::from_be_bytes([head[1], head[2]]))) {
            (0, len) if len > 0 => Ok(Self::Data(len)),
            (1, 0) => Ok(Self::Fin),
            (2, 0) => Ok(Self::Rst),
            _ => Err(BrokenRecord),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_round_trip_and_everything_else_is_broken() {
        for record in [Record::Data(1), Record::Data(MAX_PAYLOAD), Record::Fin, Record::Rst] {
            assert_eq!(Record::parse(record.encode()), Ok(record));
        }
        for broken in [[0, 0, 0], [1, 0, 1], [2, 1, 0], [3, 0, 0], [255, 255, 255]] {
            assert_eq!(Record::parse(broken), Err(BrokenRecord));
        }
    }
}
