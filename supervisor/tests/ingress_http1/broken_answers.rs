//! Answers that break off or turn bad after their head: a caller never takes one for whole. Also how answers are judged.

use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::data::{A, HTTPS, Link, Plan, RULES, dial, read_request, until};
use crate::support::{ORDER, Stand, rest};

/// What the app does after its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// Goes on as if another request could come, and notes if one does.
    Stay,
    /// Goes on, and may be asked again.
    Answer,
    /// Sends the same bytes until nobody takes them.
    Repeat,
    /// Ends the connection in good order.
    Close,
    /// Cuts the connection.
    Cut,
}

/// What the caller reads.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sees {
    /// 502 with a text of the supervisor and nothing of the app.
    BadGateway,
    /// The begin of an answer, and an end that shows that it is not whole.
    Broken,
    /// This status and body.
    Whole(u16, &'static str),
}

pub(crate) fn judge_each(stand: &Stand, cases: &[String], then: Then, sees: Sees) {
    for bytes in cases {
        judge(stand, bytes, then, sees);
    }
}

/// The app answers one request with `bytes` and all others honestly. The caller sees what it should, and callers after it,
/// which share its connections to the app, get honest answers.
#[track_caller]
pub(crate) fn judge(stand: &Stand, bytes: &str, then: Then, sees: Sees) {
    let shown: String = bytes.chars().take(200).collect();
    stand.forget();
    serve_once(stand, bytes, then);
    // A certificate of its own each time: no connection to an app of an earlier case is left for this caller.
    let who = stand.node.svid("x");
    let mut tls = stand.node.call(Some(&who), HTTPS).expect("connected");
    tls.send(ORDER);
    match (sees, tls.answer()) {
        (Sees::BadGateway, Ok(answer)) => {
            assert_eq!(answer.status, 502, "{shown:?}: {answer:?}");
            assert!(answer.text().contains(&answer.decision_id()), "{shown:?}: {answer:?}");
            assert!(!format!("{}{}", answer.head, answer.text()).contains("EVIL"), "{shown:?}: {answer:?}");
        }
        (Sees::Whole(status, body), Ok(answer)) => {
            assert_eq!((answer.status, answer.text().as_str()), (status, body), "{shown:?}");
        }
        (Sees::Broken, Err(_)) => {}
        (_, got) => panic!("{shown:?}: {sees:?} expected, got {got:?}"),
    }
    if !matches!(sees, Sees::Broken) {
        let next = tls.ask(ORDER);
        assert_eq!((next.status, next.text().as_str()), (200, "honest"), "after {shown:?}");
    }
    let next = stand.node.call(Some(&who), HTTPS).expect("connected").ask(ORDER);
    assert_eq!((next.status, next.text().as_str()), (200, "honest"), "after {shown:?}");
    let seen = stand.node.guest(A).app.seen();
    assert!(!seen.iter().any(|request| request.starts_with("AGAIN ")), "{shown:?}: {seen:#?}");
}

/// The app answers one request with `bytes`, all others honestly.
pub(crate) fn serve_once(stand: &Stand, bytes: &str, then: Then) {
    let evil = Mutex::new(Some(bytes.to_owned()));
    stand.node.guest(A).serve(move |mut link, app| {
        let mut was_evil = false;
        while let Ok(request) = read_request(&mut link) {
            app.saw(&if was_evil && then == Then::Stay { format!("AGAIN {request}") } else { request });
            let Some(bytes) = evil.lock().expect("no panic").take() else {
                link.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhonest");
                continue;
            };
            was_evil = true;
            let sent = send_all(&mut link, &bytes, then);
            assert!(sent < 32 * 1024 * 1024, "{sent} bytes were taken");
            if matches!(then, Then::Close | Then::Cut | Then::Repeat) {
                return;
            }
        }
    });
}

fn send_all(link: &mut Link, bytes: &str, then: Then) -> usize {
    let mut sent = 0;
    while link.write_all(bytes.as_bytes()).is_ok() {
        sent += bytes.len();
        if then != Then::Repeat || sent > 32 * 1024 * 1024 {
            break;
        }
    }
    if then == Then::Close {
        link.finish();
    }
    sent
}

const SIZED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegin";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n";

fn broken(stand: &Stand, cases: &[String], then: Then) {
    judge_each(stand, cases, then, Sees::Broken);
}

// covers: C14.16 (T33)
#[test]
fn a_chunk_of_an_answer_that_is_none_breaks_the_answer_off() {
    let chunks = [
        "ffffffffffffffff\r\nEVIL",
        "10000000000000005\r\nEVIL",
        "00000000000000004\r\nEVIL",
        "4;a=b\r\nEVIL\r\n0\r\n\r\n",
        "4\nEVIL\r\n0\r\n\r\n",
        "4 \r\nEVIL\r\n0\r\n\r\n",
        "-4\r\nEVIL\r\n0\r\n\r\n",
        "0x4\r\nEVIL\r\n0\r\n\r\n",
        "4\r\nEVILx\r\n0\r\n\r\n",
        "\r\n0\r\n\r\n",
        "0\r\n\n",
        "0\r\nEVIL\r\n\r\n",
    ];
    broken(&Stand::start(), &chunks.map(|chunk| format!("{CHUNKED}{chunk}")), Then::Stay);
}

// covers: C14.17 (T33)
#[test]
fn a_trailer_that_is_giant_never_ends_or_frames_breaks_the_answer_off() {
    let stand = Stand::start();
    let trailers = [
        format!("X: {}\r\n\r\n", "y".repeat(9000)),
        format!("{}\r\n", "a: b\r\n".repeat(33)),
        "Content-Length: 4\r\n\r\n".to_owned(),
        "Transfer-Encoding: chunked\r\n\r\n".to_owned(),
        "Set-Cookie: EVIL\r\n\r\n".to_owned(),
        "X: y\r\n z\r\n\r\n".to_owned(),
        "X: y\n\r\n".to_owned(),
    ];
    broken(&stand, &trailers.map(|trailer| format!("{CHUNKED}0\r\n{trailer}")), Then::Stay);
    let stand = Stand::start();
    stand.node.guest(A).serve(|mut link, _| {
        let Ok(_) = read_request(&mut link) else { return };
        link.send(format!("{CHUNKED}0\r\n"));
        let sent = send_all(&mut link, "X-Endless: EVIL\r\n", Then::Repeat);
        assert!(sent < 32 * 1024 * 1024, "{sent} bytes were taken");
    });
    let mut tls = stand.caller();
    tls.send(ORDER);
    assert!(tls.answer().is_err());
    stand.settle();
}

// covers: C14.18
#[test]
fn an_answer_that_ends_early_is_never_whole_for_its_caller() {
    for half_close in [true, false] {
        let stand = Stand::with(Plan { half_close, ..Plan::default() });
        let cases = [SIZED.to_owned(), CHUNKED.to_owned(), format!("{CHUNKED}4\r\nEV"), format!("{CHUNKED}0\r\n")];
        broken(&stand, &cases, Then::Close);
        broken(&stand, &cases, Then::Cut);
        let heads = ["", "HTTP/1.1 200 OK\r\nContent-Le", "HTTP/1.1 200 OK\r\nX: EVIL\r\n"].map(ToOwned::to_owned);
        judge_each(&stand, &heads, Then::Close, Sees::BadGateway);
        judge_each(&stand, &heads, Then::Cut, Sees::BadGateway);
        let lines = stand.node.audited(8, |line| {
            line["kind"] == "request" && line["reason"] == "upstream_closed" && line["status"] == 200
        });
        assert!(lines.iter().all(|line| line["verdict"] == "error"), "{lines:#?}");
    }
}

// covers: C14.19
#[test]
fn an_answer_that_only_its_end_delimits_is_whole_when_it_ends_and_broken_when_it_is_cut() {
    // A link that carries records tells the two apart.
    let stand = Stand::with(Plan { half_close: false, ..Plan::default() });
    let bytes = "HTTP/1.1 200 OK\r\nX: y\r\n\r\nto the end";
    judge(&stand, bytes, Then::Close, Sees::Whole(200, "to the end"));
    judge(&stand, bytes, Then::Cut, Sees::Broken);
}

const PLAIN_PORT: &str = "- {name: raw, port: 5432";
const PLAIN_RULE: &str = "
  - id: outside-to-a-plain
    tenant: t
    from: {cidr: NET.96/28}
    to: {workload: service-a, port: plain}
    http: {methods: [GET], paths: ['/v1/orders/**']}
";

/// A node whose `service-a` also takes HTTP without TLS, on 8080.
pub(crate) fn with_plain_port() -> Plan {
    let plan = Plan::default();
    let port =
        format!("- {{name: plain, port: 8080, target_port: 18080, mode: tcp, protocol: http}}\n      {PLAIN_PORT}");
    Plan { endpoints: plan.endpoints.replace(PLAIN_PORT, &port), rules: format!("{RULES}{PLAIN_RULE}"), ..plan }
}

// covers: C14.20
#[test]
fn an_old_client_sees_from_the_end_of_the_connection_that_an_answer_broke_off() {
    // HTTP/1.0 has no chunks: the end of the connection is the end of the answer, so a broken answer must end otherwise.
    let stand = Stand::start();
    for cut in [Then::Cut, Then::Close] {
        serve_once(&stand, CHUNKED, cut);
        let mut tls = stand.caller();
        tls.send(ORDER.replace("HTTP/1.1", "HTTP/1.0"));
        let mut all = Vec::new();
        let end = tls.read_to_end(&mut all);
        assert!(end.is_err(), "{cut:?}: {:?}", String::from_utf8_lossy(&all));
    }
}

// covers: C14.29
#[test]
fn an_old_client_without_tls_sees_a_reset_where_an_answer_broke_off_and_an_end_where_it_is_whole() {
    let stand = Stand::with(with_plain_port());
    let ask = || {
        let mut tcp = old_caller(&stand, 99);
        let mut all = Vec::new();
        let end = tcp.read_to_end(&mut all).map_err(|error| error.kind());
        (end.map(|_| ()), String::from_utf8_lossy(&all).into_owned())
    };
    for cut in [Then::Cut, Then::Close] {
        serve_once(&stand, CHUNKED, cut);
        let (end, all) = ask();
        assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset), "{cut:?}: {all:?}");
    }
    serve_once(&stand, &format!("{CHUNKED}0\r\n\r\n"), Then::Close);
    let (end, all) = ask();
    assert!(end.is_ok() && all.ends_with("\r\n\r\nbegin"), "{end:?} {all:?}");
    // The same when the supervisor cuts it. Another address has its own connections to the app.
    serve_once(&stand, CHUNKED, Then::Stay);
    let mut tcp = old_caller(&stand, 98);
    let mut begun = Vec::new();
    while !begun.ends_with(b"begin") {
        let mut byte = [0];
        tcp.read_exact(&mut byte).expect("the begin of an answer");
        begun.extend(byte);
    }
    stand.node.publish(RULES);
    let end = tcp.read(&mut [0; 8]).map_err(|error| error.kind());
    assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
}

/// Asks in HTTP/1.0 where there is no TLS.
fn old_caller(stand: &Stand, from: u8) -> std::net::TcpStream {
    let mut tcp = dial(&stand.node.ip(from), &format!("{}:8080", stand.node.ip(21))).expect("connected");
    tcp.write_all(ORDER.replace("HTTP/1.1", "HTTP/1.0").as_bytes()).expect("sent");
    tcp
}

// covers: C14.21
#[test]
fn a_request_that_breaks_off_is_never_whole_for_the_app() {
    let stand = Stand::start();
    let heads = ["Content-Length: 100\r\n\r\nbegin", "Transfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n"];
    for (at, framing) in heads.into_iter().enumerate() {
        for close_notify in [true, false] {
            let mut tls = stand.caller();
            tls.send(format!("{}{framing}", crate::support::POST));
            if close_notify {
                tls.close_notify();
                assert!(!rest(&mut tls).starts_with("HTTP/1.1 200"));
            }
            drop(tls);
            stand.settle();
            until("the app sees the end", || !stand.node.guest(A).app.seen().is_empty());
            let seen = stand.node.guest(A).app.seen();
            assert!(seen.iter().all(|got| got.starts_with("PART OF ")), "{at}: {seen:?}");
            stand.forget();
        }
    }
    stand.still_serves();
}

// covers: C14.22
#[test]
fn a_caller_that_goes_away_takes_the_connection_to_the_app_with_it() {
    let stand = Stand::start();
    let waiting = std::sync::Arc::<AtomicUsize>::default();
    let count = waiting.clone();
    stand.node.guest(A).serve(move |mut link, _| {
        if read_request(&mut link).is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
            link.wait_closed();
            count.fetch_sub(1, Ordering::SeqCst);
        }
    });
    let callers: Vec<_> = (0..5)
        .map(|_| {
            let mut tls = stand.caller();
            tls.send(ORDER);
            tls
        })
        .collect();
    until("all requests are at the app", || waiting.load(Ordering::SeqCst) == 5);
    drop(callers);
    until("no request is at the app", || waiting.load(Ordering::SeqCst) == 0);
    stand.settle();
}
