//! What crosses and what does not.

use proptest::prelude::*;

use super::*;

fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    fields
        .iter()
        .map(|&(name, value)| (name.parse::<HeaderName>().expect("a name"), HeaderValue::from_static(value)))
        .collect()
}

fn names(headers: &HeaderMap) -> Vec<&str> {
    let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    names
}

#[test]
fn method_overrides_are_refused_in_every_spelling_and_change_nothing() {
    for name in ["X-HTTP-Method-Override", "x_http_method_override", "X-HTTP-Method", "X-Method-Override"] {
        let mut headers = map(&[("x-nova-a", "1"), (name, "DELETE")]);
        let refused = strip_request_headers(&mut headers).expect_err(name);
        assert_eq!(refused.0.as_str(), name.to_ascii_lowercase());
        assert_eq!(headers.len(), 2);
    }
}

#[test]
fn identity_that_a_client_sent_never_crosses() {
    let mut headers = HeaderMap::new();
    let claimed = [
        "X-Forwarded-Client-Cert",
        "x_forwarded_client_cert",
        "x-forwarded_client-cert",
        "X.Forwarded.Client.Cert",
        "x~forwarded!client*cert",
        "Client-Cert",
        "Client-Cert-Chain",
        "client_cert",
        "X-Client-Cert",
        "X-SSL-Client-Verify",
        "SSL_CLIENT_S_DN",
        "X-Spiffe-Id",
        "X_Spiffe_Id",
        "x-nova-peer",
        "X_NOVA_PEER",
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "x_forwarded_for",
        "Forwarded",
        "X-Real-IP",
        "X-Original-URL",
        "X-Rewrite-URL",
        "Remote-User",
        "True-Client-IP",
        "Client-IP",
        "WL-Proxy-Client-Cert",
        "Proxy-Authorization",
        "proxy_authorization",
        "Proxy",
    ];
    for name in claimed {
        for _ in 0..2 {
            headers.append(
                name.parse::<HeaderName>().expect("a name"),
                HeaderValue::from_static("spiffe://td/t/t/w/admin"),
            );
        }
    }
    headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
    strip_request_headers(&mut headers).expect("no override");
    assert_eq!(names(&headers), ["accept"]);
    set_identity(&mut headers, &HeaderValue::from_static("URI=spiffe://x"), &HeaderValue::from_static("10.0.0.1"));
    assert_eq!(headers.get_all(XFCC).iter().collect::<Vec<_>>(), ["URI=spiffe://x"]);
    assert_eq!(headers.get_all(XFF).iter().collect::<Vec<_>>(), ["10.0.0.1"]);
}

#[test]
fn what_connection_names_goes_before_ours_is_set() {
    let mut headers = map(&[
        ("connection", "close, X-Custom ,x-forwarded-client-cert"),
        ("connection", "x-second"),
        ("x-custom", "1"),
        ("x-second", "1"),
        ("x-third", "1"),
    ]);
    strip_request_headers(&mut headers).expect("no override");
    assert_eq!(names(&headers), ["x-third"]);
    set_identity(&mut headers, &HeaderValue::from_static("URI=spiffe://x"), &HeaderValue::from_static("10.0.0.1"));
    assert_eq!(names(&headers), ["x-forwarded-client-cert", "x-forwarded-for", "x-third"]);
}

#[test]
fn connection_cannot_take_host_or_length_away() {
    let mut headers = map(&[("connection", "host, content-length"), ("host", "a"), ("content-length", "5")]);
    strip_request_headers(&mut headers).expect("no override");
    assert_eq!(names(&headers), ["content-length", "host"]);
}

#[test]
fn hop_by_hop_headers_stay_on_their_hop() {
    let fields = [
        ("connection", "Upgrade, HTTP2-Settings"),
        ("upgrade", "h2c"),
        ("http2-settings", "AAMAAABkAAQAAP__"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("proxy-authorization", "Basic dTpw"),
        ("te", "gzip"),
        ("transfer-encoding", "chunked"),
        ("accept", "*/*"),
    ];
    let mut headers = map(&fields);
    strip_request_headers(&mut headers).expect("no override");
    assert_eq!(names(&headers), ["accept"]);
    let mut headers = map(&fields);
    strip_response_headers(&mut headers);
    assert_eq!(names(&headers), ["accept"]);
}

#[test]
fn an_expectation_is_answered_here_and_not_passed_on() {
    let mut headers = map(&[("expect", "100-continue"), ("content-length", "5")]);
    strip_request_headers(&mut headers).expect("no override");
    assert_eq!(names(&headers), ["content-length"]);
}

#[test]
fn which_trailers_follow_may_be_said() {
    let mut headers = map(&[("trailer", "x-sum"), ("connection", "close")]);
    strip_request_headers(&mut headers).expect("no override");
    assert_eq!(names(&headers), ["trailer"]);
    strip_response_headers(&mut headers);
    assert_eq!(names(&headers), ["trailer"]);
}

#[test]
fn te_keeps_trailers_and_nothing_else() {
    for (value, kept) in [("trailers", Some("trailers")), ("gzip, Trailers", Some("trailers")), ("gzip", None)] {
        let mut headers = map(&[("te", value)]);
        strip_request_headers(&mut headers).expect("no override");
        assert_eq!(headers.get(header::TE).map(|te| te.to_str().expect("text")), kept, "{value}");
    }
}

#[test]
fn answers_cannot_speak_for_the_supervisor_or_point_elsewhere() {
    let mut headers = map(&[
        ("x-nova-decision-id", "1"),
        ("x_nova_decision_id", "1"),
        ("x.nova.decision.id", "1"),
        ("x-forwarded-client-cert", "1"),
        ("alt-svc", "h3=\":443\""),
        ("proxy-authenticate", "Basic"),
        ("set-cookie", "a=b"),
        ("via", "1.1 cache"),
    ]);
    strip_response_headers(&mut headers);
    assert_eq!(names(&headers), ["set-cookie", "via"]);
}

#[test]
fn trailers_cannot_do_what_headers_cannot() {
    let mut trailers = map(&[
        ("grpc-status", "0"),
        ("x_spiffe_id", "x"),
        ("x-http-method-override", "DELETE"),
        ("te", "x"),
        ("alt-svc", "x"),
    ]);
    strip_trailers(&mut trailers);
    assert_eq!(names(&trailers), ["grpc-status"]);
}

#[test]
fn an_upgrade_is_to_websocket_alone_and_connection_names_it() {
    let asked = |upgrade: &'static str, connection: &'static str| {
        is_to_websocket(&map(&[("upgrade", upgrade), ("connection", connection)]))
    };
    for (upgrade, connection) in [
        ("h2c", "upgrade"),
        ("TLS/1.0", "upgrade"),
        ("websocket", "close"),
        ("websocket, h2c", "upgrade"),
        ("websocket/13", "upgrade"),
        ("", "upgrade"),
    ] {
        assert!(!asked(upgrade, connection), "{upgrade:?} {connection:?}");
    }
    let twice = map(&[("upgrade", "websocket"), ("upgrade", "h2c"), ("connection", "upgrade")]);
    assert!(!is_to_websocket(&twice));
    assert!(asked("websocket", "keep-alive, Upgrade") && asked("WebSocket", "upgrade"));
    let mut headers = map(&[("upgrade", "WebSocket"), ("connection", "keep-alive, upgrade")]);
    strip_request_headers(&mut headers).expect("no override");
    assert!(headers.is_empty());
    set_websocket(&mut headers);
    assert_eq!(names(&headers), ["connection", "upgrade"]);
    assert!(is_to_websocket(&headers));
}

/// A name as a server sees it that makes one variable of all spellings, written down apart from the code under test.
fn folded(name: &HeaderName) -> String {
    name.as_str().chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect()
}

fn speaks_for_us(name: &HeaderName) -> bool {
    let name = folded(name);
    ["x-nova-", "x-spiffe-", "x-forwarded-", "client-cert", "x-client-cert", "x-ssl-client", "proxy-"]
        .iter()
        .any(|ours| name.starts_with(ours))
        || ["forwarded", "spiffe-id", "x-real-ip", "client-ip", "proxy", "connection", "upgrade"].contains(&&*name)
}

/// Names near those of ours: with other separators, other case, a letter more or less.
fn near_name() -> impl Strategy<Value = HeaderName> {
    let ours = prop::sample::select(vec![
        "x-forwarded-client-cert",
        "x-forwarded-for",
        "x-nova-decision-id",
        "x-spiffe-id",
        "client-cert",
        "x-ssl-client-verify",
        "forwarded",
        "proxy",
        "proxy-authorization",
        "client-ip",
        "upgrade",
        "accept",
    ]);
    let separators = prop::collection::vec(prop::sample::select("-_.~+!#$%&'*^`|x".chars().collect::<Vec<_>>()), 6);
    (ours, separators, any::<u64>()).prop_map(|(ours, separators, case)| {
        let mut next = separators.into_iter();
        let spelled: String = ours
            .chars()
            .enumerate()
            .map(|(at, letter)| match letter {
                '-' => next.next().unwrap_or('-'),
                _ if case >> (at % 64) & 1 == 1 => letter.to_ascii_uppercase(),
                _ => letter,
            })
            .collect();
        HeaderName::from_bytes(spelled.as_bytes()).expect("token letters only")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    // covers: C7.5, C13.2 (F-IH08)
    #[test]
    fn fuzz_smoke_no_header_that_speaks_for_us_survives_in_any_spelling(
        names in prop::collection::vec(near_name(), 0..12), named in prop::collection::vec(near_name(), 0..4),
    ) {
        let claimed = HeaderValue::from_static("claimed");
        let mut headers: HeaderMap = names.into_iter().map(|name| (name, claimed.clone())).collect();
        for name in named {
            headers.append(header::CONNECTION, HeaderValue::from_str(name.as_str()).expect("a value"));
        }
        let (mut answer, mut trailers) = (headers.clone(), headers.clone());
        strip_request_headers(&mut headers).expect("no override among them");
        prop_assert!(!headers.keys().any(speaks_for_us), "{:?}", headers);
        let ours = HeaderValue::from_static("ours");
        set_identity(&mut headers, &ours, &ours);
        for name in [XFCC, XFF] {
            prop_assert!(headers.get_all(name).iter().eq([&ours]));
        }
        strip_response_headers(&mut answer);
        prop_assert!(!answer.keys().any(|name| folded(name).starts_with("x-nova-") || folded(name) == XFCC.as_str()));
        strip_trailers(&mut trailers);
        prop_assert!(!trailers.keys().any(speaks_for_us), "{:?}", trailers);
    }
}
