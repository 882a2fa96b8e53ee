//! Both directions of one connection: answers are framed by the requests they answer.

use std::collections::VecDeque;

use super::{Asked, Event, Gate, Limits, Refusal};

/// How far the requests of a connection can be read right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadState {
    /// More input is welcome.
    Open,
    /// Waits for an answer: too many requests are unanswered, or the last one may end HTTP.
    Waiting,
    /// No request will come any more. Answers to earlier ones may still be due.
    Over,
}

/// The two gates of a connection, joined.
#[derive(Debug)]
pub struct Exchange {
    requests: Gate,
    answers: Gate,
    /// Requests whose answers have not begun.
    unanswered: VecDeque<Asked>,
    answering: Option<Asked>,
    limits: Limits,
    saw_to_close: bool,
    /// An answer ended before its request: what is left of the request would be read as the next one.
    overtaken: bool,
}

impl Exchange {
    /// A connection on which nothing was said.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self::with(limits, limits)
    }

    /// The same with limits of their own for requests and answers. Those of the requests say how long a pipeline may be.
    #[must_use]
    pub fn with(limits: Limits, of_answers: Limits) -> Self {
        Self {
            requests: Gate::requests(limits),
            answers: Gate::responses(of_answers),
            unanswered: VecDeque::new(),
            answering: None,
            limits,
            saw_to_close: false,
            overtaken: false,
        }
    }

    /// Reads request bytes; `input` starts with the first byte not released. Returns the bytes that may go on.
    ///
    /// # Errors
    /// When the first byte belongs to something refused. What stands before it is released by an earlier call.
    pub fn requests(&mut self, input: &[u8]) -> Result<usize, Refusal> {
        let mut release = 0;
        loop {
            if self.requests.between_messages() && self.unanswered() >= self.limits.pipelined {
                return Ok(release);
            }
            let step = match self.requests.step(&input[release..]) {
                Ok(step) => step,
                Err(refusal) => return first(release, refusal),
            };
            release += step.release;
            match step.event {
                Event::Request(asked) => self.unanswered.push_back(asked),
                Event::More if step.release > 0 && release < input.len() => {}
                Event::More | Event::Raw => return Ok(release),
                Event::Answer { .. } | Event::End => {}
            }
        }
    }

    /// Reads answer bytes, as [`Exchange::requests`] does for the other direction.
    ///
    /// # Errors
    /// As for requests, and when no request waits for an answer.
    pub fn answers(&mut self, input: &[u8]) -> Result<usize, Refusal> {
        let mut release = 0;
        loop {
            if !self.answers.expects_answer() && release < input.len() {
                self.answering = self.unanswered.pop_front();
                if let Some(asked) = self.answering {
                    self.answers.expect(asked);
                }
            }
            let step = match self.answers.step(&input[release..]) {
                Ok(step) => step,
                Err(refusal) => return first(release, refusal),
            };
            release += step.release;
            match step.event {
                Event::End => self.answered(),
                // Only the head: the parser behind stops there, and what follows belongs to the tunnel.
                Event::Answer { .. } if self.answers.is_raw() => {
                    self.answering = None;
                    self.requests.switch_to_raw();
                    return Ok(release);
                }
                Event::More if step.release > 0 && release < input.len() => {}
                Event::More => {
                    self.saw_to_close |= self.answers.is_to_close();
                    return Ok(release);
                }
                Event::Raw => return Ok(release),
                Event::Request(_) | Event::Answer { .. } => {}
            }
        }
    }

    fn answered(&mut self) {
        self.overtaken |= self.unanswered.is_empty() && !self.requests.between_messages();
        match self.answering.take() {
            Some(Asked::Upgrade) => self.requests.resume(),
            Some(Asked::Connect) => self.requests.close(),
            _ => {}
        }
    }

    /// Requests that are not fully answered.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.unanswered.len() + usize::from(self.answering.is_some())
    }

    /// How far requests can be read right now.
    #[must_use]
    pub fn read_state(&self) -> ReadState {
        if self.requests.is_closed() || self.requests.refusal().is_some() {
            ReadState::Over
        } else if self.requests.is_held()
            || self.requests.between_messages() && self.unanswered() >= self.limits.pipelined
        {
            ReadState::Waiting
        } else {
            ReadState::Open
        }
    }

    /// Whether HTTP is over and both directions go unscanned.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.requests.is_raw() || self.answers.is_raw()
    }

    /// Whether the connection can carry another request: every answer was complete and none ended with the connection.
    #[must_use]
    pub fn is_reusable(&self) -> bool {
        !self.is_raw()
            && !self.saw_to_close
            && !self.overtaken
            && self.requests.refusal().is_none()
            && self.answers.refusal().is_none()
            && !self.requests.is_closed()
    }

    /// The gate of the requests.
    #[must_use]
    pub fn request_gate(&self) -> &Gate {
        &self.requests
    }

    /// The gate of the answers.
    #[must_use]
    pub fn answer_gate(&self) -> &Gate {
        &self.answers
    }

    /// Refuses the requests from outside, for a time that ran out.
    pub fn refuse_requests(&mut self, refusal: Refusal) {
        self.requests.refuse(refusal);
    }

    /// Refuses the answers from outside, for a time that ran out.
    pub fn refuse_answers(&mut self, refusal: Refusal) {
        self.answers.refuse(refusal);
    }
}

fn first(release: usize, refusal: Refusal) -> Result<usize, Refusal> {
    if release > 0 { Ok(release) } else { Err(refusal) }
}
