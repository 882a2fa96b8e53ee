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

/// How the library turned a stream away that never became a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// By a reset with this code.
    Reset(u32),
    /// By an answer of its own, which it has for heads that are too large.
    Answered,
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
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
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
    /// The stream whose head comes now.
    opening: Option<Opening>,
    /// Streams of a caller whose heads are whole and that are no requests yet, in the order in which they came.
    unseen: VecDeque<u32>,
    /// The last stream that was opened, by whichever end is the client.
    highest: u32,
    /// Those that the library refused, so that they never will be.
    refused: VecDeque<(u32, Turned)>,
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
            opening: None,
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
            self.open_whole();
            match kind {
                HEADERS if self.peer == Peer::Client => self.opens(stream, flags),
                CONTINUATION => self.goes_on(stream, flags),
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
        if self.received.is_between() {
            self.open_whole();
        }
        Ok(())
    }

    /// Bytes to the peer. True: a stream is refused in them that was no request yet.
    pub fn sent(&mut self, mut bytes: &[u8]) -> bool {
        let before = self.refused.len();
        while let Some(Frame { kind, stream, code, .. }) = self.sent.next(&mut bytes) {
            let turned = match kind {
                RST_STREAM => Some(Turned::Reset(code)),
                HEADERS if self.peer == Peer::Client => Some(Turned::Answered),
                _ => None,
            };
            if let Some(turned) = turned.filter(|_| self.is_unseen(stream)) {
                self.refused.push_back((stream, turned));
            }
            if matches!(kind, DATA | HEADERS) {
                self.control.give(CONTROL_PER_PAYLOAD);
            }
            if kind == HEADERS && self.peer == Peer::Server {
                self.highest = self.highest.max(stream);
                // An app may end every call early; that is for its callers to judge.
                self.resets.give(1);
                self.heads = self.heads.saturating_add(HEADS_PER_REQUEST);
            }
        }
        self.refused.len() > before
    }

    /// The last stream that was opened; 0: none.
    #[must_use]
    pub fn highest(&self) -> u32 {
        self.highest
    }

    /// A stream of the caller is a request: what becomes of it is said elsewhere.
    pub fn seen(&mut self, stream: u32) {
        self.unseen.retain(|unseen| *unseen != stream);
        self.refused.retain(|(refused, _)| *refused != stream);
    }

    /// How the library turned away a stream that never became a request, each once.
    pub fn refused(&mut self) -> Option<Turned> {
        self.refused.pop_front().map(|(_, turned)| turned)
    }

    /// A stream that is no request and was not refused, each once. To be asked when the connection is over: whoever sent it is
    /// told nothing any more.
    pub fn dropped(&mut self) -> Option<u32> {
        self.unseen.pop_front()
    }

    fn opens(&mut self, stream: u32, flags: u8) {
        // Else its trailers.
        if stream > self.highest {
            self.highest = stream;
            self.opening = Some(Opening { stream, is_last: flags & END_HEADERS != 0 });
        }
    }

    fn goes_on(&mut self, stream: u32, flags: u8) {
        if let Some(opening) = self.opening.as_mut().filter(|opening| opening.stream == stream) {
            opening.is_last = flags & END_HEADERS != 0;
        }
    }

    /// The frame before is whole. If it was the last of a head, so is that.
    fn open_whole(&mut self) {
        let Some(Opening { stream, .. }) = self.opening.take_if(|opening| opening.is_last) else { return };
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

/// A head of which frames come.
#[derive(Debug)]
struct Opening {
    stream: u32,
    /// The frame at hand ends it.
    is_last: bool,
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

    /// Whether the last frame is whole and no other has begun.
    fn is_between(&self) -> bool {
        self.left == 0 && self.filled == 0
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
mod tests;
