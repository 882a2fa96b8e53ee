//! The request gate: follows HTTP/1 message framing in front of hyper, rewrites nothing, refuses what two parsers could
//! read in two ways.
//!
//! ```text
//!            +--------------------------------------------------------------+
//!            v                                                              |
//!   Head --> Length(n) ----------------------------------------------------> end of message
//!    |  \--> ChunkSize -> ChunkData(n) -> ChunkEnd -> ChunkSize ... Trailers -^   |
//!    |  \--> ToClose (answers only, ends with the connection)                     |
//!    |  \--> (no body) ----------------------------------------------------------^|
//!    |                                                                            v
//!    |  CONNECT or Upgrade asked: Held until the answer decides --> Head | Raw | Closed
//!    +--> Refused (final, nothing is released any more)
//! ```
//!
//! [`Gate`] is sans-io and keeps no bytes: it is shown the first bytes that it has not released yet and says how many of
//! them may go on to the parser behind it. A head, a chunk line or a trailer section is released only when it is whole and
//! verified; body bytes go as they come. [`Exchange`] pairs the requests and the answers of one connection, so that HEAD,
//! CONNECT and upgrades frame their answers rightly. [`io::GatedIo`] puts both around a stream.

mod chunk;
mod exchange;
mod handle;
mod head;
pub mod io;
mod line;
mod refusal;
mod target;

pub use exchange::{Exchange, ReadState};
pub use handle::GateHandle;
pub use refusal::{Refusal, refusal_response};

use chunk::chunk_size;
use head::{Body, Head};
use line::{Field, next_line};

/// What a gate accepts, and how much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest head in bytes, from the first byte of its first line to the end of its empty line.
    pub head_bytes: usize,
    /// Most header lines of a head: what hyper's parser holds by default.
    pub fields: usize,
    /// Longest trailer section in bytes; hyper stops at 16 KiB.
    pub trailer_bytes: usize,
    /// Most trailer lines.
    pub trailer_fields: usize,
    /// Most 1xx answers before the final one.
    pub interim_answers: u8,
    /// Most requests of one connection that wait for their answers at a time.
    pub pipelined: usize,
    /// Whether GET and HEAD may have a body. Off: an app that ignores such a body reads it as the next request, which
    /// nobody decided.
    pub body_on_get: bool,
    /// From the first byte of a head to its last.
    pub head_time: std::time::Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes: 64 * 1024,
            fields: 100,
            trailer_bytes: 8 * 1024,
            trailer_fields: 32,
            interim_answers: 16,
            pipelined: 32,
            body_on_get: false,
            head_time: std::time::Duration::from_secs(10),
        }
    }
}

/// What a request means for the framing of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Nothing special.
    Plain,
    /// HEAD: the answer has no body.
    Head,
    /// CONNECT: a 2xx answer ends HTTP on this connection.
    Connect,
    /// An upgrade other than h2c: a 101 ends HTTP on this connection.
    Upgrade,
}

impl Asked {
    /// The meaning of a request's method (an upgrade is not visible in it).
    #[must_use]
    pub fn by_method(method: &http::Method) -> Self {
        match *method {
            http::Method::HEAD => Self::Head,
            http::Method::CONNECT => Self::Connect,
            _ => Self::Plain,
        }
    }
}

/// One step of a gate: at most one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Bytes at the front of the input that may go on.
    pub release: usize,
    /// What happened at the end of them.
    pub event: Event,
}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Nothing more can be said without more input.
    More,
    /// A request head is complete.
    Request(Asked),
    /// The head of a final answer, or of a 1xx when `interim`, is complete.
    Answer {
        /// A 1xx: the final answer is still to come.
        interim: bool,
    },
    /// A message is complete, body and trailers too.
    End,
    /// HTTP is over on this connection: everything from here on goes unscanned.
    Raw,
}

/// What [`Gate::feed`] came to over a whole input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Progress {
    /// Bytes at the front of the input that may go on. Show the rest again, with what follows it.
    pub release: usize,
    /// Heads completed.
    pub heads: usize,
    /// Messages completed.
    pub ends: usize,
    /// Why nothing after `release` will ever go on.
    pub refusal: Option<Refusal>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Requests,
    Answers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    Length(u64),
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    Trailers,
    ToClose,
    Ended,
    Held,
    Raw,
    Closed,
    Refused { refusal: Refusal, in_body: bool },
}

/// Follows the messages of one direction of a connection. See the module's text.
#[derive(Debug)]
pub struct Gate {
    side: Side,
    limits: Limits,
    state: State,
    head: Head,
    /// How far the unreleased input is read: lines before `line_at` are parsed, bytes before `seen` hold no line end.
    line_at: usize,
    seen: usize,
    trailer_lines: usize,
    asked: Option<Asked>,
    interim: u8,
}

impl Gate {
    /// A gate for the bytes of a client.
    #[must_use]
    pub fn requests(limits: Limits) -> Self {
        Self::new(Side::Requests, limits)
    }

    /// A gate for the bytes of a server. It accepts an answer only after [`Gate::expect`] or
    /// [`Gate::expect_response_to`].
    #[must_use]
    pub fn responses(limits: Limits) -> Self {
        Self::new(Side::Answers, limits)
    }

    fn new(side: Side, limits: Limits) -> Self {
        let head = if side == Side::Requests { Head::request() } else { Head::answer(Asked::Plain) };
        Self { side, limits, state: State::Head, head, line_at: 0, seen: 0, trailer_lines: 0, asked: None, interim: 0 }
    }

    /// Says which request the next answer belongs to.
    pub fn expect(&mut self, asked: Asked) {
        self.asked = Some(asked);
        self.interim = 0;
        self.head = Head::answer(asked);
    }

    /// As [`Gate::expect`], for a request without an upgrade.
    pub fn expect_response_to(&mut self, method: &http::Method) {
        self.expect(Asked::by_method(method));
    }

    /// Whether an answer was announced and is not complete.
    #[must_use]
    pub fn expects_answer(&self) -> bool {
        self.asked.is_some()
    }

    /// Reads as far as `input` goes. `input` starts with the first byte that was not released yet.
    pub fn feed(&mut self, input: &[u8]) -> Progress {
        let mut progress = Progress { release: 0, heads: 0, ends: 0, refusal: None };
        loop {
            match self.step(&input[progress.release..]) {
                Ok(step) => {
                    progress.release += step.release;
                    match step.event {
                        Event::Request(_) | Event::Answer { .. } => progress.heads += 1,
                        Event::End => progress.ends += 1,
                        // Something was released before a refusal: the next step says which.
                        Event::More if step.release > 0 && progress.release < input.len() => {}
                        Event::More | Event::Raw => return progress,
                    }
                }
                Err(refusal) => {
                    progress.refusal = Some(refusal);
                    return progress;
                }
            }
        }
    }

    /// Reads to the next event. `input` starts with the first byte that was not released yet.
    ///
    /// # Errors
    /// With what is wrong with the first unreleased bytes; the same again on every later call.
    pub fn step(&mut self, input: &[u8]) -> Result<Step, Refusal> {
        let step = self.advance(input);
        if let Err(refusal) = step {
            self.refuse(refusal);
        }
        step
    }

    fn advance(&mut self, input: &[u8]) -> Result<Step, Refusal> {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            match self.state {
                State::Head if rest.is_empty() => return Ok(more(at)),
                State::Head => return self.head_step(rest).map(|step| later(at, step)),
                State::Length(left) | State::ChunkData(left) => {
                    at += self.skip_body(left, rest.len());
                    if matches!(self.state, State::Length(_) | State::ChunkData(_)) {
                        return Ok(more(at));
                    }
                }
                State::ChunkSize => match self.chunk_line(rest) {
                    Ok(0) => return Ok(more(at)),
                    Ok(used) => at += used,
                    Err(refusal) => return self.refuse_after(at, refusal),
                },
                State::ChunkEnd => match chunk_end(rest) {
                    Ok(0) => return Ok(more(at)),
                    Ok(used) => {
                        at += used;
                        self.state = State::ChunkSize;
                    }
                    Err(refusal) => return self.refuse_after(at, refusal),
                },
                State::Trailers => match self.trailers(rest) {
                    Ok(0) => return Ok(more(at)),
                    Ok(used) => at += used,
                    Err(refusal) => return self.refuse_after(at, refusal),
                },
                State::Ended => return Ok(Step { release: at, event: self.end_message() }),
                State::ToClose => return Ok(more(input.len())),
                State::Raw => return Ok(Step { release: input.len(), event: Event::Raw }),
                State::Held | State::Closed => return Ok(more(at)),
                State::Refused { refusal, .. } => return Err(refusal),
            }
        }
    }

    /// Body bytes that need no scan: whatever of them is next in the stream may go straight to the reader.
    #[must_use]
    pub fn passthrough(&self) -> u64 {
        match self.state {
            State::Length(left) | State::ChunkData(left) => left,
            State::ToClose | State::Raw => u64::MAX,
            _ => 0,
        }
    }

    /// Whether the next byte begins a new message and `held` bytes of it, if any, are not released.
    #[must_use]
    pub fn between_messages(&self) -> bool {
        matches!(self.state, State::Head | State::Held | State::Closed)
    }

    /// Whether a head has begun and is not complete: the time for it runs.
    #[must_use]
    pub fn head_begun(&self, held: usize) -> bool {
        self.state == State::Head && held > 0 && (self.head.begun() || held > self.line_at)
    }

    /// Whether the rest of the input waits for the answer to a CONNECT or an upgrade.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.state == State::Held
    }

    /// Whether HTTP is over and bytes go unscanned.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.state == State::Raw
    }

    /// Whether nothing will be released any more although nothing was wrong.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Whether the current answer ends only with the connection.
    #[must_use]
    pub fn is_to_close(&self) -> bool {
        self.state == State::ToClose
    }

    /// Why the gate refused, if it did.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        if let State::Refused { refusal, .. } = self.state { Some(refusal) } else { None }
    }

    /// Whether what the gate refused was part of a body: its head is released already.
    #[must_use]
    pub fn refused_in_body(&self) -> bool {
        matches!(self.state, State::Refused { in_body: true, .. })
    }

    /// Refuses from outside, for a time that ran out. The first refusal stays.
    pub fn refuse(&mut self, refusal: Refusal) {
        if self.refusal().is_none() {
            self.state = State::Refused { refusal, in_body: !self.between_messages() };
        }
    }

    /// After the answer to a CONNECT or an upgrade said yes: everything goes unscanned from here on.
    pub fn switch_to_raw(&mut self) {
        if self.refusal().is_none() {
            self.state = State::Raw;
        }
    }

    /// After the answer to an upgrade was not 101: HTTP goes on, at once or after the body of the request.
    pub fn resume(&mut self) {
        if self.state == State::Held {
            self.state = State::Head;
        } else if self.side == Side::Requests && self.asked == Some(Asked::Upgrade) {
            self.asked = Some(Asked::Plain);
        }
    }

    /// After a refused CONNECT: what follows may be meant for the tunnel, so nothing of it is read as a request.
    pub fn close(&mut self) {
        if self.refusal().is_none() {
            self.state = State::Closed;
        }
    }

    fn head_step(&mut self, input: &[u8]) -> Result<Step, Refusal> {
        if self.side == Side::Answers && self.asked.is_none() {
            return Err(Refusal::UnaskedAnswer);
        }
        while let Some(line) = next_line(input, self.line_at, &mut self.seen, self.limits.head_bytes)? {
            self.line_at = line.end;
            if self.head.line(line.text, &self.limits)? {
                return self.finish_head(line.end);
            }
        }
        if input.len() > self.limits.head_bytes { Err(Refusal::HeadTooLarge) } else { Ok(more(0)) }
    }

    fn finish_head(&mut self, release: usize) -> Result<Step, Refusal> {
        let framing = self.head.framing(&self.limits)?;
        (self.line_at, self.seen) = (0, 0);
        if framing.interim {
            self.interim += 1;
            if self.interim > self.limits.interim_answers {
                return Err(Refusal::TooManyInterim);
            }
            self.head = Head::answer(framing.asked);
            return Ok(Step { release, event: Event::Answer { interim: true } });
        }
        self.state = match framing.body {
            Body::None => State::Ended,
            Body::Length(length) => State::Length(length),
            Body::Chunked => State::ChunkSize,
            Body::ToClose => State::ToClose,
            Body::Raw => State::Raw,
        };
        if self.side == Side::Answers {
            return Ok(Step { release, event: Event::Answer { interim: false } });
        }
        self.asked = Some(framing.asked);
        Ok(Step { release, event: Event::Request(framing.asked) })
    }

    fn end_message(&mut self) -> Event {
        let asked = self.asked.take();
        self.state = match (self.side, asked) {
            (Side::Requests, Some(Asked::Connect | Asked::Upgrade)) => State::Held,
            _ => State::Head,
        };
        self.head = if self.side == Side::Requests { Head::request() } else { Head::answer(Asked::Plain) };
        Event::End
    }

    fn skip_body(&mut self, left: u64, available: usize) -> usize {
        let used = usize::try_from(left).unwrap_or(usize::MAX).min(available);
        let left = left - used as u64;
        self.state = match self.state {
            State::Length(_) if left == 0 => State::Ended,
            State::Length(_) => State::Length(left),
            _ if left == 0 => State::ChunkEnd,
            _ => State::ChunkData(left),
        };
        used
    }

    /// Refuses in a body. What stood before the refused bytes was verified and goes on first, so that the same bytes come
    /// out however the input was cut; the next call gets the refusal.
    fn refuse_after(&mut self, at: usize, refusal: Refusal) -> Result<Step, Refusal> {
        self.refuse(refusal);
        if at > 0 { Ok(more(at)) } else { Err(refusal) }
    }

    fn chunk_line(&mut self, input: &[u8]) -> Result<usize, Refusal> {
        let Some((size, used)) = chunk_size(input)? else { return Ok(0) };
        (self.line_at, self.seen, self.trailer_lines) = (0, 0, 0);
        self.state = if size == 0 { State::Trailers } else { State::ChunkData(size) };
        Ok(used)
    }

    fn trailers(&mut self, input: &[u8]) -> Result<usize, Refusal> {
        let too_large = |refusal| if refusal == Refusal::HeadTooLarge { Refusal::BadTrailer } else { refusal };
        while let Some(line) =
            next_line(input, self.line_at, &mut self.seen, self.limits.trailer_bytes).map_err(too_large)?
        {
            self.line_at = line.end;
            if line.text.is_empty() {
                (self.line_at, self.seen) = (0, 0);
                self.state = State::Ended;
                return Ok(line.end);
            }
            let field = Field::parse(line.text, self.side == Side::Requests)?;
            self.trailer_lines += 1;
            if self.trailer_lines > self.limits.trailer_fields || !field.may_trail() {
                return Err(Refusal::BadTrailer);
            }
        }
        if input.len() > self.limits.trailer_bytes { Err(Refusal::BadTrailer) } else { Ok(0) }
    }
}

fn more(release: usize) -> Step {
    Step { release, event: Event::More }
}

fn later(at: usize, step: Step) -> Step {
    Step { release: at + step.release, ..step }
}

/// The CRLF after a chunk's data: 0 when it is not whole yet.
fn chunk_end(input: &[u8]) -> Result<usize, Refusal> {
    match input {
        [b'\r', b'\n', ..] => Ok(2),
        [] | [b'\r'] => Ok(0),
        _ => Err(Refusal::BadChunk),
    }
}
