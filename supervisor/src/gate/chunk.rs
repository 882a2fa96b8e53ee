//! The size line of a chunk, and the end of its data.

use super::{Refusal, line::bad_byte};

/// Most digits: 16 hold every size that is accepted.
const DIGITS_MAX: usize = 16;

/// Reads `size CRLF`: the size and the bytes used, or `None` while the line is not whole. Extensions are refused: nobody
/// uses them, and parsers disagree about where they end.
pub(super) fn chunk_size(input: &[u8]) -> Result<Option<(u64, usize)>, Refusal> {
    let mut size: u64 = 0;
    let mut digits = 0;
    for &byte in input {
        let Some(digit) = char::from(byte).to_digit(16) else { break };
        if digits == DIGITS_MAX || size > (u64::MAX >> 5) {
            return Err(Refusal::BadChunk);
        }
        size = size << 4 | u64::from(digit);
        digits += 1;
    }
    match (digits, &input[digits..]) {
        (_, []) | (1.., [b'\r']) => Ok(None),
        (1.., [b'\r', b'\n', ..]) => Ok(Some((size, digits + 2))),
        (_, [b'\n', ..]) => Err(Refusal::BareLf),
        (_, [other, ..]) => Err(bad_byte(*other).filter(|_| *other != b'\r').unwrap_or(Refusal::BadChunk)),
    }
}

/// The CRLF after a chunk's data: 0 when it is not whole yet.
pub(super) fn chunk_end(input: &[u8]) -> Result<usize, Refusal> {
    match input {
        [b'\r', b'\n', ..] => Ok(2),
        [] | [b'\r'] => Ok(0),
        _ => Err(Refusal::BadChunk),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hex_digits_and_crlf_are_a_size_line() {
        for bad in ["\r\n", "g\r\n", "5 \r\n", " 5\r\n", "5;a=b\r\n", "+5\r\n", "-5\r\n", "0x5\r\n", "5\r5"] {
            assert_eq!(chunk_size(bad.as_bytes()), Err(Refusal::BadChunk), "{bad:?}");
        }
        assert_eq!(chunk_size(b"5\n"), Err(Refusal::BareLf));
        assert_eq!(chunk_size(b"\n"), Err(Refusal::BareLf));
        assert_eq!(chunk_size(b"5\0"), Err(Refusal::ControlByte));
        for long in ["ffffffffffffffff\r\n", "8000000000000000\r\n", "00000000000000005\r\n"] {
            assert_eq!(chunk_size(long.as_bytes()), Err(Refusal::BadChunk), "{long:?}");
        }
    }

    #[test]
    fn sizes_are_read_when_the_line_is_whole() {
        assert_eq!(chunk_size(b"1aF\r\nx"), Ok(Some((0x1af, 5))));
        assert_eq!(chunk_size(b"0000000000000005\r\n"), Ok(Some((5, 18))));
        for part in ["", "1", "1a", "1a\r"] {
            assert_eq!(chunk_size(part.as_bytes()), Ok(None));
        }
    }
}
