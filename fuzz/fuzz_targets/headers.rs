//! Any header lines through the cleaning: none that speaks for the supervisor is left, in any spelling, and ours is there
//! exactly once.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use nova_supervisor::headers::{
    XFCC, XFF, set_identity, strip_request_headers, strip_response_headers, strip_trailers,
};

fuzz_target!(|data: &[u8]| {
    let headers = parse(data);
    let mut request = headers.clone();
    let ours = HeaderValue::from_static("ours");
    match strip_request_headers(&mut request) {
        Err(_) => assert_eq!(request, headers, "a refused map is unchanged"),
        Ok(()) => {
            assert!(request.keys().all(|name| !speaks_for_us(name)));
            set_identity(&mut request, &ours, &ours);
            assert!([XFCC, XFF].iter().all(|name| request.get_all(name).iter().eq([&ours])));
        }
    }
    let (mut answer, mut trailers) = (headers.clone(), headers);
    strip_response_headers(&mut answer);
    assert!(answer.keys().all(|name| !folded(name).starts_with("x-nova-") && folded(name) != XFCC.as_str()));
    strip_trailers(&mut trailers);
    assert!(trailers.keys().all(|name| !speaks_for_us(name)));
});

/// `name: value` lines, as far as names and values can be.
fn parse(data: &[u8]) -> HeaderMap {
    let fields = data.split(|&byte| byte == b'\n').filter_map(|line| {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        Some((name, HeaderValue::from_bytes(&line[colon + 1..]).ok()?))
    });
    let mut headers = HeaderMap::new();
    for (name, value) in fields.take(1000) {
        headers.append(name, value);
    }
    headers
}

fn speaks_for_us(name: &HeaderName) -> bool {
    let name = folded(name);
    ["x-nova-", "x-spiffe-", "x-forwarded-", "client-cert", "proxy-"].iter().any(|ours| name.starts_with(ours))
        || ["forwarded", "spiffe-id", "x-real-ip", "connection", "upgrade"].contains(&&*name)
}

/// As a server sees it that makes one variable of all spellings.
fn folded(name: &HeaderName) -> String {
    name.as_str().chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect()
}
