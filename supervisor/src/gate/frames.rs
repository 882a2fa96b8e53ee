//! Counts the frames of an HTTP/2 connection: what costs its sender nothing and the library behind it answers without an
//! end. The library has limits of its own for streams, heads, CONTINUATION, small DATA and resets of streams that nobody
//! has looked at.
//!
//! Sans-io: [`Frames`] is shown the bytes of both directions in order and looks at frame heads only.

use std::collections::VecDeque;
use std::time::Instant;

/// Which budget ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flood {
    /// SETTINGS.
    Settings,
    /// RST_STREAM: streams opened and given up (CVE-2023-44487, also at a pace that the library lets pass).
    Resets,
    /// HEADERS of answers: interim ones without end.
    Heads,
    /// PING, PRIORITY, WINDOW_UPDATE, DATA of no bytes, frames that nobody knows.
    Control,
}

impl Flood {
    /// The name in audit records.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Settings => "settings_flood",
            Self::Resets => "reset_flood",
            Self::Heads => "heads_flood",
            Self::Control => "control_flood",
        }
    }
}

/// Which end of the connection the peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A caller: it begins with the preface.
    Client,
    /// An app.
    Server,
}

const PREFACE: usize = 24;
const HEAD: usize = 9;
/// With the code of a RST_STREAM.
const RESET: usize = 13;
/// Streams of callers that nobody has looked at yet; far more than may be open.
const UNSEEN: usize = 1024;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;

/// A client changes its settings once or twice in its life.
const SETTINGS_BURST: u32 = 32;
const SETTINGS_PER_SECOND: u32 = 1;
/// Callers cancel in bursts when a deadline of theirs ends many calls at once.
const RESETS_BURST: u32 = 200;
const RESETS_PER_SECOND: u32 = 50;
/// What keeps a connection alive and measures it, beside what moves payload.
const CONTROL_BURST: u32 = 1000;
const CONTROL_PER_SECOND: u32 = 100;
/// Each frame that carries something is worth so many that carry nothing: both windows are opened for it, and clients that
/// measure the way send a PING with it.
const CONTROL_PER_PAYLOAD: u32 = 4;
/// Heads of an answer: 16 interim ones, its own, its trailers. What HTTP/1 may have as well.
const HEADS_PER_REQUEST: u32 = 18;

/// Follows one connection.
#[derive(Debug)]
pub struct Frames {
    peer: Peer,
    received: Follower,
    sent: Follower,
    settings: Bucket,
    resets: Bucket,
    control: Bucket,
    heads: u32,
    /// Streams of a caller that are no requests yet, in the order in which they came.
    unseen: VecDeque<u32>,
    highest: u32,
    /// Those that the library refused with this code, so that they never will be.
    refused: VecDeque<(u32, u32)>,
}

impl Frames {
    /// A connection on which nothing was said.
    #[must_use]
    pub fn new(peer: Peer, now: Instant) -> Self {
        let preface = |from| Follower { left: if from == peer { PREFACE } else { 0 }, ..Follower::default() };
        Self {
            peer,
            received: preface(Peer::Client),
            sent: preface(Peer::Server),
            settings: Bucket::new(SETTINGS_BURST, SETTINGS_PER_SECOND, now),
            resets: Bucket::new(RESETS_BURST, RESETS_PER_SECOND, now),
            control: Bucket::new(CONTROL_BURST, CONTROL_PER_SECOND, now),
            heads: 0,
            unseen: VecDeque::new(),
            highest: 0,
            refused: VecDeque::new(),
        }
    }

    /// Bytes from the peer.
    ///
    /// # Errors
    /// The budget that ran out.
    pub fn received(&mut self, mut bytes: &[u8], now: Instant) -> Result<(), Flood> {
        while let Some(Frame { length, kind, flags, stream, .. }) = self.received.next(&mut bytes) {
            match kind {
                HEADERS if self.peer == Peer::Client => self.opened(stream),
                RST_STREAM => self.unseen.retain(|unseen| *unseen != stream),
                _ => {}
            }
            let paid = match kind {
                HEADERS if self.peer == Peer::Server => {
                    self.heads = self.heads.checked_sub(1).ok_or(Flood::Heads)?;
                    true
                }
                HEADERS => self.control.give(CONTROL_PER_PAYLOAD),
                DATA if length > 0 || flags & END_STREAM != 0 => self.control.give(CONTROL_PER_PAYLOAD),
                SETTINGS if flags & ACK == 0 => self.settings.take(now).then_some(true).ok_or(Flood::Settings)?,
                RST_STREAM => self.resets.take(now).then_some(true).ok_or(Flood::Resets)?,
                _ => self.control.take(now),
            };
            if !paid {
                return Err(Flood::Control);
            }
        }
        Ok(())
    }

    /// Bytes to the peer. True: a stream is refused in them that was no request yet.
    pub fn sent(&mut self, mut bytes: &[u8]) -> bool {
        let before = self.refused.len();
        while let Some(Frame { kind, stream, code, .. }) = self.sent.next(&mut bytes) {
            if kind == RST_STREAM && self.is_unseen(stream) {
                self.refused.push_back((stream, code));
            }
            if matches!(kind, DATA | HEADERS) {
                self.control.give(CONTROL_PER_PAYLOAD);
            }
            if kind == HEADERS && self.peer == Peer::Server {
                // An app may end every call early; that is for its callers to judge.
                self.resets.give(1);
                self.heads = self.heads.saturating_add(HEADS_PER_REQUEST);
            }
        }
        self.refused.len() > before
    }

    /// A stream of the caller is a request: what becomes of it is said elsewhere.
    pub fn seen(&mut self, stream: u32) {
        self.unseen.retain(|unseen| *unseen != stream);
        self.refused.retain(|(refused, _)| *refused != stream);
    }

    /// The code with which the library refused a stream that never became a request, each once.
    pub fn refused(&mut self) -> Option<u32> {
        self.refused.pop_front().map(|(_, code)| code)
    }

    fn opened(&mut self, stream: u32) {
        if stream <= self.highest {
            return;
        }
        self.highest = stream;
        if self.unseen.len() == UNSEEN {
            self.unseen.pop_front();
        }
        self.unseen.push_back(stream);
    }

    fn is_unseen(&mut self, stream: u32) -> bool {
        let at = self.unseen.iter().position(|unseen| *unseen == stream);
        at.and_then(|at| self.unseen.remove(at)).is_some()
    }
}

/// The head of a frame, and the code if it resets a stream.
struct Frame {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
    code: u32,
}

/// Finds the heads of frames, however they are cut.
#[derive(Debug, Default)]
struct Follower {
    head: [u8; RESET],
    filled: usize,
    /// Bytes until the next head.
    left: usize,
}

impl Follower {
    /// The next frame whose head is whole.
    fn next(&mut self, bytes: &mut &[u8]) -> Option<Frame> {
        let skipped = self.left.min(bytes.len());
        self.left -= skipped;
        *bytes = &bytes[skipped..];
        self.fill(bytes, HEAD)?;
        let [high, middle, low, kind, flags, s0, s1, s2, s3, ..] = self.head;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        let has_code = kind == RST_STREAM && length == RESET - HEAD;
        if has_code {
            self.fill(bytes, RESET)?;
        }
        self.left = if has_code { 0 } else { length };
        self.filled = 0;
        let [.., c0, c1, c2, c3] = self.head;
        let code = if has_code { u32::from_be_bytes([c0, c1, c2, c3]) } else { 0 };
        Some(Frame { length, kind, flags, stream: u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff, code })
    }

    fn fill(&mut self, bytes: &mut &[u8], wanted: usize) -> Option<()> {
        let taken = wanted.saturating_sub(self.filled).min(bytes.len());
        self.head[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
        self.filled += taken;
        *bytes = &bytes[taken..];
        (self.filled >= wanted).then_some(())
    }
}

/// A budget that fills itself up again.
#[derive(Debug)]
struct Bucket {
    left: u32,
    most: u32,
    per_second: u32,
    last: Instant,
}

impl Bucket {
    fn new(most: u32, per_second: u32, now: Instant) -> Self {
        Self { left: most, most, per_second, last: now }
    }

    /// Takes one, if there is one. The clock is looked at only when it looks empty.
    fn take(&mut self, now: Instant) -> bool {
        if self.left == 0 {
            let since = now.saturating_duration_since(self.last);
            let more = since.as_millis() * u128::from(self.per_second) / 1000;
            self.give(u32::try_from(more).unwrap_or(u32::MAX));
            if more > 0 {
                self.last = now;
            }
        }
        let has_one = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has_one
    }

    /// Gives some back, up to the most. Always true.
    fn give(&mut self, more: u32) -> bool {
        self.left = self.left.saturating_add(more).min(self.most);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PING: u8 = 6;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut bytes = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        bytes.resize(HEAD + usize::from(length), 0xff);
        bytes
    }

    fn caller(now: Instant) -> Frames {
        let mut frames = Frames::new(Peer::Client, now);
        frames.received(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", now).expect("the preface");
        frames
    }

    /// How many such frames pass before the budget runs out.
    fn passed(frames: &mut Frames, frame: &[u8], now: Instant) -> (u32, Flood) {
        for count in 0..100_000 {
            if let Err(flood) = frames.received(frame, now) {
                return (count, flood);
            }
        }
        unreachable!("no budget ran out")
    }

    // covers: C9h
    #[test]
    fn each_budget_lets_as_many_pass_as_it_says_and_not_one_more() {
        let now = Instant::now();
        let cases = [
            (frame(SETTINGS, 0, 6), SETTINGS_BURST, Flood::Settings),
            (frame(RST_STREAM, 0, 4), RESETS_BURST, Flood::Resets),
            (frame(PING, 0, 8), CONTROL_BURST, Flood::Control),
            (frame(PING, ACK, 8), CONTROL_BURST, Flood::Control),
            (frame(2, 0, 5), CONTROL_BURST, Flood::Control),
            (frame(8, 0, 4), CONTROL_BURST, Flood::Control),
            (frame(DATA, 0, 0), CONTROL_BURST, Flood::Control),
            (frame(9, 0, 0), CONTROL_BURST, Flood::Control),
            (frame(0xee, 0, 0), CONTROL_BURST, Flood::Control),
        ];
        for (bytes, most, flood) in cases {
            assert_eq!(passed(&mut caller(now), &bytes, now), (most, flood), "{bytes:?}");
            // It fills up with time, and only so far.
            let mut frames = caller(now);
            for _ in 0..most {
                frames.received(&bytes, now).expect("within the budget");
            }
            frames.received(&bytes, now + Duration::from_secs(2)).expect("it fills up");
            let (again, _) = passed(&mut frames, &bytes, now + Duration::from_secs(1_000_000));
            assert!((most..=most + 200).contains(&again), "{bytes:?}: {again}");
        }
    }

    // covers: C9h
    #[test]
    fn what_carries_something_pays_for_what_keeps_it_going() {
        let now = Instant::now();
        let mut frames = caller(now);
        for _ in 0..10_000 {
            frames.sent(&frame(DATA, 0, 9));
            for kind in [8, 8, PING] {
                frames.received(&frame(kind, 0, 4), now).expect("two windows and a ping for each piece");
            }
        }
        for _ in 0..10_000 {
            frames
                .received(&[frame(HEADERS, 5, 3), frame(DATA, 1, 0), frame(PING, 0, 8)].concat(), now)
                .expect("calls");
        }
    }

    #[test]
    fn streams_that_never_became_requests_are_told_once_with_the_code_of_their_refusal() {
        let now = Instant::now();
        let mut frames = caller(now);
        let on = |kind, stream: u8, payload: &[u8]| {
            let length = u8::try_from(payload.len()).expect("short");
            [&[0, 0, length, kind, 4, 0, 0, 0, stream], payload].concat()
        };
        for stream in [1, 3, 5, 7, 1] {
            frames.received(&on(HEADERS, stream, b"xyz"), now).expect("within the budget");
        }
        frames.seen(1);
        frames.received(&on(RST_STREAM, 3, &[0, 0, 0, 8]), now).expect("within the budget");
        for stream in [1, 3, 5, 7, 7] {
            for byte in on(RST_STREAM, stream, &[0, 0, 0, stream]) {
                frames.sent(&[byte]);
            }
        }
        // It was a request after all, and broken already when that was seen.
        frames.seen(7);
        assert_eq!((frames.refused(), frames.refused()), (Some(5), None));
    }

    // covers: C9h
    #[test]
    fn an_app_may_send_as_many_heads_as_its_answers_can_have() {
        let now = Instant::now();
        let mut frames = Frames::new(Peer::Server, now);
        frames.sent(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        frames.sent(&[frame(SETTINGS, 0, 6), frame(HEADERS, 4, 7), frame(HEADERS, 4, 7)].concat());
        assert_eq!(passed(&mut frames, &frame(HEADERS, 4, 3), now), (2 * HEADS_PER_REQUEST, Flood::Heads));
    }

    // covers: C9h
    #[test]
    fn the_count_does_not_depend_on_how_the_bytes_are_cut() {
        let now = Instant::now();
        let flood = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(PING, 0, 8).repeat(1001)].concat();
        for cut in [1, 2, 7, 9, 17, 1000, flood.len()] {
            let mut frames = Frames::new(Peer::Client, now);
            let mut pieces = flood.chunks(cut);
            let refused = pieces.position(|piece| frames.received(piece, now).is_err());
            // The head of the last PING is where it ends, nine bytes before its payload.
            assert_eq!(refused, Some((flood.len() - 9) / cut), "{cut}");
        }
    }
}
