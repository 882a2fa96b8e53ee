//! What passes on a connection of kind [`crate::hello::Kind::Trust`]: the supervisor says which CAs the guest shall trust, the
//! guest says what became of that. The connection stays open, and the supervisor speaks again when it changes.
//!
//! ```text
//! supervisor --> guest    offset 0              4
//!                                length n (u32) PEM (n bytes)
//! guest --> supervisor    one byte for each: 1 installed, 0 not
//! ```
//!
//! The length is big endian and at most [`MAX`]. Zero means that no rule of the pod lets the supervisor look into its TLS:
//! there is nothing to install. An end before the last byte means "not now"; after any end the guest asks again. The text holds
//! certificates and nothing else, all that count, so that each answer replaces the one before; no key ever crosses this channel.
//! A guest that says nothing, and ends the connection after an answer, is served as well: it may install that one alone.

/// Length of the fixed part, in bytes.
pub const HEAD_LEN: usize = 4;
/// The guest's byte for an answer that is in force for every program that starts from now on.
pub const INSTALLED: u8 = 1;
/// The guest's byte for an answer that it cannot put in force.
pub const NOT_INSTALLED: u8 = 0;
/// Most bytes of PEM: a CA with thousands of names. More is not an answer.
pub const MAX: usize = 256 * 1024;

/// The text is longer than [`MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the certificates are longer than {MAX} bytes")]
pub struct TooLong;

/// The whole answer; an empty `pem` says that there is nothing to install.
///
/// # Errors
/// When `pem` is too long.
pub fn encode(pem: &str) -> Result<Vec<u8>, TooLong> {
    let length = u32::try_from(pem.len()).ok().filter(|_| pem.len() <= MAX).ok_or(TooLong)?;
    let mut out = Vec::with_capacity(HEAD_LEN + pem.len());
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(pem.as_bytes());
    Ok(out)
}

/// How many bytes of PEM follow the fixed part.
///
/// # Errors
/// When there would be too many.
pub fn parse_head(head: [u8; HEAD_LEN]) -> Result<usize, TooLong> {
    usize::try_from(u32::from_be_bytes(head)).ok().filter(|length| *length <= MAX).ok_or(TooLong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_too_long_is_none() {
        assert_eq!(parse_head([0xff; 4]), Err(TooLong));
        assert_eq!(parse_head([0, 4, 0, 1]), Err(TooLong));
        assert_eq!(parse_head([0, 4, 0, 0]), Ok(MAX));
        assert_eq!(encode(&"x".repeat(MAX + 1)), Err(TooLong));
    }

    #[test]
    fn what_is_sent_can_be_read() {
        for pem in ["", "-----BEGIN CERTIFICATE-----\n"] {
            let bytes = encode(pem).expect("short");
            let (head, rest) = bytes.split_at(HEAD_LEN);
            assert_eq!(parse_head(head.try_into().expect("4 bytes")), Ok(pem.len()));
            assert_eq!(rest, pem.as_bytes());
        }
    }
}
