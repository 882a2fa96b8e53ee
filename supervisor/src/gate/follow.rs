//! One direction of a connection: which of its bytes may go on.

use super::{
    Asked, Event, Limits, Progress, Refusal, Step,
    chunk::{chunk_end, chunk_size},
    head::{Body, Head},
    line::{Field, next_line},
};

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

/// Follows the messages of one direction of a connection. [`super`] has the picture.
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
