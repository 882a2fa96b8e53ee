//! HTTP/2: the streams of a connection, each decided on its own, all in the task of the connection.
//!
//! What ends them: a drain sends GOAWAY and lets open streams finish; a bundle that no longer allows a stream resets that
//! stream alone; one that no longer allows the pair, or the end of a drain, closes the connection.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use h2::server::{Builder, Connection as Frames, SendResponse};
use h2::{Reason as Code, RecvStream};
use http::{Request, StatusCode};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::unserved::{Arrived, record_dropped};
use super::{Call, End, Side, sniff, still_allows, stream};
use crate::conn::body::Inbound;
use crate::conn::{Cut, Event};
use crate::gate::{CountedIo, Flood, Flooded, Peer, Refusal, RefusedStreams, Turned};
use crate::net::stream::Prefixed;
use crate::reason::Reason;

/// Streams that a caller may have open at a time; each may take a connection to the other side.
const STREAMS: u32 = 100;
/// What a caller may send on a stream before the other side has taken any of it.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The same for all streams of a connection together: with a peer that keeps all of it waiting, this much memory.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// What waits in memory for a caller that takes nothing, per stream.
const SEND_BUFFER: usize = 64 * 1024;
/// Streams that the caller reset before they were looked at.
const PENDING_RESETS: usize = 20;
/// Resets of ours for faults of the caller.
const LOCAL_RESETS: usize = 100;
/// From the first byte to the end of preface and settings.
const PREFACE_TIME: Duration = Duration::from_secs(10);
/// How long a caller may take to leave after GOAWAY once nothing is open.
const LEAVE_TIME: Duration = Duration::from_secs(5);
/// How long the last frames of a connection may take on their way.
const FLUSH_TIME: Duration = Duration::from_millis(200);

type Incoming = (Request<RecvStream>, SendResponse<Bytes>);

/// A connection of HTTP/2 and what is open on it.
struct Streams<'a, S> {
    side: &'a S,
    frames: Frames<CountedIo<Prefixed>, Bytes>,
    flooded: Flooded,
    refused: RefusedStreams,
    open: FuturesUnordered<Pin<Box<dyn Future<Output = u32> + 'a>>>,
    calls: HashMap<u32, Rc<Call>>,
    idle: Pin<Box<Sleep>>,
    is_leaving: bool,
    /// The caller has ended the connection.
    has_left: bool,
    /// How the connection ends when nothing goes wrong any more.
    done: Reason,
}

pub(super) async fn serve(side: &impl Side, stream: Prefixed, mut cut: Cut) -> End {
    let stream = CountedIo::new(stream, Peer::Client);
    let (flooded, refused) = (stream.flooded(), stream.refused_streams());
    let frames = tokio::select! {
        biased;
        close = sniff::until_unwanted(side, &mut cut) => return End::with(close),
        begun = timeout(PREFACE_TIME, builder(side).handshake(stream)) => match begun {
            Ok(Ok(frames)) => frames,
            Ok(Err(error)) => return ended_by(&error),
            Err(_) => return End::with(Reason::IdleTimeout),
        },
    };
    cut.again();
    let mut streams = Streams {
        side,
        frames,
        flooded,
        refused,
        open: FuturesUnordered::new(),
        calls: HashMap::new(),
        idle: Box::pin(sleep(side.bounds().idle)),
        is_leaving: false,
        has_left: false,
        done: Reason::Done,
    };
    let end = streams.run(&mut cut).await;
    streams.end(&end).await;
    end
}

fn builder(side: &impl Side) -> Builder {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(STREAMS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(side.bounds().gate.head_bytes).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(PENDING_RESETS)
        .max_local_error_reset_streams(Some(LOCAL_RESETS));
    builder
}

impl<'a, S: Side> Streams<'a, S> {
    async fn run(&mut self, cut: &mut Cut) -> End {
        loop {
            tokio::select! {
                biased;
                event = cut.next() => match event {
                    Event::Draining if self.side.is_late() => {}
                    Event::Draining => self.frames.graceful_shutdown(),
                    Event::PeerEnding(reason) => {
                        self.done = reason;
                        self.frames.graceful_shutdown();
                    }
                    Event::Aged => {
                        self.done = Reason::MaxLifetime;
                        self.frames.graceful_shutdown();
                    }
                    Event::PeerEnded(reason) => return End::with(reason),
                    Event::Closed => return End::with(Reason::Draining),
                    Event::PolicyChanged if self.side.may_go_on() => self.cut_revoked(),
                    Event::PolicyChanged => return End::with(Reason::PolicyRevoked),
                },
                flood = self.flooded.next() => return flooded_by(flood),
                Some(id) = self.open.next(), if !self.open.is_empty() => self.ended(id),
                accepted = self.frames.accept() => match accepted {
                    Some(Ok(incoming)) => self.start(incoming),
                    Some(Err(error)) => return ended_by(&error),
                    None => {
                        self.has_left = true;
                        return End::with(self.done);
                    }
                },
                // Behind the streams that are requests: what is left then never was one.
                turned = self.refused.next() => self.record_refused(turned),
                () = self.idle.as_mut(), if self.open.is_empty() => {
                    if self.is_leaving {
                        return End::with(Reason::IdleTimeout);
                    }
                    self.is_leaving = true;
                    self.frames.graceful_shutdown();
                    self.idle.as_mut().reset(Instant::now() + LEAVE_TIME);
                }
            }
        }
    }

    fn start(&mut self, (request, mut respond): Incoming) {
        let id = respond.stream_id().as_u32();
        if self.side.is_late() {
            self.frames.graceful_shutdown();
        }
        self.refused.seen(id);
        let call = Rc::new(Call::new(self.side, None));
        self.calls.insert(id, Rc::clone(&call));
        let (head, body) = request.into_parts();
        // Nobody waits for it here: whoever serves the stream asks again.
        let is_cut = respond.poll_reset(&mut Context::from_waker(Waker::noop())).is_ready();
        let (body, rest) = Inbound::of_stream(body, &head.headers, is_cut);
        let request = Request::from_parts(head, body);
        let side = self.side;
        let arrived = Arrived::new(side, &call, request.method());
        self.open.push(Box::pin(async move {
            arrived.begin();
            // Pinned where it is made: it is large, and handing it on would copy it.
            let answering = pin!(async {
                stream::serve(side, request, respond, &call, &rest).await;
                !call.in_flight.is_cut()
            });
            rest.beside(answering).await;
            id
        }));
    }

    /// A stream that h2 has refused by itself, for what it says or for one too many.
    fn record_refused(&self, turned: Turned) {
        let mut record = self.side.record();
        let (reason, detail) = match turned {
            Turned::Reset(code) if Code::from(code) == Code::REFUSED_STREAM => (Reason::LimitConnections, "h2_streams"),
            Turned::Reset(_) => (Reason::Malformed, "h2_stream_error"),
            Turned::Answered => {
                record.status(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.as_u16());
                (Reason::Malformed, Refusal::HeadTooLarge.as_str())
            }
        };
        record.deny(reason);
        record.detail(detail);
        record.close(reason);
    }

    fn ended(&mut self, id: u32) {
        self.calls.remove(&id);
        if self.open.is_empty() {
            let time = if self.is_leaving { LEAVE_TIME } else { self.side.bounds().idle };
            self.idle.as_mut().reset(Instant::now() + time);
        }
    }

    /// Each stream was decided for itself, so each goes for itself.
    fn cut_revoked(&self) {
        for call in self.calls.values().filter(|call| !still_allows(self.side, call)) {
            call.cut(Reason::PolicyRevoked);
        }
    }

    /// Says goodbye. Streams that are still open end with the connection, not one by one: a caller takes that as a server
    /// that went away, and tries again elsewhere.
    async fn end(mut self, end: &End) {
        let cut_by = if self.has_left { Reason::Done } else { end.close };
        for call in self.calls.values() {
            // Before the bodies are dropped: their records say why they were cut.
            call.in_flight.cut(cut_by);
        }
        let flooded = self.flooded.get().is_some();
        self.frames.abrupt_shutdown(if flooded { Code::ENHANCE_YOUR_CALM } else { Code::NO_ERROR });
        let flushing = std::future::poll_fn(|cx| self.frames.poll_closed(cx));
        // Whether the caller still reads it is its own affair.
        let _ = timeout(FLUSH_TIME, flushing).await;
        while let Some(turned) = self.refused.get() {
            self.record_refused(turned);
        }
        // h2 hands out nothing any more once it has found the end of the connection, also what came before that.
        while self.refused.dropped().is_some() {
            record_dropped(self.side, end.close);
        }
    }
}

fn flooded_by(flood: Flood) -> End {
    End { close: Reason::Malformed, refused: Some(flood.as_str()) }
}

/// How a connection ended whose frames cannot go on. Faults of the caller are refusals: h2 has answered them with GOAWAY.
fn ended_by(error: &h2::Error) -> End {
    let fault = error.reason().filter(|_| error.is_library());
    let refused = fault.map(|code| match code {
        Code::ENHANCE_YOUR_CALM => "h2_flood",
        Code::FLOW_CONTROL_ERROR => "h2_flow_control",
        Code::FRAME_SIZE_ERROR => "h2_frame_size",
        Code::COMPRESSION_ERROR => "h2_compression",
        Code::STREAM_CLOSED => "h2_stream_closed",
        _ => "h2_protocol",
    });
    End { close: if refused.is_some() { Reason::Malformed } else { Reason::Reset }, refused }
}
