//! The one canonical form of a request path: it is decided on and exactly these bytes are forwarded.
//!
//! Nothing is repaired that two servers could read in two ways. What is left to normalise is only the spelling of
//! percent escapes: escapes of unreserved characters are decoded and the hex digits of the others become upper case.
//!
//! One thing stays that servers do read in two ways: `%2F`, a separator for some of them and a part of a name for others.
//! A path that has it keeps it, holds every check of this module in both readings, and is matched only by rules that say so.

pub mod pattern;

use thiserror::Error;

/// Longest path accepted, in bytes. Common servers stop at the same size.
pub const MAX_PATH: usize = 8 * 1024;
/// Longest query accepted, in bytes. It is only carried, never matched.
pub const MAX_QUERY: usize = 32 * 1024;
/// An escaped slash as a canonical path spells it.
const ESCAPED_SLASH: &str = "%2F";

/// Why a request target is refused. All of these are answered with 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PathError {
    /// Not origin-form: empty, or no `/` at the start.
    #[error("the target does not start with '/'")]
    NotOriginForm,
    /// Longer than [`MAX_PATH`].
    #[error("the path is longer than {MAX_PATH} bytes")]
    TooLong,
    /// Longer than [`MAX_QUERY`].
    #[error("the query is longer than {MAX_QUERY} bytes")]
    QueryTooLong,
    /// A byte that RFC 3986 does not allow in a path: control, space, non-ASCII or one of `\ < > " { } | ^` and backtick.
    #[error("the path has a byte that is not allowed in a path")]
    ForbiddenByte,
    /// A byte that is not allowed in a query: control, space or non-ASCII.
    #[error("the query has a byte that is not allowed in a query")]
    ForbiddenQueryByte,
    /// `#`: some servers cut the target there, others do not.
    #[error("the target has a fragment")]
    Fragment,
    /// `%` that is not followed by two hex digits.
    #[error("a percent escape is broken")]
    BrokenEscape,
    /// An escaped control character.
    #[error("a control character is escaped in the path")]
    EscapedControl,
    /// `%5C`: a separator for some servers and a plain character for others.
    #[error("a backslash is escaped in the path")]
    EscapedSeparator,
    /// `%25` followed by two hex digits, in any spelling: decodes twice on some servers.
    #[error("a percent escape is escaped itself")]
    DoubleEscape,
    /// Escaped bytes that are a longer spelling of an ASCII character for servers that do not check UTF-8.
    #[error("a character is escaped in more bytes than UTF-8 has for it")]
    OverlongEscape,
    /// `.` or `..` as a segment, in any spelling, also before `;` or spaces and beside an escaped slash.
    #[error("the path has a dot segment")]
    DotSegment,
    /// `//`, also with an escaped slash: merged by some servers.
    #[error("the path has an empty segment")]
    EmptySegment,
}

impl PathError {
    /// The code for logs and metrics.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::NotOriginForm => "not_origin_form",
            Self::TooLong => "path_too_long",
            Self::QueryTooLong => "query_too_long",
            Self::ForbiddenByte => "forbidden_byte",
            Self::ForbiddenQueryByte => "forbidden_query_byte",
            Self::Fragment => "fragment",
            Self::BrokenEscape => "broken_escape",
            Self::EscapedControl => "escaped_control",
            Self::EscapedSeparator => "escaped_separator",
            Self::DoubleEscape => "double_escape",
            Self::OverlongEscape => "overlong_escape",
            Self::DotSegment => "dot_segment",
            Self::EmptySegment => "empty_segment",
        }
    }
}

/// A request path that every server reads the same way, with its query carried along.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CanonicalPath {
    text: String,
    path_len: usize,
}

impl CanonicalPath {
    /// Parses a request target in origin form (`/path?query`).
    ///
    /// # Errors
    /// When two servers could disagree on what the target means: see [`PathError`].
    pub fn parse(target: &[u8]) -> Result<Self, PathError> {
        let (path, query) = match target.iter().position(|byte| *byte == b'?') {
            Some(at) => (&target[..at], Some(&target[at + 1..])),
            None => (target, None),
        };
        let mut text = canonical_text(path)?;
        let path_len = text.len();
        if let Some(query) = query {
            text.push('?');
            text.push_str(checked_query(query)?);
        }
        Ok(Self { text, path_len })
    }

    /// The target `*` of `OPTIONS *`. The caller makes sure that the method is OPTIONS; only a rule that lists `*`
    /// itself matches it.
    #[must_use]
    pub fn asterisk() -> Self {
        Self { text: "*".to_owned(), path_len: 1 }
    }

    /// The path alone: what rules are matched against.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.text[..self.path_len]
    }

    /// Exactly the bytes to forward.
    #[must_use]
    pub fn path_and_query(&self) -> &str {
        &self.text
    }
}

/// Whether `path`, which is canonical, has an escaped slash: only rules that accept one match it.
#[must_use]
pub fn has_escaped_slash(path: &str) -> bool {
    path.contains(ESCAPED_SLASH)
}

fn canonical_text(path: &[u8]) -> Result<String, PathError> {
    if path.first() != Some(&b'/') {
        return Err(PathError::NotOriginForm);
    }
    if path.len() > MAX_PATH {
        return Err(PathError::TooLong);
    }
    let mut text = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        rest = match byte {
            b'#' => return Err(PathError::Fragment),
            b'%' => push_escape(&mut text, after)?,
            _ if is_path_byte(byte) => {
                text.push(char::from(byte));
                after
            }
            _ => return Err(PathError::ForbiddenByte),
        };
    }
    if is_escaped_twice(&text) {
        return Err(PathError::DoubleEscape);
    }
    check_segments(&text)?;
    if has_escaped_slash(&text) {
        check_pieces(&text)?;
    }
    Ok(text)
}

/// Handles what follows a `%` and returns the bytes behind the escape.
fn push_escape<'a>(text: &mut String, after: &'a [u8]) -> Result<&'a [u8], PathError> {
    let value = hex_pair(after).ok_or(PathError::BrokenEscape)?;
    let rest = &after[2..];
    match value {
        0x00..=0x1f | 0x7f => return Err(PathError::EscapedControl),
        b'\\' => return Err(PathError::EscapedSeparator),
        _ if is_overlong(value, rest) => return Err(PathError::OverlongEscape),
        _ => {}
    }
    if is_unreserved(value) {
        text.push(char::from(value));
    } else {
        text.push('%');
        for nibble in [value >> 4, value & 15] {
            text.push(char::from(b"0123456789ABCDEF"[usize::from(nibble)]));
        }
    }
    Ok(rest)
}

/// Whether `first` and the escape behind it begin a sequence that stands for a character of fewer bytes.
fn is_overlong(first: u8, rest: &[u8]) -> bool {
    let second = rest.strip_prefix(b"%").and_then(hex_pair);
    matches!((first, second), (0xc0 | 0xc1, Some(0x80..=0xbf)) | (0xe0, Some(0x80..=0x9f)) | (0xf0, Some(0x80..=0x8f)))
}

/// Looks at the canonical text, because the digits of the inner escape may have been escaped themselves.
fn is_escaped_twice(text: &str) -> bool {
    text.match_indices("%25").any(|(at, _)| hex_pair(&text.as_bytes()[at + 3..]).is_some())
}

fn check_segments(path: &str) -> Result<(), PathError> {
    let mut segments = path[1..].split('/').peekable();
    while let Some(segment) = segments.next() {
        if segment.is_empty() && segments.peek().is_some() {
            return Err(PathError::EmptySegment);
        }
        if is_dots(name_of(segment)) {
            return Err(PathError::DotSegment);
        }
    }
    Ok(())
}

/// The same with the escaped slashes as separators. Here nothing may be empty, neither the end nor what is left of a piece
/// without its parameters: a server that strips those first finds `//` where another one does not.
fn check_pieces(path: &str) -> Result<(), PathError> {
    let segments = path[1..].split('/').filter(|segment| has_escaped_slash(segment));
    for name in segments.flat_map(|segment| segment.split(ESCAPED_SLASH)).map(name_of) {
        if name.is_empty() {
            return Err(PathError::EmptySegment);
        }
        if is_dots(name) {
            return Err(PathError::DotSegment);
        }
    }
    Ok(())
}

/// What is left of a segment for servers that strip its parameters before they resolve dots, where `%3B` is such a `;` for
/// those that decode first, and for servers that drop spaces at the end of a name.
fn name_of(segment: &str) -> &str {
    let head = segment.split(';').next().unwrap_or_default();
    head.split("%3B").next().unwrap_or_default().trim_end_matches("%20")
}

fn is_dots(name: &str) -> bool {
    matches!(name, "." | "..")
}

fn checked_query(query: &[u8]) -> Result<&str, PathError> {
    if query.len() > MAX_QUERY {
        return Err(PathError::QueryTooLong);
    }
    if query.contains(&b'#') {
        return Err(PathError::Fragment);
    }
    if query.iter().any(|byte| !byte.is_ascii_graphic()) {
        return Err(PathError::ForbiddenQueryByte);
    }
    std::str::from_utf8(query).map_err(|_| PathError::ForbiddenQueryByte)
}

fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"\\<>\"{}|^`".contains(&byte)
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn hex_pair(bytes: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
    Some(digit(*bytes.first()?)? << 4 | digit(*bytes.get(1)?)?)
}

#[cfg(test)]
mod tests;
