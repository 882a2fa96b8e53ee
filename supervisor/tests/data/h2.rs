//! HTTP/2 by hand: frames written and read as bytes, from either end.

use std::io::{self, Read, Write};

use super::hpack::{self, Decoder, Field};

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub const NO_ERROR: u32 = 0;
pub const PROTOCOL_ERROR: u32 = 1;
pub const REFUSED_STREAM: u32 = 7;
pub const CANCEL: u32 = 8;
pub const ENHANCE_YOUR_CALM: u32 = 11;

#[derive(Debug, Clone)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// What came, as far as a test cares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Headers { stream: u32, fields: Vec<Field>, end: bool },
    Data { stream: u32, bytes: Vec<u8>, end: bool },
    Reset { stream: u32, code: u32 },
    GoAway { last: u32, code: u32 },
}

/// All that was said on one stream until it ended.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub fields: Vec<Field>,
    pub body: Vec<u8>,
    pub trailers: Vec<Field>,
    /// The stream was reset with this code instead of ended.
    pub reset: Option<u32>,
    /// Heads of 1xx before the final one.
    pub interim: usize,
}

impl Reply {
    pub fn status(&self) -> u16 {
        self.get(":status").and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no status in {self:?}"))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        find(&self.fields, name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

pub fn find<'a>(fields: &'a [Field], name: &str) -> Option<&'a str> {
    fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// One end of a connection.
pub struct H2<S> {
    pub io: S,
    /// Of the peer's fields.
    pub decoder: Decoder,
    block: Vec<u8>,
    /// Whether the windows of the peer are opened again for what was read.
    pub credits: bool,
    /// What may be sent on all streams together.
    room: i64,
}

impl<S: Read + Write> H2<S> {
    /// A client with default settings.
    pub fn client(io: S) -> Self {
        Self::client_with(io, &[])
    }

    /// A client with these settings.
    pub fn client_with(io: S, settings: &[(u16, u32)]) -> Self {
        let mut h2 = Self::begun(io);
        h2.bytes(PREFACE);
        h2.settings(settings);
        h2
    }

    /// A client whose preface and settings are sent already.
    pub fn begun(io: S) -> Self {
        Self { io, decoder: Decoder::default(), block: Vec::new(), credits: true, room: 65_535 }
    }

    /// A server with default settings, once the client's preface is there.
    pub fn server(mut io: S) -> io::Result<Self> {
        let mut preface = [0; PREFACE.len()];
        io.read_exact(&mut preface)?;
        assert_eq!(preface, PREFACE, "{}", String::from_utf8_lossy(&preface));
        let mut h2 = Self::begun(io);
        h2.settings(&[]);
        Ok(h2)
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.try_bytes(bytes).expect("sent");
    }

    pub fn try_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.io.write_all(bytes)?;
        self.io.flush()
    }

    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.bytes(&frame(kind, flags, stream, payload));
    }

    pub fn settings(&mut self, settings: &[(u16, u32)]) {
        let mut payload = Vec::new();
        for (id, value) in settings {
            payload.extend(id.to_be_bytes());
            payload.extend(value.to_be_bytes());
        }
        self.send(SETTINGS, 0, 0, &payload);
    }

    pub fn headers(&mut self, stream: u32, fields: &[(&str, &str)], end: bool) {
        self.send(HEADERS, END_HEADERS | (u8::from(end) * END_STREAM), stream, &hpack::encode(fields));
    }

    /// A request without a body.
    pub fn request(&mut self, stream: u32, method: &str, path: &str) {
        self.headers(stream, &head(method, path), true);
    }

    /// A request without a body, and all of its answer.
    pub fn ask(&mut self, stream: u32, method: &str, path: &str) -> Reply {
        self.request(stream, method, path);
        self.reply(stream)
    }

    /// Sends payload once the connection's window has room for it.
    pub fn data(&mut self, stream: u32, bytes: &[u8], end: bool) {
        let length = i64::try_from(bytes.len()).expect("short");
        while self.room < length {
            self.frame().expect("room for more");
        }
        self.room -= length;
        self.send(DATA, u8::from(end) * END_STREAM, stream, bytes);
    }

    pub fn reset(&mut self, stream: u32, code: u32) {
        self.send(RST_STREAM, 0, stream, &code.to_be_bytes());
    }

    pub fn window(&mut self, stream: u32, more: u32) {
        self.send(WINDOW_UPDATE, 0, stream, &more.to_be_bytes());
    }

    /// The next frame; settings and pings are acknowledged.
    pub fn frame(&mut self) -> io::Result<Frame> {
        loop {
            let mut head = [0; 9];
            self.io.read_exact(&mut head)?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let mut payload = vec![0; length];
            self.io.read_exact(&mut payload)?;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
            let (kind, flags) = (head[3], head[4]);
            match kind {
                SETTINGS | PING if flags & ACK == 0 => {
                    let back = if kind == PING { payload.as_slice() } else { &[] };
                    // A peer that is on its way out does not need it any more.
                    let _ = self.try_bytes(&frame(kind, ACK, 0, back));
                }
                _ => {}
            }
            if kind == WINDOW_UPDATE && stream == 0 {
                self.room += i64::from(u32::from_be_bytes(payload[..4].try_into().expect("four bytes")));
            }
            if !matches!(kind, SETTINGS | PING) || flags & ACK != 0 {
                return Ok(Frame { kind, flags, stream, payload });
            }
        }
    }

    /// The next thing that matters. An error is the end of the connection.
    pub fn event(&mut self) -> io::Result<Event> {
        loop {
            let Frame { kind, flags, stream, payload } = self.frame()?;
            let end = flags & END_STREAM != 0;
            let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().expect("four bytes"));
            match kind {
                HEADERS | CONTINUATION => {
                    assert_eq!(flags & 0x28, 0, "no padding, no priority");
                    self.block.extend(&payload);
                    if flags & END_HEADERS != 0 {
                        let fields = self.decoder.decode(&std::mem::take(&mut self.block));
                        return Ok(Event::Headers { stream, fields, end });
                    }
                }
                DATA => {
                    if self.credits && !payload.is_empty() {
                        let more = u32::try_from(payload.len()).expect("short");
                        self.window(0, more);
                        if !end {
                            self.window(stream, more);
                        }
                    }
                    return Ok(Event::Data { stream, bytes: payload, end });
                }
                RST_STREAM => return Ok(Event::Reset { stream, code: number(0) }),
                GOAWAY => return Ok(Event::GoAway { last: number(0) & 0x7fff_ffff, code: number(4) }),
                _ => {}
            }
        }
    }

    /// Everything on `stream` until it ends. What comes for others is forgotten.
    pub fn reply(&mut self, stream: u32) -> Reply {
        self.try_reply(stream).expect("an answer")
    }

    pub fn try_reply(&mut self, wanted: u32) -> io::Result<Reply> {
        let mut reply = Reply::default();
        loop {
            match self.event()? {
                Event::Headers { stream, fields, end } if stream == wanted => {
                    if find(&fields, ":status").is_some_and(|status| status.starts_with('1')) {
                        reply.interim += 1;
                        continue;
                    }
                    if reply.fields.is_empty() {
                        reply.fields = fields;
                    } else {
                        reply.trailers = fields;
                    }
                    if end {
                        return Ok(reply);
                    }
                }
                Event::Data { stream, bytes, end } if stream == wanted => {
                    reply.body.extend(bytes);
                    if end {
                        return Ok(reply);
                    }
                }
                Event::Reset { stream, code } if stream == wanted => {
                    reply.reset = Some(code);
                    return Ok(reply);
                }
                Event::GoAway { code, .. } if code != NO_ERROR => {
                    return Err(io::Error::other(format!("GOAWAY {code}")));
                }
                _ => {}
            }
        }
    }

    /// The code of the GOAWAY with which the peer ends the connection; `None` when it ends without one.
    pub fn goaway(&mut self) -> Option<u32> {
        loop {
            match self.event() {
                Ok(Event::GoAway { code, .. }) => return Some(code),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short");
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The fields that every request has.
pub fn head<'a>(method: &'a str, path: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![(":method", method), (":scheme", "https"), (":authority", "service-a.t.nova"), (":path", path)]
}
