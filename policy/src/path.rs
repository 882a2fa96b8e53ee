//! The one canonical form of a request path: it is decided on and exactly these bytes are forwarded.
//!
//! Nothing is repaired that two servers could read in two ways. What is left to normalise is only the spelling of
//! percent escapes: escapes of unreserved characters are decoded and the hex digits of the others become upper case.

pub mod pattern;

use thiserror::Error;

/// Longest path accepted, in bytes. Common servers stop at the same size.
pub const MAX_PATH: usize = 8 * 1024;
/// Longest query accepted, in bytes. It is only carried, never matched.
pub const MAX_QUERY: usize = 32 * 1024;

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
    /// `%2F` or `%5C`: a separator for some servers and a plain character for others.
    #[error("a path separator is escaped in the path")]
    EscapedSeparator,
    /// `%25` followed by two hex digits, in any spelling: decodes twice on some servers.
    #[error("a percent escape is escaped itself")]
    DoubleEscape,
    /// Escaped bytes that are a longer spelling of an ASCII character for servers that do not check UTF-8.
    #[error("a character is escaped in more bytes than UTF-8 has for it")]
    OverlongEscape,
    /// `.` or `..` as a segment, in any spelling and also before `;` or spaces.
    #[error("the path has a dot segment")]
    DotSegment,
    /// `//`: merged by some servers.
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
    Ok(text)
}

/// Handles what follows a `%` and returns the bytes behind the escape.
fn push_escape<'a>(text: &mut String, after: &'a [u8]) -> Result<&'a [u8], PathError> {
    let value = hex_pair(after).ok_or(PathError::BrokenEscape)?;
    let rest = &after[2..];
    match value {
        0x00..=0x1f | 0x7f => return Err(PathError::EscapedControl),
        b'/' | b'\\' => return Err(PathError::EscapedSeparator),
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
        // Some servers strip parameters before they resolve dots; "%3B" is such a ';' for those that decode first.
        let head = segment.split(';').next().unwrap_or_default();
        let head = head.split("%3B").next().unwrap_or_default();
        // And some drop spaces at the end of a name.
        let head = head.trim_end_matches("%20");
        if matches!(head, "." | "..") {
            return Err(PathError::DotSegment);
        }
    }
    Ok(())
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(target: &str) -> Result<CanonicalPath, PathError> {
        CanonicalPath::parse(target.as_bytes())
    }

    // covers: A7a
    #[test]
    fn every_ambiguous_target_is_refused_with_its_own_code() {
        for (target, code) in [
            ("", "not_origin_form"),
            ("v1", "not_origin_form"),
            ("http://h/", "not_origin_form"),
            ("*", "not_origin_form"),
            ("/v1/orders/%2e%2e/admin", "dot_segment"),
            ("/v1/orders/../admin", "dot_segment"),
            ("/v1/orders/.%2E/admin", "dot_segment"),
            ("/v1/orders/..;/admin", "dot_segment"),
            ("/v1/orders/..;x=1/admin", "dot_segment"),
            ("/v1/orders/..%3B/admin", "dot_segment"),
            ("/v1/orders/..%3bx/admin", "dot_segment"),
            ("/.", "dot_segment"),
            ("/a/..", "dot_segment"),
            ("//v1/orders/1", "empty_segment"),
            ("/a//b", "empty_segment"),
            ("/a//", "empty_segment"),
            ("/a%2fb", "escaped_separator"),
            ("/a%5Cb", "escaped_separator"),
            ("/a%252e", "double_escape"),
            ("/a%252f..", "double_escape"),
            ("/a/%25%32e%25%32%65/b", "double_escape"),
            ("/a/%252%65", "double_escape"),
            ("/%c0%ae%C0%AE/b", "overlong_escape"),
            ("/a%c1%9cb", "overlong_escape"),
            ("/a%e0%80%afb", "overlong_escape"),
            ("/a%f0%80%80%afb", "overlong_escape"),
            ("/a/..%20/b", "dot_segment"),
            ("/a/%2e%20%20;x", "dot_segment"),
            ("/a%00", "escaped_control"),
            ("/a%0d%0aX:", "escaped_control"),
            ("/a%7f", "escaped_control"),
            ("/a%", "broken_escape"),
            ("/a%4", "broken_escape"),
            ("/a%zz", "broken_escape"),
            ("/a b", "forbidden_byte"),
            ("/a\\b", "forbidden_byte"),
            ("/a\tb", "forbidden_byte"),
            ("/a\u{e9}", "forbidden_byte"),
            ("/a{b}", "forbidden_byte"),
            ("/a#b", "fragment"),
            ("/a?b#c", "fragment"),
            ("/a?b c", "forbidden_query_byte"),
            ("/a?b\u{e9}", "forbidden_query_byte"),
            ("/a?b\r", "forbidden_query_byte"),
        ] {
            assert_eq!(parse(target).map_err(PathError::code), Err(code), "{target:?}");
        }
        assert_eq!(CanonicalPath::parse(&[b'/'; MAX_PATH + 1]), Err(PathError::TooLong));
        let long = format!("/?{}", "q".repeat(MAX_QUERY + 1));
        assert_eq!(parse(&long), Err(PathError::QueryTooLong));
    }

    // covers: A7a
    #[test]
    fn only_the_spelling_of_escapes_is_normalised() {
        for (target, path, forwarded) in [
            ("/", "/", "/"),
            ("/v1/%6Frders/42", "/v1/orders/42", "/v1/orders/42"),
            ("/v1/a%c3%a9", "/v1/a%C3%A9", "/v1/a%C3%A9"),
            ("/a%20b?x=../y&%2e", "/a%20b", "/a%20b?x=../y&%2e"),
            ("/a?", "/a", "/a?"),
            ("/a?b?c", "/a", "/a?b?c"),
            ("/a;v=2/b", "/a;v=2/b", "/a;v=2/b"),
            ("/a%25", "/a%25", "/a%25"),
            ("/a%25%7a", "/a%25z", "/a%25z"),
            ("/%c3%80%20/%e0%a0%80/%c0%20", "/%C3%80%20/%E0%A0%80/%C0%20", "/%C3%80%20/%E0%A0%80/%C0%20"),
            ("/a/", "/a/", "/a/"),
            ("/...", "/...", "/..."),
            ("/grpc.Svc/Method", "/grpc.Svc/Method", "/grpc.Svc/Method"),
        ] {
            let parsed = parse(target).expect(target);
            assert_eq!((parsed.path(), parsed.path_and_query()), (path, forwarded));
        }
        assert_eq!(CanonicalPath::asterisk().path_and_query(), "*");
    }

    /// What a careless server makes of a path: decode, strip parameters, treat '\' as '/', resolve dots, merge slashes.
    fn naive_backend(path: &str, decodes: usize, strip: bool, backslash: bool, merge: bool) -> String {
        let mut bytes = path.as_bytes().to_vec();
        for _ in 0..decodes {
            let mut out = Vec::new();
            let mut rest = &bytes[..];
            while let Some((&byte, after)) = rest.split_first() {
                match (byte, hex_pair(after)) {
                    (b'%', Some(value)) => {
                        out.push(value);
                        rest = &after[2..];
                    }
                    _ => {
                        out.push(byte);
                        rest = after;
                    }
                }
            }
            bytes = out;
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let text = if backslash { text.replace('\\', "/") } else { text };
        let parts: Vec<&str> = text.split('/').skip(1).collect();
        let mut stack: Vec<&str> = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let part = if strip { part.split(';').next().unwrap_or_default() } else { part };
            match part {
                "." => {}
                ".." => {
                    stack.pop();
                }
                "" if merge && index + 1 != parts.len() => {}
                _ => stack.push(part),
            }
        }
        format!("/{}", stack.join("/"))
    }

    fn hostile_piece() -> impl Strategy<Value = &'static str> {
        proptest::sample::select(vec![
            "/", "/", "v1", "orders", "admin", ".", "..", "%2e", "%2E", "%2f", "%2F", "%5c", "\\", "%252e", "%252f",
            ";", "%3b", ";x=1", "%00", "%0a", "//", "a", "%41", "?", "#", "%", "%c0%ae", "*", "%25", "%32", "%65",
            "%66", "2", "e", "f", "%20",
        ])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        // covers: A7a
        #[test]
        fn an_accepted_path_is_stable_and_no_backend_leaves_its_prefix(
            pieces in proptest::collection::vec(hostile_piece(), 1..8), under_orders: bool,
        ) {
            let target = format!("{}{}", if under_orders { "/v1/orders/" } else { "/" }, pieces.concat());
            let Ok(first) = parse(&target) else { return Ok(()) };
            let again = parse(first.path_and_query());
            prop_assert_eq!(Ok(&first), again.as_ref());
            if first.path().starts_with("/v1/orders/") {
                for (decodes, strip, backslash, merge) in [
                    (0, false, false, true), (1, false, false, true), (2, false, false, true), (1, true, false, true),
                    (2, true, true, true), (1, false, false, false),
                ] {
                    let seen = naive_backend(first.path(), decodes, strip, backslash, merge);
                    prop_assert!(seen.starts_with("/v1/orders"), "{} became {}", first.path(), seen);
                }
            }
        }

        #[test]
        fn any_bytes_are_refused_or_printable(bytes: Vec<u8>) {
            if let Ok(path) = CanonicalPath::parse(&bytes) {
                prop_assert!(path.path_and_query().bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }
    }
}
