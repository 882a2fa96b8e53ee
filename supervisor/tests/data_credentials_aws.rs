//! Requests to AWS as they arrive there, checked as a server checks them: the signature is made again from the bytes that came.

mod credentials_support;
mod data;

use aws_lc_rs::{digest, hmac};
use credentials_support::{AWS, SESSION, ask, get, plan, post, upstream};
use data::{Node, header, is};

fn sha256(text: &str) -> String {
    hex::encode(digest::digest(&digest::SHA256, text.as_bytes()))
}

/// What `Authorization` must say of this request, in the words of the documentation of Signature Version 4.
fn expected(request: &str, payload: &str, service: &str, path: &str, query: &str) -> String {
    let field = |name: &str| header(request, name).unwrap_or_default();
    let authorization = field("authorization");
    let signed = authorization.split("SignedHeaders=").nth(1).and_then(|rest| rest.split(',').next()).expect("a list");
    let lines: String = signed.split(';').map(|name| format!("{name}:{}\n", field(name))).collect();
    let method = request.split(' ').next().expect("a method");
    let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{signed}\n{payload}");
    let (time, scope) =
        (field("x-amz-date"), format!("{}/eu-west-1/{service}/aws4_request", &field("x-amz-date")[..8]));
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", sha256(&canonical));
    let mut key = format!("AWS4{AWS}").into_bytes();
    for part in scope.split('/').chain([text.as_str()]) {
        key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), part.as_bytes()).as_ref().to_vec();
    }
    format!("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/{scope}, SignedHeaders={signed}, Signature={}", hex::encode(key))
}

// covers: D9d
#[test]
fn s3_gets_uploads_as_they_come_with_a_signature_over_the_head() {
    let node = Node::with(plan());
    let upstream = upstream(&node, "aws");
    let mut link = node.proxy(data::X);
    link.send(
        "PUT http://aws.test:9443/v1/a%20b?x=1&b=%2f HTTP/1.1\r\nHost: aws.test:9443\r\nAuthorization: AWS4-HMAC-SHA256 own\r\n\
         X-Amz-Meta-A:  two   words \r\nX-Amz-Security-Token: own\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    );
    assert_eq!(data::read_answer(&mut link).expect("an answer").status, 200);
    let seen = upstream.seen().remove(0);
    let authorization = header(&seen, "authorization").expect("signed");
    assert!(
        authorization.contains("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-meta-a,"),
        "{authorization}"
    );
    assert_eq!(header(&seen, "x-amz-content-sha256").as_deref(), Some("UNSIGNED-PAYLOAD"));
    assert_eq!(header(&seen, "x-amz-security-token"), None, "the app's own token goes");
    let trimmed = seen.replace("two   words", "two words");
    assert_eq!(authorization, expected(&trimmed, "UNSIGNED-PAYLOAD", "s3", "/v1/a%20b", "b=%2F&x=1"));
}

// covers: D9d
#[test]
fn other_services_get_a_signature_over_the_whole_body_which_is_read_within_its_bound() {
    let node = Node::with(plan());
    let upstream = upstream(&node, "db");
    let json = "Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: T.Get\r\n";
    let answer = ask(&node, &post("db.test", json, r#"{"TableName": "t"}"#));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(ask(&node, &get("db.test", "/v1/x", "")).status, 200);
    for (seen, body) in upstream.seen().iter().zip([r#"{"TableName": "t"}"#, ""]) {
        assert_eq!(header(seen, "x-amz-security-token").as_deref(), Some(SESSION));
        assert_eq!(
            header(seen, "authorization"),
            Some(expected(seen, &sha256(body), "dynamodb", "/v1/x", "")),
            "{seen}"
        );
        assert!(seen.ends_with(&format!("\r\n\r\n{body}")), "{seen}");
    }
    let long = "x".repeat(1024 * 1024 + 1);
    assert_eq!(ask(&node, &post("db.test", json, &long)).status, 403);
    node.audited_once(|line| is(line, &[("reason", "credential_unavailable"), ("detail", "credential_body_size")]));
    let chunks = "X-Amz-Content-Sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\r\n";
    assert_eq!(ask(&node, &post("db.test", chunks, "x")).status, 403);
    node.audited_once(|line| is(line, &[("detail", "credential_chunk_signatures"), ("credential", "db")]));
    assert_eq!(upstream.seen().len(), 2);
}
