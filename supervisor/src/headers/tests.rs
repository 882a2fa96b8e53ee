//! What crosses and what does not.

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
        "Proxy-Authorization",
        "proxy_authorization",
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
        ("trailer", "x"),
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
    let mut trailers =
        map(&[("grpc-status", "0"), ("x_spiffe_id", "x"), ("x-http-method-override", "DELETE"), ("te", "x")]);
    strip_trailers(&mut trailers);
    assert_eq!(names(&trailers), ["grpc-status"]);
}

#[test]
fn an_upgrade_is_one_protocol_that_connection_names_and_never_h2c() {
    let asked = |upgrade: &'static str, connection: &'static str| {
        asked_upgrade(&map(&[("upgrade", upgrade), ("connection", connection)]))
    };
    assert_eq!(asked("websocket", "keep-alive, Upgrade"), Some(HeaderValue::from_static("websocket")));
    for (upgrade, connection) in
        [("h2c", "upgrade"), ("websocket", "close"), ("websocket, h2c", "upgrade"), ("", "upgrade")]
    {
        assert_eq!(asked(upgrade, connection), None, "{upgrade:?} {connection:?}");
    }
    let mut headers = map(&[("upgrade", "websocket"), ("connection", "upgrade")]);
    let protocol = asked_upgrade(&headers).expect("asked");
    strip_request_headers(&mut headers).expect("no override");
    set_upgrade(&mut headers, protocol);
    assert_eq!(names(&headers), ["connection", "upgrade"]);
}
