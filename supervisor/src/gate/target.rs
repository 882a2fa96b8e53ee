//! The request target: one of four forms, and only the one that the method wants.

use super::{Refusal, line::bad_byte};

/// What an absolute target may begin with.
const SCHEMES: [&[u8]; 2] = [b"http://", b"https://"];
/// How some clients ask a proxy for a WebSocket.
const WEBSOCKET: &[u8] = b"ws://";

/// The form of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Origin,
    Absolute,
    Authority,
    Asterisk,
}

/// Checks a target of `method`; `ws` is whether that scheme is one.
pub(super) fn check_target(method: &[u8], target: &[u8], ws: bool) -> Result<Form, Refusal> {
    if method == b"CONNECT" {
        check_bytes(target)?;
        return if is_authority(target, true) { Ok(Form::Authority) } else { Err(Refusal::BadTarget) };
    }
    match target {
        [b'/', rest @ ..] => check_bytes(rest).map(|()| Form::Origin),
        b"*" if method == b"OPTIONS" => Ok(Form::Asterisk),
        _ => check_absolute(target, ws).map(|()| Form::Absolute),
    }
}

fn check_absolute(target: &[u8], ws: bool) -> Result<(), Refusal> {
    check_bytes(target)?;
    let of_http = SCHEMES.iter().find_map(|scheme| strip_scheme(target, scheme));
    let rest = of_http.or_else(|| strip_scheme(target, WEBSOCKET).filter(|_| ws)).ok_or(Refusal::BadTarget)?;
    let end = rest.iter().position(|&byte| byte == b'/' || byte == b'?').unwrap_or(rest.len());
    if is_authority(&rest[..end], false) { Ok(()) } else { Err(Refusal::BadTarget) }
}

fn strip_scheme<'a>(target: &'a [u8], scheme: &[u8]) -> Option<&'a [u8]> {
    let (front, rest) = target.split_at_checked(scheme.len())?;
    front.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// The bytes that hyper's URI type takes in paths and queries alike. Brackets, braces, backslash and the like stand for
/// themselves here; the path canonicaliser judges them.
fn check_bytes(target: &[u8]) -> Result<(), Refusal> {
    let fine = target.iter().fold(true, |fine, &byte| {
        fine & (byte > b' ' && byte < 0x7f) & !matches!(byte, b'"' | b'#' | b'<' | b'>' | b'`')
    });
    if fine {
        return Ok(());
    }
    let bad = target.iter().find_map(|&byte| bad_byte(byte));
    Err(bad.unwrap_or(if target.contains(&b'#') { Refusal::FragmentInTarget } else { Refusal::BadTarget }))
}

/// Whether `text` is `host` or `host:port`: a name or IPv4 address of letters, digits, `-`, `.` and `_`, or an IPv6
/// address in brackets. No user part, no escapes, no zone.
pub(super) fn is_authority(text: &[u8], wants_port: bool) -> bool {
    let host_end = if text.first() == Some(&b'[') {
        let Some(close) = text.iter().position(|&byte| byte == b']') else { return false };
        let inside = &text[1..close];
        if !inside.contains(&b':') || !inside.iter().all(|&byte| byte.is_ascii_hexdigit() || b":.".contains(&byte)) {
            return false;
        }
        close + 1
    } else {
        let host = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
        text.iter().position(|byte| !host(byte)).unwrap_or(text.len())
    };
    let port = match &text[host_end..] {
        [] => return host_end > 0 && !wants_port,
        [b':', port @ ..] => port,
        _ => return false,
    };
    host_end > 0 && (1..=5).contains(&port.len()) && port.iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_in_the_wrong_form_are_refused() {
        for (method, target) in [
            ("GET", "*"),
            ("GET", "a.test:443"),
            ("GET", "a.test"),
            ("GET", "ftp://a.test/"),
            ("GET", "wss://a.test/"),
            ("GET", "ws://u@a.test/"),
            ("GET", "http:///x"),
            ("GET", "http://u@a.test/"),
            ("GET", "http://a.test:99x/"),
            ("GET", "/a\"b"),
            ("OPTIONS", "*x"),
            ("CONNECT", "/"),
            ("CONNECT", "*"),
            ("CONNECT", "a.test"),
            ("CONNECT", "a.test:"),
            ("CONNECT", ":443"),
            ("CONNECT", "a.test:443/"),
            ("CONNECT", "http://a.test:443"),
            ("CONNECT", "u@a.test:443"),
            ("CONNECT", "2001:db8::7:443"),
            ("CONNECT", "::1:443"),
            ("CONNECT", "[a.test]:443"),
            ("CONNECT", "[[a.test]]:443"),
            ("CONNECT", "[10.0.0.1]:443"),
            ("CONNECT", "[fe80::1%25eth0]:443"),
        ] {
            assert_eq!(
                check_target(method.as_bytes(), target.as_bytes(), true),
                Err(Refusal::BadTarget),
                "{method} {target}"
            );
        }
        assert_eq!(check_target(b"GET", b"ws://a.test/", false), Err(Refusal::BadTarget));
        assert_eq!(check_target(b"GET", b"/a#b", true), Err(Refusal::FragmentInTarget));
        assert_eq!(check_target(b"GET", b"/a\xc3\xa9", true), Err(Refusal::NonAscii));
    }

    #[test]
    fn the_four_forms_are_told_apart() {
        for (method, target, form) in [
            ("GET", "/a/b?c=[d]|{e}", Form::Origin),
            ("GET", "//a", Form::Origin),
            ("GET", "HTTP://a.test:80?x", Form::Absolute),
            ("GET", "https://[2001:db8::7]/", Form::Absolute),
            ("GET", "ws://a.test/chat", Form::Absolute),
            ("OPTIONS", "*", Form::Asterisk),
            ("CONNECT", "a_b.test:443", Form::Authority),
            ("CONNECT", "[::1]:443", Form::Authority),
        ] {
            assert_eq!(check_target(method.as_bytes(), target.as_bytes(), true), Ok(form), "{method} {target}");
        }
    }
}
