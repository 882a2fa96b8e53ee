//! Mutated streams of requests, against an app that reads as carelessly as any: whatever it takes for a request was decided.

use std::cell::Cell;
use std::io::{Read, Write};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::broken_answers::{Then, serve_once};
use crate::data::{A, App, HTTPS, Link};
use crate::support::{HOST, ORDER, Stand, rest};

/// A request that no rule grants, where a careless parser may find it.
const EVIL: &str = "DELETE /v1/admin?evil HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n";

fn samples() -> Vec<String> {
    let post = format!("POST /v1/orders/1 HTTP/1.1\r\n{HOST}");
    let length = EVIL.len();
    vec![
        format!("GET /v1/orders/1 HTTP/1.1\r\n{HOST}\r\n"),
        format!("GET http://service-a.t.nova/v1/orders/1 HTTP/1.1\r\n{HOST}X: y\r\n\r\n"),
        format!("{post}Content-Length: {length}\r\n\r\n{EVIL}"),
        format!("{post}Content-Length: {length}\r\nExpect: 100-continue\r\n\r\n{EVIL}"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{EVIL}\r\n0\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\nTrailer: X\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n"),
        format!(
            "HEAD /v1/orders/1?{} HTTP/1.1\r\n{HOST}Connection: keep-alive\r\n\r\n",
            EVIL.replace(['\r', '\n', ' '], "")
        ),
        format!("GET /v1/orders/1 HTTP/1.1\r\n{HOST}Connection: Upgrade\r\nUpgrade: evil\r\n\r\n"),
        EVIL.to_owned(),
    ]
}

/// What makes one parser differ from another.
fn spice() -> impl Strategy<Value = String> {
    let pieces = [
        "\r\nTransfer-Encoding: chunked",
        "\r\nTransfer_Encoding: chunked",
        "\r\nTransfer-Encoding:\tchunked",
        "\r\nContent-Length: 0",
        "\r\nContent-Length: 7",
        "\r\nContent-Length : 7",
        "\r\nX-Forwarded-Client-Cert: URI=evil",
        "\r\nX_Forwarded_Client_Cert: URI=evil",
        "\r\nConnection: content-length, x-forwarded-client-cert",
        "\r\nHost: evil",
        "\r\nX-HTTP-Method-Override: DELETE",
        "\r\n folded",
        "0\r\n\r\n",
        "\r\n\r\n",
        "\r\n",
        "\n\n",
        "\n",
        "\r",
        ";a=b",
        "/../admin",
        "/%2e%2e/%2E%2e/admin",
        "%25%32%65",
        "\0",
        "\t",
        " ",
        "0",
        "f",
    ];
    prop::sample::select(pieces.map(str::to_owned).to_vec())
}

fn streams() -> impl Strategy<Value = Vec<u8>> {
    let parts = prop::collection::vec(prop::sample::select(samples()), 1..4);
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), spice()), 0..4);
    (parts, edits).prop_map(|(parts, edits)| mutated(parts.concat(), edits).into_bytes())
}

fn mutated(mut text: String, edits: Vec<(prop::sample::Index, bool, String)>) -> String {
    for (at, replace, piece) in edits {
        // All of it is ASCII.
        let at = at.index(text.len());
        text.replace_range(at..at + usize::from(replace), &piece);
    }
    text
}

// covers: C5.42, C5.60 (T16)
#[test]
fn nothing_that_an_app_could_take_for_a_request_was_not_decided() {
    let stand = Stand::start();
    stand.node.guest(A).serve(careless);
    let xfcc = stand.xfcc();
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() });
    let arrived = Cell::new(0);
    let outcome = runner.run(&streams(), |bytes| {
        let mut tls = stand.caller();
        let _ = tls.write_all(&bytes);
        tls.close_notify();
        let answers = rest(&mut tls);
        drop(tls);
        stand.settle();
        let seen = std::mem::take(&mut *stand.node.guest(A).app.requests.lock().expect("no panic"));
        arrived.set(arrived.get() + seen.len());
        for head in &seen {
            prop_assert!(
                was_decided(head, &xfcc),
                "{:?} became {head:?}, answers {answers:?}",
                String::from_utf8_lossy(&bytes)
            );
        }
        Ok(())
    });
    assert!(outcome.is_ok(), "{outcome:?}");
    assert!(arrived.get() > 100, "only {} requests arrived, which shows nothing", arrived.get());
}

fn answers() -> impl Strategy<Value = String> {
    const OK: &str = "HTTP/1.1 200 OK\r\n";
    let poison = format!("{OK}Content-Length: 4\r\n\r\nEVIL");
    let samples = vec![
        format!("{OK}Content-Length: {}\r\n\r\n{poison}", poison.len()),
        format!("{OK}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{poison}\r\n0\r\n\r\n", poison.len()),
        format!("HTTP/1.1 100 Continue\r\n\r\n{OK}Content-Length: 0\r\n\r\n"),
        format!("HTTP/1.1 304 Not Modified\r\nContent-Length: {}\r\n\r\n", poison.len()),
        "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
        poison,
    ];
    let parts = prop::collection::vec(prop::sample::select(samples), 1..3);
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), spice()), 0..3);
    (parts, edits).prop_map(|(parts, edits)| mutated(parts.concat(), edits))
}

// covers: C14.13 (T16, T33)
#[test]
fn nothing_of_an_answer_is_left_for_the_next_caller() {
    let stand = Stand::start();
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() });
    let outcome = runner.run(&answers(), |bytes| {
        serve_once(&stand, &bytes, Then::Stay);
        let who = stand.node.svid("x");
        let mut tls = stand.node.call(Some(&who), HTTPS).expect("connected");
        // An answer without end is given up: by then it has come as far as it will.
        tls.tcp().set_read_timeout(Some(Duration::from_millis(300))).expect("set");
        tls.send(ORDER);
        let first = tls.answer();
        if first.is_err() {
            drop(tls);
            stand.settle();
        }
        let next = stand.node.call(Some(&who), HTTPS).expect("connected").ask(ORDER);
        prop_assert_eq!(
            (next.status, next.text()),
            (200, "honest".to_owned()),
            "after {:?}, answered {:?}",
            bytes,
            first
        );
        Ok(())
    });
    assert!(outcome.is_ok(), "{outcome:?}");
}

fn was_decided(head: &str, xfcc: &str) -> bool {
    let mut lines = head.lines();
    let line: Vec<_> = lines.next().unwrap_or_default().split(' ').collect();
    let fields: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    let [method, target, "HTTP/1.1"] = line[..] else { return false };
    let path = target.split('?').next().unwrap_or_default();
    let is_plain = !path.contains("..") && !path.contains("%2E") && !path.contains("%25") && !path.contains("//");
    let named =
        |name: &str| fields.iter().filter(|field| field.replace('_', "-").to_lowercase().starts_with(name)).count();
    ["GET", "HEAD", "POST", "PUT"].contains(&method)
        && path.starts_with("/v1/orders/")
        && is_plain
        && named("host:") == 1
        && named("x-forwarded-client-cert") == 1
        && fields.contains(&&*format!("x-forwarded-client-cert: {xfcc}"))
        && named("x-http-method-override") == 0
        && named("content-length") + named("transfer-encoding") <= 1
}

/// Reads lines that end in LF, the first length it finds before any coding, and sizes up to whatever is no digit.
fn careless(mut link: Link, app: &App) {
    let (mut held, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(read @ 1..) = link.read(&mut piece) {
        held.extend_from_slice(&piece[..read]);
        while let Some((head, used)) = take(&String::from_utf8_lossy(&held)) {
            held.drain(..used);
            app.saw(&head);
            if link.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
                return;
            }
        }
    }
}

fn take(text: &str) -> Option<(String, usize)> {
    let ends = [text.find("\n\r\n").map(|at| at + 3), text.find("\n\n").map(|at| at + 2)];
    let end = ends.into_iter().flatten().min()?;
    let head = text[..end].to_owned();
    let value = |name: &str| {
        let fields = head.lines().filter_map(|line| line.split_once(':'));
        let mut named = fields.filter(|(key, _)| key.trim().replace('_', "-").eq_ignore_ascii_case(name));
        named.next().map(|(_, value)| value.trim().to_owned())
    };
    if let Some(length) = value("content-length") {
        let digits: String = length.chars().take_while(char::is_ascii_digit).collect();
        let used = end + digits.parse::<usize>().unwrap_or(0);
        return (used <= text.len()).then_some((head, used));
    }
    let mut used = end;
    if value("transfer-encoding").is_some_and(|coding| coding.to_lowercase().contains("chunked")) {
        loop {
            let line = used + text[used..].find('\n')? + 1;
            let digits: String = text[used..line].chars().take_while(char::is_ascii_hexdigit).collect();
            let size = usize::from_str_radix(&digits, 16).unwrap_or(0);
            if size == 0 {
                used = line
                    + text[line..]
                        .find("\r\n")
                        .filter(|at| *at == 0)
                        .map_or_else(|| text[line..].find("\n\r\n").map(|at| at + 3), |_| Some(2))?;
                break;
            }
            used = line + size + text.get(line + size..)?.find('\n')? + 1;
        }
    }
    Some((head, used))
}
