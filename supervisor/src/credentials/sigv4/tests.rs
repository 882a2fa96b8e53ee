//! Requests of AWS's own test suite for signers, and what their documentation signs for S3.

use std::time::Duration;

use http::Request;
use proptest::prelude::*;

use super::*;
use crate::credentials::Held;

const KEYS: &str =
    r#"{"access_key_id": "AKIDEXAMPLE", "secret_access_key": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"SESSION}"#;
/// 2015-08-30T12:36:00Z
const THEN: Duration = Duration::from_secs(1_440_938_160);

fn held(session: &str) -> Held {
    let session = if session.is_empty() { String::new() } else { format!(r#", "session_token": "{session}""#) };
    Held::parse("aws", KEYS.replace("SESSION", &session).as_bytes()).expect("keys")
}

fn head(method: &str, target: &str, fields: &[(&str, &str)]) -> Parts {
    let request = fields
        .iter()
        .fold(Request::builder().method(method).uri(target), |request, (name, value)| request.header(*name, *value));
    request.header("host", "example.amazonaws.com").body(()).expect("a request").into_parts().0
}

/// Signs every field, as the suite does, and gives the signature.
fn signed(mut head: Parts, session: &str, body: &[u8]) -> String {
    let held = held(session);
    let keys = held.value.keys().expect("keys");
    head.headers.insert(DATE, HeaderValue::from_static("20150830T123600Z"));
    if let Some(session) = &keys.session {
        head.headers.insert(TOKEN, HeaderValue::from_bytes(session).expect("plain"));
    }
    let (request, _) = canonical(&head, &Payload::of(body), true, |_| true);
    let scope = "20150830/us-east-1/service/aws4_request";
    signature(&request, "20150830T123600Z", scope, keys, "us-east-1", "service").expect("a signature")
}

// covers: D9d
#[test]
fn the_requests_of_awss_test_suite_get_their_signatures() {
    let session = "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267";
    let form = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("content-length", "13"),
        ("x-amz-content-sha256", "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e"),
    ];
    let unreserved = "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let spaces = [("my-header1", " value1"), ("my-header2", " \"a   b   c\"")];
    for (head, session, body, want) in [
        (head("GET", "/", &[]), "", "", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        (
            head("GET", "/?Param1=value1", &[]),
            "",
            "",
            "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb",
        ),
        (
            head("GET", "/?Param-3=Value3&Param=Value2&%E1%88%B4=Value1", &[]),
            "",
            "",
            "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac",
        ),
        (
            head("GET", "/?%E1%88%B4=bar", &[]),
            "",
            "",
            "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04",
        ),
        (head("GET", "/%E1%88%B4", &[]), "", "", "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"),
        (
            head("GET", "/example%20space/", &[]),
            "",
            "",
            "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741",
        ),
        (head("GET", unreserved, &[]), "", "", "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"),
        (head("GET", "/", &spaces), "", "", "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"),
        (head("GET", "/", &[]), session, "", "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8"),
        (
            head("POST", "/", &[("my-header1", "value1")]),
            "",
            "",
            "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c",
        ),
        (
            head("POST", "/", &form),
            "",
            "Param1=value1",
            "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b",
        ),
    ] {
        let shown = format!("{} {} {:?}", head.method, head.uri, head.headers);
        assert_eq!(signed(head, session, body.as_bytes()), want, "{shown}");
    }
}

// covers: D9d
#[test]
fn a_signed_head_has_our_signature_in_place_of_the_apps_and_shows_no_secret() {
    let held = held("SESSION-TOKEN");
    let mut head = head("GET", "/a%20b", &[("x-amz-date", "19700101T000000Z")]);
    let payload = payload(&head.headers, "s3").expect("unsigned").expect("known");
    let keys = held.value.keys().expect("keys");
    sign(&mut head, &payload, keys, "eu-west-1", "s3", SystemTime::UNIX_EPOCH + THEN).expect("signed");
    let field =
        |name: &str| head.headers.get(name).map(|value| value.to_str().expect("text").to_owned()).unwrap_or_default();
    let start = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/eu-west-1/s3/aws4_request, \
                 SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token, Signature=";
    assert!(field("authorization").starts_with(start), "{}", field("authorization"));
    assert_eq!(
        (field("x-amz-date"), field("x-amz-content-sha256")),
        ("20150830T123600Z".into(), "UNSIGNED-PAYLOAD".into())
    );
    assert_eq!(head.headers.get_all("x-amz-date").iter().count(), 1);
    assert!(head.headers["authorization"].is_sensitive() && head.headers["x-amz-security-token"].is_sensitive());
    let shown = format!("{head:?}");
    assert!(!shown.contains("wJalr") && !shown.contains("SESSION") && !shown.contains("Signature"), "{shown}");
}

// covers: D9d
#[test]
fn the_path_of_s3_is_escaped_once_and_that_of_others_twice() {
    assert_eq!(canonical_path("/a%20b/c!d", true), "/a%20b/c%21d");
    assert_eq!(canonical_path("/a%20b/c", false), "/a%2520b/c");
}

// covers: D9d
#[test]
fn a_body_is_hashed_unless_the_service_or_the_app_says_otherwise() {
    let with = |value: &str| head("PUT", "/", &[("x-amz-content-sha256", value)]).headers;
    let hash = sha256_hex(b"");
    for (headers, service, want) in [
        (head("PUT", "/", &[]).headers, "s3", Ok(Some("UNSIGNED-PAYLOAD"))),
        (head("PUT", "/", &[]).headers, "dynamodb", Ok(None)),
        (with(&hash), "dynamodb", Ok(Some(hash.as_str()))),
        (with("UNSIGNED-PAYLOAD"), "s3", Ok(Some("UNSIGNED-PAYLOAD"))),
        (with("STREAMING-UNSIGNED-PAYLOAD-TRAILER"), "s3", Ok(Some("STREAMING-UNSIGNED-PAYLOAD-TRAILER"))),
        (with("STREAMING-AWS4-HMAC-SHA256-PAYLOAD"), "s3", Err(Fault::ChunkSignatures)),
        (with("nonsense"), "s3", Err(Fault::ChunkSignatures)),
    ] {
        let got = payload(&headers, service).map(|payload| payload.map(|payload| payload.0));
        assert_eq!(got, want.map(|want| want.map(str::to_owned)), "{headers:?} {service}");
    }
}

proptest! {
    // covers: D15c
    #[test]
    fn fuzz_smoke_equal_queries_are_written_alike(pairs in prop::collection::vec(("[a-c %&=]{0,4}", "[a-c /+=&]{0,4}"), 0..5), turn in 0..5usize) {
        let write = |pairs: &[(String, String)]| {
            let escaped = |text: &str| text.bytes().fold(String::new(), |mut text, byte| { fill::escape(byte, &mut text); text });
            pairs.iter().map(|(name, value)| format!("{}={}", escaped(name), escaped(value))).collect::<Vec<_>>().join("&")
        };
        let mut turned = pairs.clone();
        turned.rotate_left(turn.min(pairs.len()));
        let one = canonical_query(&write(&pairs));
        prop_assert_eq!(&one, &canonical_query(&write(&turned)));
        prop_assert_eq!(&one, &canonical_query(&one));
    }
}
