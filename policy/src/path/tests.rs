//! Refusals first, then what is left, then the property that no backend leaves the prefix.

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
        ("/a%2F..%2Fb", "dot_segment"),
        ("/a/%2e%2e%2fb", "dot_segment"),
        ("/a%2f.", "dot_segment"),
        ("/.%2fa", "dot_segment"),
        ("/a%2F..;x", "dot_segment"),
        ("/a%2F..%3Bx%2Fb", "dot_segment"),
        ("/a%2f%2e%20/b", "dot_segment"),
        ("/a;x%2f../b", "dot_segment"),
        ("/%2Fetc", "empty_segment"),
        ("/a%2F%2Fb", "empty_segment"),
        ("/a%2f/b", "empty_segment"),
        ("/a/%2fb", "empty_segment"),
        ("/a%2f", "empty_segment"),
        ("/;x%2fetc", "empty_segment"),
        ("/a%2f;x/b", "empty_segment"),
        ("/a%2f%3Bx%2fb", "empty_segment"),
        ("/%20%2Fetc", "empty_segment"),
        ("/a%252Fb", "double_escape"),
        ("/a%25%32%46b", "double_escape"),
        ("/a%2F%5Cb", "escaped_separator"),
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
        ("/@scope%2fpkg", "/@scope%2Fpkg", "/@scope%2Fpkg"),
        ("/g%2Fs%2fp/r/?ref=a%2fb", "/g%2Fs%2Fp/r/", "/g%2Fs%2Fp/r/?ref=a%2fb"),
        ("/a%2f.b/..c%2Fd;v", "/a%2F.b/..c%2Fd;v", "/a%2F.b/..c%2Fd;v"),
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
        "/", "/", "v1", "orders", "admin", ".", "..", "%2e", "%2E", "%2f", "%2F", "%5c", "\\", "%252e", "%252f", ";",
        "%3b", ";x=1", "%00", "%0a", "//", "a", "%41", "?", "#", "%", "%c0%ae", "*", "%25", "%32", "%65", "%66", "2",
        "e", "f", "%20",
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
        // Read as separators, its escaped slashes leave a path that would be accepted as well.
        let separated = parse(&first.path().replace(ESCAPED_SLASH, "/"));
        prop_assert!(separated.is_ok(), "{}: {separated:?}", first.path());
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
