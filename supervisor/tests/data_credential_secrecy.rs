//! What is logged, recorded, answered and told, with everything turned on: never a part of a secret.

mod credentials_support;
mod data;

use std::fs;
use std::io::{Read, Write};
use std::sync::Arc;

use credentials_support::{
    ALL, AWS, BASIC, BEARER, FILLED, HEADER, QUERY, SESSION, address, ask, get, plan, post, put, requests, upstream,
};
use data::{Node, Plan, Upstream, X, is, read_head, read_request, server_config, until};
use rustls::{ServerConnection, StreamOwned};
use serde_json::json;

/// Values in every spelling in which they leave: as they are, escaped, in base64.
fn secrets() -> Vec<String> {
    let mut all =
        [BEARER, HEADER, BASIC, QUERY, AWS, SESSION, FILLED, "query-value-c0ffee%26%3D", "filled-\\\"value\\\"-2b6d90"]
            .map(str::to_owned)
            .to_vec();
    all.extend(
        ["basic-value", "query-value", "filled-", "cm9ib3Q6YmFzaWM", "hidden-", "Signature=", "Evil"]
            .map(str::to_owned),
    );
    all
}

fn search(what: &str, text: &str) {
    for secret in secrets() {
        assert!(!text.contains(&secret), "{secret} in {what}");
    }
}

// covers: D9i, D17m (T46)
#[test]
fn no_secret_is_in_a_log_a_record_or_an_answer_with_everything_turned_on() {
    let node = Node::with(Plan { log: "trace", audit: "opa_file = \"opa.jsonl\"", ..plan() });
    let mut told = Vec::new();
    // All forms, granted, denied by path, and with a placeholder too many; a destination that is not there, and one that is.
    for (name, ..) in ALL {
        told.push(ask(&node, &get(&format!("{name}.test"), "/v1/x?key=1", "")));
        let upstream = upstream(&node, name);
        // A destination that was not there is not dialled again at once.
        until("it is dialled", || ask(&node, &get(&format!("{name}.test"), "/v1/x?key=2", "")).status == 200);
        for target in ["/v1/x?key=1&a=b", "/other", "/v1/x?a=nova_credential_filled"] {
            told.push(ask(&node, &get(&format!("{name}.test"), target, "Authorization: Bearer own\r\n")));
        }
        if name == "filled" {
            let fields = "Authorization: Basic dTpub3ZhX2NyZWRlbnRpYWxfZmlsbGVk\r\nContent-Type: application/json\r\n";
            told.push(ask(&node, &post("filled.test", fields, r#"{"k": "nova_credential_filled"}"#)));
            told.push(ask(&node, &get("filled.test", "/v1/x?key=nova_credential_filled", "")));
            assert!(
                upstream.seen().iter().any(|seen| seen.contains(r#"filled-\"value\"-2b6d90"#)),
                "{:?}",
                upstream.seen()
            );
        }
        assert!(!upstream.seen().is_empty(), "{name} was really sent");
    }
    // Files that cannot be used, and are reported.
    put(node.dir.path(), "bearer", "hidden-a\r\nEvil: 1");
    put(
        node.dir.path(),
        "aws",
        "{\"access_key_id\": \"a\", \"secret_access_key\": \"hidden-b\\n\",\n\"more\": \"hidden-c\"}",
    );
    until("they are reported", || {
        ["bearer", "aws"].iter().all(|name| node.warnings().contains(&format!("credential {name}: ")))
    });
    put(node.dir.path(), "query", "hidden-query-rotated");
    until("the new value goes out", || {
        let upstream_again = ask(&node, &get("query.test", "/v1/x", ""));
        upstream_again.status == 502 || upstream_again.status == 200
    });
    for question in [
        json!({"op": "ready"}),
        json!({"op": "policy"}),
        json!({"op": "endpoints"}),
        json!({"op": "connections"}),
        json!({"op": "explain_pair", "pair": "x -> bearer.test:9443 GET /v1/x"}),
        json!({"op": "replay", "decision_id": told[0].decision_id()}),
    ] {
        search(&question.to_string(), &node.ask(&question).expect("an answer").to_string());
    }
    node.audited(ALL.len(), |line| requests(line) && is(line, &[("detail", "placeholder")]));
    for (number, answer) in told.iter().enumerate().filter(|(_, answer)| answer.status != 200) {
        search(&format!("answer {number}"), &format!("{}{}", answer.head, answer.text()));
    }
    for file in ["audit.jsonl", "opa.jsonl", "stderr"] {
        let text = fs::read_to_string(node.dir.path().join(file)).expect("written");
        assert!(text.len() > 1000, "{file} says something: {text}");
        search(file, &text);
    }
    assert!(
        fs::read_to_string(node.dir.path().join("stderr")).expect("written").contains("TRACE"),
        "everything was turned on"
    );
    for file in ["cmdline", "environ"] {
        search(file, &fs::read_to_string(format!("/proc/{}/{file}", node.pid)).unwrap_or_default());
    }
}

/// A destination that answers each request with what `answer` makes of it.
fn answering(node: &Node, name: &str, answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Upstream {
    let who = server_config(&data::issue(&node.web, &format!("spiffe://web/{name}"), &format!("{name}.test")));
    let at = if name == "echo" { format!("{}:9443", node.ip(91)) } else { address(node, name) };
    Upstream::start(&at, move |stream| {
        let Ok(server) = ServerConnection::new(Arc::clone(&who)) else { return };
        let mut stream = StreamOwned::new(server, stream);
        while let Ok(request) = read_request(&mut stream) {
            let _ = stream.write_all(answer(&request).as_bytes());
        }
    })
}

/// An answer that says the fields and the target of its request in fields of its own, as debugging endpoints do.
fn echo(request: &str) -> String {
    let target = request.split(' ').nth(1).unwrap_or_default();
    let fields: String =
        request.lines().skip(1).take_while(|line| !line.is_empty()).map(|line| format!("X-Got-{line}\r\n")).collect();
    format!("HTTP/1.1 307 Temporary Redirect\r\nLocation: {target}\r\n{fields}Content-Length: 0\r\n\r\n")
}

// covers: D9o (T46)
#[test]
fn an_answer_whose_fields_say_the_secret_back_is_withheld_and_named() {
    let node = Node::with(plan());
    let _hosts = ALL.map(|(name, ..)| answering(&node, name, echo));
    for (name, ..) in ALL {
        let fields = if name == "filled" { "Authorization: Token nova_credential_filled\r\n" } else { "" };
        let answer = ask(&node, &get(&format!("{name}.test"), "/v1/x", fields));
        // What AWS gets is no secret, but for the token of a session.
        let expected = if name == "aws" { 307 } else { 502 };
        assert_eq!(answer.status, expected, "{name}: {answer:?}");
        if expected == 502 {
            search(name, &format!("{}{}", answer.head, answer.text()));
            assert!(answer.text().contains("may not be shown to an app"), "{answer:?}");
            let line = node.audited_once(|line| requests(line) && is(line, &[("credential", name)]));
            assert!(
                is(&line, &[("reason", "credential_echoed"), ("verdict", "error"), ("close", "credential_echoed")]),
                "{line}"
            );
        }
    }
}

// covers: D9o
#[test]
fn an_answer_to_a_call_without_a_credential_may_say_what_it_wants() {
    let node = Node::with(plan());
    let _host = answering(&node, "echo", echo);
    let answer = ask(&node, &get("echo.test", "/v1/x", &format!("X-Own: {BEARER}\r\n")));
    assert_eq!((answer.status, answer.header("x-got-x-own").as_deref()), (307, Some(BEARER)), "{answer:?}");
}

// covers: D9o
#[test]
fn trailers_that_say_the_secret_back_break_the_answer_off() {
    let node = Node::with(plan());
    let _host = answering(&node, "bearer", |request| {
        let said = data::header(request, "authorization").unwrap_or_default();
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-t\r\n\r\n1\r\na\r\n0\r\nx-t: {said}\r\n\r\n"
        )
    });
    let mut link = node.proxy(X);
    link.send(get("bearer.test", "/v1/x", "TE: trailers\r\n"));
    assert!(read_head(&mut link).expect("a head").starts_with("HTTP/1.1 200"));
    let mut rest = Vec::new();
    let _ = link.read_to_end(&mut rest);
    let rest = String::from_utf8_lossy(&rest);
    assert!(!rest.contains(BEARER) && !rest.contains("0\r\n\r\n"), "{rest}");
    node.audited_once(|line| is(line, &[("credential", "bearer"), ("reason", "credential_echoed")]));
}
