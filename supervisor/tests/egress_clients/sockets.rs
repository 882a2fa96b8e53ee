//! A host that speaks WebSocket: it greets, then gives back what it gets.

use std::io::{self, Read, Write};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::data::header;

/// Of RFC 6455 section 1.3.
const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const TEXT: u8 = 0x81;
const CLOSE: u8 = 0x88;

pub(crate) fn asks_for_one(request: &str) -> bool {
    header(request, "upgrade").is_some_and(|protocol| protocol.eq_ignore_ascii_case("websocket"))
}

/// Talks until the caller closes.
pub(crate) fn talk(mut stream: impl Read + Write, request: &str) {
    let key = header(request, "sec-websocket-key").expect("a key");
    let accept = BASE64_STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{MAGIC}").as_bytes()));
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    // The greeting comes in one piece with the head.
    let mut bytes = head.into_bytes();
    bytes.extend(frame(TEXT, b"welcome"));
    if stream.write_all(&bytes).and_then(|()| stream.flush()).is_err() {
        return;
    }
    while let Ok((kind, payload)) = read_frame(&mut stream) {
        let sent = stream.write_all(&frame(kind, &payload)).and_then(|()| stream.flush());
        if kind == CLOSE || sent.is_err() {
            return;
        }
    }
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&[kind, u8::try_from(payload.len()).expect("short")], payload].concat()
}

/// A short frame of a client, unmasked.
fn read_frame(stream: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 6];
    stream.read_exact(&mut head)?;
    let mut payload = vec![0; usize::from(head[1] & 0x7f)];
    stream.read_exact(&mut payload)?;
    payload.iter_mut().zip(head[2..].iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    Ok((head[0], payload))
}
