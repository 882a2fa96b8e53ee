//! What the supervisor answers to a hello of kind [`crate::hello::Kind::Trust`]: the CA that the guest shall trust.
//!
//! ```text
//! offset 0              4              4+n
//!        length n (u32) PEM (n bytes)       then the supervisor ends the connection
//! ```
//!
//! The length is big endian and at most [`MAX`]. Zero means that no rule of the pod lets the supervisor look into its TLS:
//! there is nothing to install. An end before the last byte means "not now", and the guest asks again. The text holds
//! certificates and nothing else; no key ever crosses this channel.

/// Length of the fixed part, in bytes.
pub const HEAD_LEN: usize = 4;
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
