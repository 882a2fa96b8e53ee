//! Identity headers at the app: ours and no other (C7).

use std::io::Write;

use crate::broken_answers::with_plain_port;
use crate::data::{dial, read_answer};
use crate::support::{HOST, ORDER, Stand, Wanted, get};

/// Names by which some server or framework learns who calls, from where, over what.
const CLAIMS: &[&str] = &[
    "X-Forwarded-Client-Cert",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "X-Forwarded-Port",
    "X-Forwarded-User",
    "X-Forwarded-Prefix",
    "Forwarded",
    "X-Spiffe-Id",
    "Spiffe-Id",
    "X-Nova-Peer",
    "Client-Cert",
    "Client-Cert-Chain",
    "X-Client-Cert",
    "X-SSL-Client-Cert",
    "X-SSL-Client-Verify",
    "SSL-Client-Verify",
    "X-Real-IP",
    "X-Client-IP",
    "Client-IP",
    "True-Client-IP",
    "WL-Proxy-Client-Cert",
    "WL-Proxy-Client-IP",
    "Remote-User",
    "X-Remote-User",
    "X-Original-URL",
    "X-Rewrite-URL",
];

/// The spellings that CGI-like servers read as one name.
fn spellings(name: &str) -> Vec<String> {
    let mut all = vec![name.to_owned(), name.to_lowercase(), name.to_uppercase()];
    for separator in ["_", ".", "~", "+", "!"] {
        all.push(name.replace('-', separator));
        all.push(name.replacen('-', separator, 1));
    }
    all
}

// covers: C7.2 (F-IH08)
#[test]
fn no_claim_about_the_caller_reaches_the_app_in_any_spelling() {
    let stand = Stand::start();
    for name in CLAIMS {
        let fields: String =
            spellings(name).iter().map(|name| format!("{name}: evil\r\n{name}: evil again\r\n")).collect();
        stand.serves(get("/v1/orders/42", &fields), &[200], &[Wanted::order()]);
    }
}

// covers: C7.3 (F-IH08)
#[test]
fn naming_our_headers_in_connection_removes_the_callers_copies_and_not_ours() {
    let stand = Stand::start();
    for name in ["X-Forwarded-Client-Cert", "x-forwarded-for", "X_Forwarded_Client_Cert", "Host"] {
        let fields = format!("Connection: {name}, X-Named\r\nX-Named: evil\r\n{name}x: kept\r\n");
        let kept = format!("{}x: kept", name.to_lowercase());
        let is_claim = name.to_lowercase().starts_with("x");
        let wanted = if is_claim { Wanted::order() } else { Wanted::order().with(&kept) };
        stand.serves(get("/v1/orders/42", &fields), &[200], &[wanted]);
    }
}

// covers: C7.4 (F-IH08)
#[test]
fn a_port_without_certificates_gives_the_app_an_address_and_no_identity() {
    let stand = Stand::with(with_plain_port());
    let mut tcp = dial(&stand.node.ip(99), &format!("{}:8080", stand.node.ip(21))).expect("connected");
    let claims = format!(
        "GET /v1/orders/42 HTTP/1.1\r\n{HOST}X-Forwarded-Client-Cert: URI=spiffe://evil\r\n\
        x_spiffe_id: spiffe://evil\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n"
    );
    tcp.write_all(claims.as_bytes()).expect("sent");
    assert_eq!(read_answer(&mut tcp).expect("an answer").status, 200);
    let seen = stand.node.guest(crate::data::A).app.seen();
    let wanted = format!(
        "GET /v1/orders/42 HTTP/1.1\r\nhost: service-a.t.nova\r\nx-forwarded-for: {}\r\n\r\n",
        stand.node.ip(99)
    );
    assert_eq!(seen, [wanted]);
    drop(tcp);
    stand.forget();
    stand.still_serves();
}

// covers: C5.57
#[test]
fn a_request_with_as_many_headers_as_the_gate_takes_reaches_the_app() {
    let stand = Stand::start();
    let fields = |count: usize| "a: b\r\n".repeat(count);
    let wanted = (0..99).fold(Wanted::order(), |wanted, _| wanted.with("a: b"));
    stand.serves(get("/v1/orders/42", &fields(99)), &[200], &[wanted]);
    stand.refuses(431, &[get("/v1/orders/42", &fields(100))]);
    // The same for the length of a head: what the supervisor adds is not the caller's fault.
    let start = ORDER.len() + "X: \r\n".len();
    let filled = |bytes: usize| get("/v1/orders/42", &format!("X: {}\r\n", "y".repeat(bytes - start)));
    let value = format!("x: {}", "y".repeat(64 * 1024 - start));
    stand.serves(filled(64 * 1024), &[200], &[Wanted::order().with(&value)]);
    stand.refuses(431, &[filled(64 * 1024 + 1)]);
}
