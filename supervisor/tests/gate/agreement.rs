//! The gate and hyper call the same bytes a message.

use bytes::Bytes;
use nova_supervisor::gate::{Asked, Event, Gate, Limits, Refusal};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::server::{LONG, Server};

/// What the gate calls messages: their bodies, without chunk framing, and the refusal.
fn messages(input: &[u8]) -> (Vec<Bytes>, Option<Refusal>) {
    let mut gate = Gate::requests(Limits::default());
    let (mut at, mut done) = (0, Vec::new());
    let (mut raw, mut is_chunked) = (Vec::new(), false);
    loop {
        let step = match gate.step(&input[at..]) {
            Ok(step) => step,
            Err(refusal) => return (done, Some(refusal)),
        };
        let released = &input[at..at + step.release];
        at += step.release;
        match step.event {
            Event::Request(asked) => {
                raw.clear();
                is_chunked = String::from_utf8_lossy(released).to_lowercase().contains("\r\ntransfer-encoding:");
                assert_ne!(asked, Asked::Head, "no HEAD in the samples");
            }
            Event::End => {
                raw.extend_from_slice(released);
                done.push(if is_chunked { dechunk(&raw) } else { raw.clone().into() });
                match gate.is_held() && input.starts_with(b"CONNECT") {
                    true => gate.close(),
                    false => gate.resume(),
                }
            }
            Event::More if step.release > 0 => raw.extend_from_slice(released),
            _ => return (done, None),
        }
    }
}

fn dechunk(mut raw: &[u8]) -> Bytes {
    let mut body = Vec::new();
    loop {
        let end = raw.iter().position(|&byte| byte == b'\r').expect("a size line");
        let size = usize::from_str_radix(std::str::from_utf8(&raw[..end]).expect("digits"), 16).expect("a size");
        if size == 0 {
            return body.into();
        }
        body.extend_from_slice(&raw[end + 2..end + 2 + size]);
        raw = &raw[end + 4 + size..];
    }
}

fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let pool: Vec<&'static str> = vec![
        "GET /a HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://b.test/?q HTTP/1.1\r\nhost: a\r\nAccept: */*\r\n\r\n",
        "POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\nGET / HTTP/1",
        "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nb\r\n0\r\n\r\nGET / H\r\n0\r\n\r\n",
        "POST /d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n0\r\nX: y\r\n\r\n",
        "PUT /e HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
        "GET /f HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a:80\r\n\r\n",
    ];
    let byte = prop_oneof![prop::sample::select(b"\r\n\t\0 :;,#/*0159af+-_.%HT".to_vec()), any::<u8>()];
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..3u8, byte), 0..3);
    (prop::collection::vec(prop::sample::select(pool), 1..5), edits).prop_map(|(parts, edits)| {
        let mut bytes = parts.concat().into_bytes();
        for (at, kind, byte) in edits {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        bytes
    })
}

/// Sends `input` in pieces of `cut` bytes and compares what hyper's service saw with what the gate counted.
async fn compare(input: Vec<u8>, cut: usize) -> Result<(), TestCaseError> {
    let (expected, refusal) = messages(&input);
    let mut server = Server::with_buffer(Limits::default(), 256);
    let (mut from, mut to) = tokio::io::split(server.client);
    let text = String::from_utf8_lossy(&input).into_owned();
    let writer = tokio::spawn(async move {
        for piece in input.chunks(cut) {
            // The server may close early, after a refusal.
            if to.write_all(piece).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        to
    });
    let mut got = String::new();
    let mut part = [0; 4096];
    while refusal.is_some() || got.matches("\r\n\r\nfine").count() < expected.len() {
        let read = timeout(LONG, from.read(&mut part)).await;
        let Ok(read) = read else { return Err(TestCaseError::fail(format!("stuck: {text:?} {got:?}"))) };
        let read = read.unwrap_or(0);
        if read == 0 {
            break;
        }
        got.push_str(&String::from_utf8_lossy(&part[..read]));
    }
    let to = writer.await.expect("no panic");
    server.client = from.unsplit(to);
    drop(server.client);
    let _ = timeout(LONG, server.task).await.expect("the server ends");
    let seen: Vec<_> = server.seen.lock().expect("no panic").iter().filter_map(|(_, _, body)| body.clone()).collect();
    let closes = text.contains("HTTP/1.0") || text.to_lowercase().contains("close");
    if !closes {
        prop_assert_eq!(&seen, &expected, "{:?} {:?}", text, got);
        prop_assert_eq!(server.handle.refusal(), refusal, "{:?} {:?}", text, got);
        if refusal.is_some() {
            prop_assert!(got.contains("HTTP/1.1 400 Bad Request\r\n"), "{:?} {:?}", text, got);
        }
    }
    prop_assert_eq!(server.handle.sent_refusal(), None);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hyper_and_the_gate_agree_on_every_message(input in pieces(), cut in 1..200usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(compare(input, cut))?;
    }
}
