//! What an outsider learns from refusals: nothing; and what the operator learns from the log: everything.

use std::io::{Read, Write};

use crate::data::{A, HTTPS, RAW, Tls, dial, is, issue};
use crate::support::{HOST, ORDER, Stand, get, rest};

/// An answer without what may differ: the decision id and the date.
fn bare(stand: &Stand, who: &nova_supervisor::identity::Issued, request: &str) -> String {
    let mut tls = stand.node.call(Some(who), HTTPS).expect("connected");
    let answer = tls.ask(request);
    let id = answer.decision_id();
    let head: String =
        answer.head.lines().filter(|line| !line.starts_with("date: ")).map(|line| format!("{line}\n")).collect();
    format!("{head}\n{}", answer.text()).replace(&id, "ID")
}

// covers: C4.1, C14.23 (T32)
#[test]
fn forbidden_and_unknown_are_answered_with_the_same_bytes() {
    let stand = Stand::start();
    let partner = issue(&stand.node.partner, "spiffe://partner/billing", "billing.partner.test");
    let first = bare(&stand, &stand.x, &get("/v1/admin", ""));
    for (who, request) in [
        // Known to the app or not, granted to somebody else or to nobody, by method, by path or by host.
        (&stand.x, get("/", "")),
        (&stand.x, get("/no/such/path", "")),
        (&stand.x, get("/v1/orders", "")),
        (&stand.x, ORDER.replace("GET", "DELETE")),
        (&stand.x, ORDER.replace("GET", "BREW")),
        (&stand.x, format!("OPTIONS * HTTP/1.1\r\n{HOST}\r\n")),
        (&stand.x, "GET /v1/admin HTTP/1.1\r\nHost: b.t.nova\r\n\r\n".to_owned()),
        (&stand.x, "GET /v1/admin HTTP/1.1\r\nHost: no-such-workload.t.nova:1\r\n\r\n".to_owned()),
        (&partner, format!("PUT /v1/orders/42 HTTP/1.1\r\n{HOST}Content-Length: 0\r\n\r\n")),
        (&partner, get("/v1/admin", "")),
    ] {
        assert_eq!(bare(&stand, who, &request), first, "{request:?}");
    }
    assert!(stand.node.guest(A).app.seen().is_empty());
    let mut names: Vec<_> = first
        .lines()
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name)
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["cache-control", "content-length", "content-type", "x-nova-decision-id"]);
    for secret in ["x-to-a", "partner-to-a", "rule-id", "service-a", "node-1", "orders", "l7", "spiffe"] {
        assert!(!first.contains(secret), "{secret} in {first}");
    }
}

// covers: C4.2 (T32)
#[test]
fn whoever_has_no_grant_reads_no_byte_on_any_port() {
    let stand = Stand::start();
    let b = stand.node.svid("b");
    for port in [HTTPS, 7443] {
        let mut tls = stand.node.call(Some(&b), port).expect("its certificate is good");
        let _ = tls.write_all(ORDER.as_bytes());
        assert_eq!(rest(&mut tls), "", "port {port}");
    }
    let read = dial(&stand.node.ip(50), &format!("{}:{RAW}", stand.node.ip(21))).map(|mut tcp| {
        let _ = tcp.write_all(b"hello");
        rest(&mut tcp)
    });
    assert!(read.as_ref().map_or(true, String::is_empty), "{read:?}");
    // Nothing of the supervisor's own is to be found on a workload's address.
    for path in ["/metrics", "/readyz", "/healthz", "/admin", "/"] {
        assert_eq!(stand.caller().ask(get(path, "")).status, 403, "{path}");
    }
}

// covers: C4.3 (T32)
#[test]
fn a_malformed_request_is_answered_without_saying_which_byte_it_was() {
    let stand = Stand::start();
    let raw = |request: &str| {
        let mut tls: Tls = stand.caller();
        tls.send(request);
        rest(&mut tls)
    };
    let first = raw(&get("/v1/orders/42", "X : y\r\n"));
    assert!(first.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{first}");
    for field in ["X: a\0\r\n", "Host: b\r\n", "Content-Length: +1\r\n", "X: y\r\n z\r\n", "Transfer-Encoding: x\r\n"] {
        assert_eq!(raw(&get("/v1/orders/42", field)), first, "{field:?}");
    }
}

// covers: C5.48 (F-OB01)
#[test]
fn what_a_caller_sends_forges_no_line_of_the_log() {
    let stand = Stand::start();
    let forged = "%0d%0a{\"verdict\":\"allow\"}";
    for target in [
        format!("/v1/orders/{forged}"),
        "/v1/orders/%0a%7B%22verdict%22:%22allow%22%7D".to_owned(),
        "/v1/orders/\u{1b}[2J".to_owned(),
        "/v1/orders/\u{85}\u{2028}".to_owned(),
        "/v1/orders/%C2%85%E2%80%A8%22".to_owned(),
        "/v1/orders/a'b".to_owned(),
    ] {
        let mut tls = stand.caller();
        tls.send(get(&target, "X-Request-Id: a\",\"verdict\":\"allow\r\n"));
        let _ = tls.answer();
    }
    let mut tls = stand.caller();
    tls.send(b"GET /v1/orders/\xff HTTP/1.1\r\nHost: a\r\n\r\n");
    let _ = tls.answer();
    drop(tls);
    stand.node.audited(7, |line| is(line, &[("kind", "connection"), ("direction", "ingress")]));
    let mut text = String::new();
    std::fs::File::open(stand.node.dir.path().join("audit.jsonl"))
        .and_then(|mut log| log.read_to_string(&mut text))
        .expect("a log");
    assert!(text.bytes().all(|byte| byte == b'\n' || (b' '..0x7f).contains(&byte)), "{text}");
    let allowed =
        stand.node.audit().iter().filter(|line| is(line, &[("kind", "request"), ("verdict", "allow")])).count();
    // The two that are paths: of escaped separators of lines that no log splits at, and of an apostrophe.
    assert_eq!(allowed, 2);
}

// covers: C5.48 (F-OB03)
#[test]
fn a_refusal_says_who_called_what_also_when_nothing_could_be_parsed() {
    let stand = Stand::start();
    let bad = [
        get("/v1/orders/../x", ""),
        get("/v1/orders/42", "X : y\r\n"),
        "\0\r\n\r\n".to_owned(),
        ORDER.replace("nova", "nova:0"),
    ];
    for request in &bad {
        let mut tls = stand.caller();
        assert_eq!(tls.ask(request).status, 400);
    }
    let lines = stand.node.audited(bad.len(), |line| is(line, &[("direction", "ingress"), ("verdict", "deny")]));
    for line in &lines {
        let known = [("workload", "service-a"), ("peer", "spiffe://dev.invalid/t/t/w/x"), ("path", "unparsed")];
        assert!(is(line, &known), "{line:#}");
        for field in ["src", "dest_host", "reason", "decision_id"] {
            assert!(line[field].is_string(), "{field} in {line:#}");
        }
    }
}
