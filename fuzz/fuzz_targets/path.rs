//! Any bytes as a request target: what is accepted is its own canonical form, and no careless server that gets it leaves
//! the prefix it was decided under, whether it takes an escaped slash for a separator or for a part of a name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nova_policy::CanonicalPath;

/// How often a server decodes, and whether it strips parameters, takes '\\' for '/', and merges slashes.
const SERVERS: [(usize, bool, bool, bool); 6] = [
    (0, false, false, true),
    (1, false, false, true),
    (2, false, false, true),
    (1, true, false, true),
    (2, true, true, true),
    (1, false, false, false),
];

fuzz_target!(|data: &[u8]| {
    for prefix in ["", "/v1/orders/"] {
        let target = [prefix.as_bytes(), data].concat();
        let Ok(path) = CanonicalPath::parse(&target) else { continue };
        let again = CanonicalPath::parse(path.path_and_query().as_bytes());
        assert_eq!(again.as_ref(), Ok(&path));
        // Where a server takes its escaped slashes for separators, it reads a path that would be accepted as well.
        let separated = path.path().replace("%2F", "/");
        assert!(CanonicalPath::parse(separated.as_bytes()).is_ok(), "{} is {separated}", path.path());
        assert!(!path.path().contains("%2f") && !path.path().contains("%5C"));
        assert!(path.path_and_query().bytes().all(|byte| byte.is_ascii_graphic()));
        if path.path().starts_with("/v1/orders/") {
            for (decodes, strip, backslash, merge) in SERVERS {
                let seen = served(path.path(), decodes, strip, backslash, merge);
                assert!(seen.starts_with("/v1/orders"), "{} became {seen}", path.path());
            }
        }
    }
});

fn served(path: &str, decodes: usize, strip: bool, backslash: bool, merge: bool) -> String {
    let bytes = (0..decodes).fold(path.as_bytes().to_vec(), |bytes, _| decode(&bytes));
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let text = if backslash { text.replace('\\', "/") } else { text };
    let mut stack: Vec<&str> = Vec::new();
    let parts: Vec<&str> = text.split('/').skip(1).collect();
    for (index, part) in parts.iter().enumerate() {
        match if strip { part.split(';').next().unwrap_or_default() } else { part } {
            "." => {}
            ".." => {
                stack.pop();
            }
            "" if merge && index + 1 != parts.len() => {}
            part => stack.push(part),
        }
    }
    format!("/{}", stack.join("/"))
}

fn decode(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = bytes;
    while let Some((&byte, after)) = rest.split_first() {
        let pair = after.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        match pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()).filter(|_| byte == b'%') {
            Some(value) => {
                out.push(value);
                rest = &after[2..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}
