//! Items 51 to 59: what else belongs to a message, and how messages follow each other.

use crate::data::read_head;
use crate::smuggling::{CHUNKED, SMUGGLED, post};
use crate::support::{HOST, ORDER, Stand, Wanted, answer_to_head, get, rest};

// covers: C5.51
#[test]
fn item_51_trailers_pass_unless_they_frame_identify_or_never_end() {
    let stand = Stand::start();
    let many = format!("0\r\n{}\r\n", "a: b\r\n".repeat(33));
    let long = format!("0\r\nX: {}\r\n\r\n", "y".repeat(8192));
    let mut bad = vec![many, long];
    for name in
        ["Content-Length", "Transfer-Encoding", "Transfer_Encoding", "Host", "Connection", "Trailer", "Authorization"]
    {
        bad.push(format!("0\r\n{name}: 1\r\n\r\n{SMUGGLED}"));
    }
    stand.refuses_in_body(CHUNKED, &bad.iter().map(String::as_str).collect::<Vec<_>>());
    let with_trailers = post(
        "Transfer-Encoding: chunked\r\nTrailer: X-Sum, X-Spiffe-Id\r\n",
        "5\r\nhello\r\n0\r\nX-Sum: 1\r\nX-Spiffe-Id: evil\r\nX_Nova_Peer: evil\r\nX-Method-Override: DELETE\r\n\r\n",
    );
    stand.serves(
        with_trailers,
        &[200],
        &[Wanted::line("POST /v1/orders/42")
            .with("trailer: X-Sum, X-Spiffe-Id")
            .with("transfer-encoding: chunked")
            .body("hello|x-sum: 1")],
    );
}

// covers: C5.52
#[test]
fn item_52_each_request_of_a_pipeline_is_decided_alone_and_nothing_follows_a_malformed_one() {
    let stand = Stand::start();
    let denied = ORDER.replace("GET", "DELETE");
    stand.serves(format!("{ORDER}{denied}{ORDER}{denied}"), &[200, 403, 200, 403], &[Wanted::order(), Wanted::order()]);
    let with_body =
        format!("DELETE /v1/orders/42 HTTP/1.1\r\n{HOST}Content-Length: {}\r\n\r\n{SMUGGLED}", SMUGGLED.len());
    // What was the body of a denied request is not the next one.
    stand.serves(format!("{with_body}{ORDER}"), &[403, 200], &[Wanted::order()]);
    let malformed = ORDER.replace("HTTP/1.1\r\n", "HTTP/1.1\n");
    let mut tls = stand.caller();
    tls.send(format!("{ORDER}{malformed}{SMUGGLED}"));
    assert_eq!(tls.answer().expect("the good one is served").status, 200);
    assert_eq!(tls.answer().expect("the bad one is refused").status, 400);
    assert_eq!(rest(&mut tls), "");
    stand.app_got(&[Wanted::order()]);
}

// covers: C5.53
#[test]
fn item_53_get_and_head_have_no_body() {
    let stand = Stand::start();
    let mut cases = Vec::new();
    for method in ["GET", "HEAD", "TRACE"] {
        let head = format!("{method} /v1/orders/42 HTTP/1.1\r\n{HOST}");
        cases.push(format!("{head}Content-Length: {}\r\n\r\n{SMUGGLED}", SMUGGLED.len()));
        cases.push(format!("{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{SMUGGLED}"));
    }
    stand.refuses(400, &cases);
    stand.serves(get("/v1/orders/42", "Content-Length: 0\r\n"), &[200], &[Wanted::order().with("content-length: 0")]);
    let mut tls = stand.caller();
    tls.send(ORDER.replace("GET", "HEAD"));
    assert_eq!(answer_to_head(&mut tls).status, 200);
    stand.app_got(&[Wanted::line("HEAD /v1/orders/42")]);
}

// covers: C5.54
#[test]
fn item_54_other_versions_are_refused_and_http_1_0_is_answered_in_kind() {
    let stand = Stand::start();
    let version = |version: &str| format!("GET /v1/orders/42{version}\r\n{HOST}\r\n");
    let versions = [
        "",
        " ",
        " HTTP/0.9",
        " HTTP/1.2",
        " HTTP/1.10",
        " HTTP/01.1",
        " http/1.1",
        " HTTP/1.1 ",
        " HTTP/3",
        " HTTP/1",
    ];
    stand.refuses(400, &versions.map(version));
    stand.declines(400, &["GET /v1/orders/42 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"]);
    let mut tls = stand.caller();
    tls.send(version(" HTTP/1.0"));
    let head = read_head(&mut tls).expect("an answer");
    assert!(head.starts_with("HTTP/1.0 200 ") && !head.to_ascii_lowercase().contains("transfer-encoding"), "{head}");
    assert_eq!(rest(&mut tls), "GET /v1/orders/42 HTTP/1.1");
    stand.app_got(&[Wanted::order()]);
}

// covers: C5.55 (F-IH09)
#[test]
fn item_55_an_offer_of_h2c_is_served_as_http_1_1_and_goes_no_further() {
    let stand = Stand::start();
    let offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n";
    let java = get("/v1/orders/42", offer);
    let mut tls = stand.caller();
    for _ in 0..3 {
        let answer = tls.ask(&java);
        assert!(answer.head.starts_with("HTTP/1.1 200 ") && answer.header("upgrade").is_none(), "{answer:?}");
    }
    stand.app_got(&[Wanted::order(), Wanted::order(), Wanted::order()]);
    // Who takes the offer for accepted speaks HTTP/2 on a connection that is HTTP/1.1.
    tls.send(format!("{java}PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"));
    assert_eq!([(); 2].map(|()| tls.answer().expect("an answer").status), [200, 400]);
    assert_eq!(rest(&mut tls), "");
    let posted = post(&format!("{offer}Content-Length: 5\r\n"), "hello");
    stand.app_got(&[Wanted::order()]);
    let got = Wanted::line("POST /v1/orders/42").with("content-length: 5").body("hello");
    stand.serves(format!("{posted}{ORDER}"), &[200, 200], &[got, Wanted::order()]);
}

// covers: C5.56
#[test]
fn item_56_what_connection_names_stays_on_its_hop_and_takes_nothing_of_ours_away() {
    let stand = Stand::start();
    let fields = "Connection: keep-alive, X-One ,x-two\r\nConnection: X-Forwarded-Client-Cert, X-Forwarded-For, Host, Content-Length\r\n\
        X-One: 1\r\nX-Two: 2\r\nx-two: 2\r\nX-Three: 3\r\nKeep-Alive: timeout=5\r\nContent-Length: 5\r\n";
    stand.serves(
        post(fields, &format!("hello{ORDER}")),
        &[200, 200],
        &[
            Wanted::line("POST /v1/orders/42").with("content-length: 5").with("x-three: 3").body("hello"),
            Wanted::order(),
        ],
    );
    let fields = "Connection: Transfer-Encoding, close\r\nTransfer-Encoding: chunked\r\n";
    stand.serves(
        post(fields, "5\r\nhello\r\n0\r\n\r\n"),
        &[200],
        &[Wanted::line("POST /v1/orders/42").with("transfer-encoding: chunked").body("hello|")],
    );
}

// covers: C5.57
#[test]
fn item_57_headers_for_proxies_and_headers_of_ours_are_removed() {
    let stand = Stand::start();
    let fields = "Proxy-Authorization: Basic dTpw\r\nProxy-Connection: keep-alive\r\nProxy-Authenticate: Basic\r\n\
        Proxy_Authorization: Basic dTpw\r\nProxy: http://evil.test\r\nTE: gzip, deflate\r\nX-Nova-Decision-Id: 1\r\n\
        X_NOVA_PEER: evil\r\nx-nova: evil\r\nX-Forwarded-Client-Cert: evil\r\nAuthorization: Bearer kept\r\n";
    stand.serves(get("/v1/orders/42", fields), &[200], &[Wanted::order().with("authorization: Bearer kept")]);
    stand.serves(
        get("/v1/orders/42", "TE: gzip, trailers\r\nConnection: TE\r\n"),
        &[200],
        &[Wanted::order().with("te: trailers")],
    );
}

// covers: C5.59
#[test]
fn item_59_only_100_continue_can_be_expected_and_only_of_a_request_that_is_granted() {
    let stand = Stand::start();
    let expecting = |value: &str| post(&format!("Content-Length: 5\r\nExpect: {value}\r\n"), "hello");
    stand.refuses(400, &["200-ok", "", "100-continue, x", "x", "100 continue", "100-continue;q=1"].map(expecting));
    stand.refuses(400, &[post("Expect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 5\r\n", "hello")]);
    let head = |method: &str| {
        format!("{method} /v1/orders/42 HTTP/1.1\r\n{HOST}Content-Length: 5\r\nExpect: 100-Continue\r\n\r\n")
    };
    let mut tls = stand.caller();
    tls.send(head("DELETE"));
    let first = read_head(&mut tls).expect("an answer");
    assert!(first.starts_with("HTTP/1.1 403 "), "a body that nobody wants was asked for: {first}");
    let mut tls = stand.caller();
    tls.send(head("POST"));
    assert!(read_head(&mut tls).expect("an answer").starts_with("HTTP/1.1 100 "));
    tls.send("hello");
    assert_eq!(tls.answer().expect("an answer").status, 200);
    let got = Wanted::line("POST /v1/orders/42").with("content-length: 5").body("hello");
    stand.app_got(&[got]);
}
