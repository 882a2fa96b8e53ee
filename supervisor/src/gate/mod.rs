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
mod closing;
mod counted;
pub(crate) mod deadline;
mod exchange;
mod fields;
mod follow;
mod frames;
mod handle;
mod head;
pub mod io;
mod line;
mod refusal;
mod target;

pub use counted::{CountedIo, Flooded, OpenedStreams, RefusedStreams};
pub use exchange::{Exchange, ReadState};
pub use fields::{check_answer, check_request, check_trailers};
pub use follow::Gate;
pub use frames::{Flood, Frames, Peer, Turned};
pub use handle::GateHandle;
pub use refusal::{Refusal, refusal_response};

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
    /// Whether an absolute target may be one of `ws://`: from clients that ask a proxy for a WebSocket.
    pub ws_targets: bool,
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
            ws_targets: false,
            head_time: std::time::Duration::from_secs(10),
        }
    }
}

impl Limits {
    /// For the messages that go on from here: a head that was accepted at the limit still fits when it has been given the
    /// headers that we add, of which the longest names two identities of up to 2 KiB.
    #[must_use]
    pub fn of_what_is_sent(self) -> Self {
        Self { head_bytes: self.head_bytes + 8 * 1024, fields: self.fields + 8, ..self }
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
