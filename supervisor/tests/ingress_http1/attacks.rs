//! A hostile caller and a hostile app: odd cuts, odd moments, odd ends.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::data::{A, is, read_head, read_request, until};
use crate::smuggling::{CHUNKED, SMUGGLED, post};
use crate::support::{HOST, ORDER, POST, Stand, Wanted, get, rest};

// covers: C5.52
#[test]
fn requests_that_come_byte_by_byte_are_the_same_requests() {
    let stand = Stand::start();
    let denied = ORDER.replace("GET", "DELETE");
    let bytes = format!(
        "\r\n{ORDER}{}{CHUNKED}5\r\nhello\r\n1\r\n \r\n0\r\nX: y\r\n\r\n{denied}{ORDER}",
        post("Content-Length: 5\r\n", "hello")
    );
    let mut tls = stand.caller();
    for byte in bytes.as_bytes() {
        tls.send([*byte]);
    }
    assert_eq!([(); 5].map(|()| tls.answer().expect("an answer").status), [200, 200, 200, 403, 200]);
    let posted = || Wanted::line("POST /v1/orders/42");
    stand.app_got(&[
        Wanted::order(),
        posted().with("content-length: 5").body("hello"),
        posted().with("transfer-encoding: chunked").body("hello |"),
        Wanted::order(),
    ]);
    let bad = format!("{POST}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{SMUGGLED}");
    let mut tls = stand.caller();
    for byte in bad.as_bytes() {
        if tls.write_all(&[*byte]).is_err() {
            break;
        }
    }
    assert_eq!(tls.answer().expect("an answer").status, 400);
    stand.app_got(&[]);
}

// covers: C5.52
#[test]
fn a_request_that_the_app_failed_is_not_blamed_on_the_malformed_one_behind_it() {
    let stand = Stand::start();
    let (asked, may_die) = (std::sync::Arc::<AtomicBool>::default(), std::sync::Arc::<AtomicBool>::default());
    let (has, may) = (asked.clone(), may_die.clone());
    stand.node.guest(A).serve(move |mut link, _| {
        if read_request(&mut link).is_ok() {
            has.store(true, Ordering::SeqCst);
            until("the app may die", || may.load(Ordering::SeqCst));
        }
    });
    let mut tls = stand.caller();
    tls.send(format!("{ORDER}GET /v1/orders/43 HTTP/1.1\n{HOST}\n"));
    until("the app has the request", || asked.load(Ordering::SeqCst));
    may_die.store(true, Ordering::SeqCst);
    assert_eq!([(); 2].map(|()| tls.answer().expect("an answer").status), [502, 400]);
    assert_eq!(rest(&mut tls), "");
    stand
        .node
        .audited_once(|line| is(line, &[("kind", "request"), ("reason", "upstream_closed"), ("verdict", "error")]));
    stand.node.audited_once(|line| is(line, &[("kind", "connection"), ("reason", "malformed"), ("detail", "bare_lf")]));
}

// covers: C5.52
#[test]
fn nothing_behind_a_request_that_closes_is_served() {
    let stand = Stand::start();
    let closing = get("/v1/orders/42", "Connection: close\r\n");
    let mut tls = stand.caller();
    tls.send(format!("{closing}{SMUGGLED}{SMUGGLED}"));
    assert_eq!(tls.answer().expect("an answer").status, 200);
    assert_eq!(rest(&mut tls), "");
    stand.settle();
    stand.app_got(&[Wanted::order()]);
}

// covers: C14.24
#[test]
fn an_app_that_refuses_an_upload_and_closes_is_heard() {
    let stand = Stand::start();
    stand.node.guest(A).serve(|mut link, _| {
        if read_head(&mut link).is_ok() {
            link.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig");
            link.finish();
        }
    });
    for _ in 0..5 {
        let mut tls = stand.caller();
        tls.send(format!("{POST}Content-Length: 50000000\r\n\r\n"));
        // It goes on sending until nobody listens, as clients do that look for an answer only then.
        let piece = [b'x'; 16 * 1024];
        for _ in 0..64 {
            if tls.write_all(&piece).is_err() {
                break;
            }
        }
        let answer = tls.answer().expect("an answer");
        assert_eq!((answer.status, answer.text().as_str()), (413, "big"));
    }
}

// covers: C14.25 (T16)
#[test]
fn an_app_that_answers_before_it_is_asked_shifts_no_answers_to_other_callers() {
    let stand = Stand::start();
    stand.node.guest(A).serve(|mut link, _| {
        link.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL");
        while let Ok(request) = read_request(&mut link) {
            let path = request.split(' ').nth(1).unwrap_or_default();
            if link
                .write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len()).as_bytes())
                .is_err()
            {
                return;
            }
        }
    });
    for number in 0..30 {
        let path = format!("/v1/orders/{number}");
        let answer = stand.caller().ask(get(&path, ""));
        let own = answer.status == 502 || ["EVIL", &path].contains(&answer.text().as_str());
        assert!(own, "{path}: {answer:?}");
    }
}

// covers: C14.26
#[test]
fn what_apps_may_write_reaches_the_caller_and_a_status_text_does_not() {
    let stand = Stand::start();
    stand.node.guest(A).serve(|mut link, _| {
        while read_request(&mut link).is_ok() {
            link.send(b"HTTP/1.1 299 \xff evil\r\nContent-Disposition: a; filename=\"caf\xc3\xa9\"\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let mut tls = stand.caller();
    tls.send(get("/v1/orders/42", "Connection: close\r\n"));
    let mut answer = Vec::new();
    tls.read_to_end(&mut answer).expect("a good end");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 299 <none>\r\n") || answer.starts_with("HTTP/1.1 299 \r\n"), "{answer}");
    assert!(answer.contains("filename=\"caf\u{e9}\""), "{answer}");
}

// covers: C5.48
#[test]
fn a_head_that_trickles_is_given_up_in_time() {
    let stand = Stand::start();
    let mut tls = stand.caller();
    tls.tcp().set_read_timeout(Some(Duration::from_millis(200))).expect("set");
    let mut got = Vec::new();
    for byte in get("/v1/orders/42", &"X: y\r\n".repeat(90)).as_bytes() {
        if tls.write_all(&[*byte]).is_err() {
            break;
        }
        let mut piece = [0; 1024];
        match tls.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => got.extend_from_slice(&piece[..read]),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    assert!(got.starts_with(b"HTTP/1.1 408 "), "{:?}", String::from_utf8_lossy(&got));
    stand.app_got(&[]);
}

// covers: C5.55
#[test]
fn a_refused_upgrade_leaves_nothing_behind_it_unread_or_undecided() {
    let stand = Stand::start();
    let upgrade = |method: &str, fields: &str, body: &str| {
        format!("{method} /v1/orders/42 HTTP/1.1\r\n{HOST}Connection: Upgrade\r\nUpgrade: evil\r\n{fields}\r\n{body}")
    };
    let denied = ORDER.replace("GET", "DELETE");
    let bytes = format!(
        "{}{denied}{}{}{ORDER}",
        upgrade("GET", "", ""),
        upgrade("DELETE", "", ""),
        upgrade("POST", "Content-Length: 5\r\n", "hello"),
    );
    let got = Wanted::line("POST /v1/orders/42").with("content-length: 5").body("hello");
    stand.serves(bytes, &[200, 403, 403, 200, 200], &[Wanted::order(), got, Wanted::order()]);
    let bad = upgrade("POST", "Transfer-Encoding: chunked\r\n", "5;x\r\nhello\r\n0\r\n\r\n");
    let mut tls = stand.caller();
    tls.send(format!("{bad}{SMUGGLED}"));
    assert_eq!(tls.answer().expect("an answer").status, 400);
    assert_eq!(rest(&mut tls), "");
    stand.settle();
    assert!(!stand.node.guest(A).app.seen().iter().any(|got| got.contains("SMUGGLED")));
}

// covers: C5.59
#[test]
fn a_body_that_an_app_refuses_unread_is_not_its_next_request() {
    let stand = Stand::start();
    stand.node.guest(A).serve(|mut link, app| {
        while let Ok(head) = read_head(&mut link) {
            // Takes a refused expectation for a promise that no body comes.
            if !head.to_ascii_lowercase().contains("expect:") && head.starts_with("POST ") {
                let mut body = vec![0; SMUGGLED.len()];
                link.read_exact(&mut body).expect("the body");
            }
            app.saw(&head);
            link.send("HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let mut tls = stand.caller();
    tls.send(post(&format!("Expect: 100-continue\r\nContent-Length: {}\r\n", SMUGGLED.len()), SMUGGLED));
    assert_eq!(tls.answer().expect("an answer").status, 401);
    assert_eq!(tls.ask(ORDER).status, 401);
    let seen = stand.node.guest(A).app.seen();
    assert!(seen.len() == 2 && !seen.concat().contains("SMUGGLED"), "{seen:#?}");
}
