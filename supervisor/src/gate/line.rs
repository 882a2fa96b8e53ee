//! Lines, names and values: the bytes of heads and trailers.

use memchr::memchr;

use super::Refusal;

/// A line without its CRLF, and where the next one begins.
pub(super) struct Line<'a> {
    pub(super) text: &'a [u8],
    pub(super) end: usize,
}

/// The line of `input` that begins at `from`, once it is whole. `seen` remembers how far was searched, so that a head
/// that comes byte by byte is read once.
pub(super) fn next_line<'a>(
    input: &'a [u8],
    from: usize,
    seen: &mut usize,
    limit: usize,
) -> Result<Option<Line<'a>>, Refusal> {
    let start = from.max(*seen);
    let Some(offset) = memchr(b'\n', &input[start..]) else {
        *seen = input.len();
        return Ok(None);
    };
    let end = start + offset + 1;
    if end > limit {
        return Err(Refusal::HeadTooLarge);
    }
    *seen = end;
    let Some(text) = input[from..end - 1].strip_suffix(b"\r") else { return Err(Refusal::BareLf) };
    Ok(Some(Line { text, end }))
}

/// One header or trailer line: both parts checked, the value as it stands after the colon, untrimmed.
pub(super) struct Field<'a> {
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
}

impl<'a> Field<'a> {
    /// Splits and checks a line. `ascii` refuses bytes above 0x7e in the value.
    pub(super) fn parse(line: &'a [u8], ascii: bool) -> Result<Self, Refusal> {
        let Some(length) = line.iter().position(|&byte| !is_token(byte)) else { return Err(Refusal::BadHeaderName) };
        match line[length] {
            b':' if length > 0 => {}
            b' ' | b'\t' if length == 0 => return Err(Refusal::ObsFold),
            b' ' | b'\t' if line[length..].iter().find(|&&byte| byte != b' ' && byte != b'\t') == Some(&b':') => {
                return Err(Refusal::SpaceBeforeColon);
            }
            other => return Err(bad_byte(other).unwrap_or(Refusal::BadHeaderName)),
        }
        let (name, value) = (&line[..length], &line[length + 1..]);
        check_text(value, ascii)?;
        Ok(Self { name, value })
    }

    /// The value without the optional white space around it.
    pub(super) fn trimmed(&self) -> &'a [u8] {
        self.value.trim_ascii()
    }

    /// The value after at most one space, with nothing trimmed: framing headers are written this way by everybody who
    /// means well.
    pub(super) fn exact(&self) -> &'a [u8] {
        self.value.strip_prefix(b" ").unwrap_or(self.value)
    }

    /// Whether the name is `name` (given in lower case with `-`), also when spelled with underscores.
    pub(super) fn is_like(&self, name: &[u8]) -> bool {
        self.name.len() == name.len()
            && self
                .name
                .iter()
                .zip(name)
                .all(|(&got, &want)| got.to_ascii_lowercase() == want || (got == b'_' && want == b'-'))
    }

    /// Whether it may come after the body: nothing that frames, routes, controls or identifies the message.
    pub(super) fn may_trail(&self) -> bool {
        const NEVER: [&[u8]; 21] = [
            b"authorization",
            b"cache-control",
            b"connection",
            b"content-encoding",
            b"content-length",
            b"content-range",
            b"content-type",
            b"cookie",
            b"expect",
            b"forwarded",
            b"host",
            b"keep-alive",
            b"proxy-authorization",
            b"proxy-connection",
            b"set-cookie",
            b"te",
            b"trailer",
            b"transfer-encoding",
            b"upgrade",
            b"x-http-method-override",
            b"x-forwarded-client-cert",
        ];
        !NEVER.iter().any(|name| self.is_like(name))
    }
}

/// Checks a value, a reason phrase or the like: visible bytes, space and tab.
pub(super) fn check_text(text: &[u8], ascii: bool) -> Result<(), Refusal> {
    // Without an early exit the loop runs on whole vectors; which byte it was matters only for refused ones.
    let fine = text.iter().fold(true, |fine, &byte| fine & (byte >= b' ' && byte != 0x7f && byte < 0x80));
    if fine {
        return Ok(());
    }
    for &byte in text {
        match byte {
            b'\t' => {}
            0x80.. if !ascii => {}
            byte => bad_byte(byte).map_or(Ok(()), Err)?,
        }
    }
    Ok(())
}

/// What is wrong with a byte that no text may hold.
pub(super) fn bad_byte(byte: u8) -> Option<Refusal> {
    match byte {
        b'\r' => Some(Refusal::BareCr),
        0..b' ' | 0x7f => Some(Refusal::ControlByte),
        0x80.. => Some(Refusal::NonAscii),
        _ => None,
    }
}

/// Whether a token (RFC 9110 section 5.6.2) may hold the byte.
pub(super) fn is_token(byte: u8) -> bool {
    const TABLE: [bool; 256] = {
        let mut table = [false; 256];
        let mut byte = 0;
        while byte < 128 {
            table[byte] = matches!(byte as u8, b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'!' | b'#'..=b'\'' | b'*'
                | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~');
            byte += 1;
        }
        table
    };
    TABLE[usize::from(byte)]
}

/// Splits a start line at its first two spaces.
pub(super) fn three_parts(line: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let first = memchr(b' ', line)?;
    let second = first + 1 + memchr(b' ', &line[first + 1..])?;
    Some((&line[..first], &line[first + 1..second], &line[second + 1..]))
}
