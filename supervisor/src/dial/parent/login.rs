//! User and password towards a proxy (RFC 7617).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// Longest line; more is another file.
const MAX_LINE: usize = 512;

/// `user:password` in the form in which it is sent. It has no Debug, and is overwritten when it is dropped.
pub(super) struct Login(Zeroizing<Vec<u8>>);

impl Login {
    /// The one line of a file. Its end may be missing.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let line = text.strip_suffix(b"\n").unwrap_or(text);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let visible = std::str::from_utf8(line).is_ok_and(|line| !line.chars().any(char::is_control));
        let has_user = line.iter().position(|byte| *byte == b':').is_some_and(|at| at > 0);
        if line.len() > MAX_LINE || !visible || !has_user {
            return None;
        }
        // One allocation: a growing buffer would leave copies behind.
        let mut encoded = Zeroizing::new(vec![0; line.len().div_ceil(3) * 4]);
        let length = STANDARD.encode_slice(line, &mut encoded).ok()?;
        encoded.truncate(length);
        Some(Self(encoded))
    }

    pub(super) fn encoded(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: D11e
    #[test]
    fn a_login_is_one_line_with_a_user() {
        let encoded = |text: &[u8]| Login::parse(text).map(|login| login.encoded().to_vec());
        for good in [&b"user:pass"[..], b"user:pass\n", b"user:pass\r\n"] {
            assert_eq!(encoded(good).as_deref(), Some(&b"dXNlcjpwYXNz"[..]));
        }
        assert!(encoded(b"user:").is_some() && encoded("us\u{e9}r:a:b".as_bytes()).is_some());
        for bad in [&b""[..], b"\n", b"user", b":pass", b"a:b\nc:d", b"a:b\0", b"a:\xff", &[b'a'; 600]] {
            assert!(encoded(bad).is_none(), "{bad:?}");
        }
    }
}
