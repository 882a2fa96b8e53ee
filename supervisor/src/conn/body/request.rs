//! Request bodies on their way to upstreams.

use std::cell::{Cell, OnceCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

use super::expect::{GoAhead, Held};
use super::{BodyError, Rest};
use crate::conn::flow::{BodyRules, Flow};
use crate::credentials::{Watch, in_headers};
use crate::gate::{Limits, Refusal, check_trailers};
use crate::headers::strip_trailers;

/// How much of a request body has passed, shared with whoever waits for its answer.
#[derive(Default)]
pub struct Meter {
    bytes: Cell<u64>,
    done: Cell<bool>,
    broke_off: Cell<bool>,
    late: Cell<bool>,
    placeholder: Cell<bool>,
    refusal: Cell<Option<Refusal>>,
    ahead: OnceCell<GoAhead>,
}

impl Meter {
    /// The head of the final answer is there.
    pub fn answered(&self) {
        if let Some(ahead) = self.ahead.get() {
            ahead.answered();
        }
    }

    /// The answer is over.
    pub(super) fn give_up(&self) {
        if let Some(ahead) = self.ahead.get() {
            ahead.give_up();
        }
    }

    /// Whether the whole body has passed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done.get()
    }

    /// Payload that has passed so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Whether the body ended with an error.
    #[must_use]
    pub fn broke_off(&self) -> bool {
        self.broke_off.get()
    }

    /// Whether the body was given up because its sender stood still.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.late.get()
    }

    /// Whether the body was given up because of a placeholder that nothing replaces.
    #[must_use]
    pub fn has_placeholder(&self) -> bool {
        self.placeholder.get()
    }

    /// Why the body was refused on its way, if it was. For HTTP/1 the gate knows it.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        self.refusal.get()
    }
}

/// A request body as it comes from the caller.
pub enum Inbound {
    /// From hyper, of HTTP/1.
    Http1(Incoming),
    /// A stream of HTTP/2.
    Http2(StreamBody),
    /// None at all.
    Empty,
    /// What was read before, and has a place until it is gone.
    Whole(Bytes, #[allow(dead_code, reason = "held")] OwnedSemaphorePermit),
}

/// Why a body could not be read whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadError {
    /// There is more than may be read.
    TooLong,
    /// It stood still for too long.
    Late,
    /// It broke off.
    Broken,
}

/// The receiving half of an HTTP/2 stream. Its window opens as its bytes go on, so whoever takes them slowly holds the
/// caller back.
pub struct StreamBody {
    rest: Rc<Rest>,
    data_done: bool,
    /// What the announced length leaves to come; h2 holds the caller to it.
    left: Option<u64>,
    /// The stream broke off before anybody looked at it.
    is_cut: bool,
}

impl Inbound {
    /// The body of a request with these headers, and what is left of it when it is dropped. `is_cut`: its stream or connection
    /// has broken off already.
    #[must_use]
    pub fn of_stream(stream: h2::RecvStream, headers: &HeaderMap, is_cut: bool) -> (Self, Rc<Rest>) {
        let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let left = if stream.is_end_stream() { Some(0) } else { length };
        let rest = Rc::new(Rest::new(stream));
        (Self::Http2(StreamBody { rest: Rc::clone(&rest), data_done: false, left, is_cut }), rest)
    }

    /// Whether nothing comes any more.
    #[must_use]
    pub fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.rest.stream().is_end_stream(),
            Self::Whole(left, _) => left.is_empty(),
            Self::Empty => true,
        }
    }

    /// Whether its sender means it to have a body. Of a stream that broke off that cannot be told: h2 forgets with a connection
    /// that a stream had ended before.
    #[must_use]
    pub fn is_announced(&self) -> bool {
        let is_cut = matches!(self, Self::Http2(body) if body.is_cut);
        !is_cut && !self.is_end_stream()
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self {
            Self::Http1(body) => Pin::new(body).poll_frame(cx).map_err(|_| BodyError::gone(None)),
            Self::Http2(body) => body.poll_frame(cx),
            Self::Empty => Poll::Ready(None),
            Self::Whole(left, _) if left.is_empty() => Poll::Ready(None),
            Self::Whole(left, _) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(left))))),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.left.map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Whole(left, _) => SizeHint::with_exact(left.len() as u64),
            Self::Empty => SizeHint::with_exact(0),
        }
    }
}

impl From<Incoming> for Inbound {
    fn from(body: Incoming) -> Self {
        Self::Http1(body)
    }
}

impl StreamBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut stream = self.rest.stream();
        while !self.data_done {
            match ready!(stream.poll_data(cx)) {
                // Nothing that would have to be carried; h2 has a budget for them.
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => {
                    // Fails only on a stream that is over, which has no window any more.
                    let _ = stream.flow_control().release_capacity(data.len());
                    self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(BodyError::gone(error.reason())))),
                None => self.data_done = true,
            }
        }
        let trailers = ready!(stream.poll_trailers(cx)).map_err(|error| BodyError::gone(error.reason()))?;
        let Some(trailers) = trailers else { return Poll::Ready(None) };
        Poll::Ready(Some(match check_trailers(&trailers, true, &Limits::default()) {
            Ok(()) => Ok(Frame::trailers(trailers)),
            Err(refusal) => Err(BodyError::refused(refusal)),
        }))
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        self.rest.let_go();
    }
}

/// A request body on its way to the upstream.
pub struct RequestBody {
    inner: Inbound,
    meter: Rc<Meter>,
    flow: Flow,
    watch: Option<Watch>,
    held: Option<Held>,
}

impl RequestBody {
    /// Counts `inner`.
    #[must_use]
    pub fn new(inner: impl Into<Inbound>) -> (Self, Rc<Meter>) {
        let inner = inner.into();
        let meter = Rc::new(Meter::default());
        meter.done.set(inner.is_end_stream());
        (Self { inner, meter: Rc::clone(&meter), flow: Flow::default(), watch: None, held: None }, meter)
    }

    /// The same, under rules.
    #[must_use]
    pub fn under(self, rules: BodyRules) -> Self {
        Self { flow: Flow::under(Some(rules)), ..self }
    }

    /// The same, and it breaks off when a placeholder comes.
    #[must_use]
    pub fn watched(self) -> Self {
        Self { watch: Some(Watch::default()), ..self }
    }

    /// Reads all of it, at most `most` bytes. Trailers are forgotten.
    ///
    /// # Errors
    /// [`ReadError`]
    pub async fn read(mut self, most: usize) -> Result<Vec<u8>, ReadError> {
        let mut whole = Vec::new();
        while let Some(frame) = self.frame().await {
            let frame = frame.map_err(|_| if self.meter.is_late() { ReadError::Late } else { ReadError::Broken })?;
            let data = frame.into_data().unwrap_or_default();
            if whole.len() + data.len() > most {
                return Err(ReadError::TooLong);
            }
            whole.extend_from_slice(&data);
        }
        Ok(whole)
    }

    /// A body that was read before and goes as `bytes`. `meter` goes on saying how much came from the caller: what is sent may
    /// be longer by a secret.
    #[must_use]
    pub fn whole(bytes: Bytes, meter: &Rc<Meter>, place: OwnedSemaphorePermit) -> Self {
        meter.done.set(bytes.is_empty());
        Self {
            inner: Inbound::Whole(bytes, place),
            meter: Rc::clone(meter),
            flow: Flow::default(),
            watch: None,
            held: None,
        }
    }

    /// The same, not read before `ahead` lets it go.
    #[must_use]
    pub fn held_by(self, ahead: GoAhead) -> Self {
        // A body that was just made is held by nobody yet.
        let _ = self.meter.ahead.set(ahead.clone());
        Self { held: Some(Held::by(ahead)), ..self }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let Some(held) = &mut this.held {
            if let Err(error) = ready!(held.poll(cx)) {
                this.meter.broke_off.set(true);
                return Poll::Ready(Some(Err(error)));
            }
            this.held = None;
        }
        let mut frame = ready!(this.flow.poll(cx, |cx| this.inner.poll_frame(cx), || BodyError::Late));
        match &mut frame {
            Some(Ok(frame)) => {
                let data = frame.data_ref().filter(|_| !matches!(this.inner, Inbound::Whole(..)));
                let len = data.map_or(0, Bytes::len);
                let sees = |watch: &mut Watch| {
                    watch.sees(data.map_or(&[][..], |data| data))
                        || frame.trailers_ref().is_some_and(|trailers| in_headers(trailers).is_some())
                };
                if this.watch.as_mut().is_some_and(sees) {
                    this.meter.placeholder.set(true);
                    this.meter.broke_off.set(true);
                    return Poll::Ready(Some(Err(BodyError::Placeholder)));
                }
                this.meter.bytes.set(this.meter.bytes.get() + len as u64);
                if let Some(trailers) = frame.trailers_mut() {
                    strip_trailers(trailers);
                }
            }
            Some(Err(BodyError::Refused { refusal, .. })) => this.meter.refusal.set(Some(*refusal)),
            Some(Err(BodyError::Late)) => this.meter.late.set(true),
            Some(Err(_)) | None => {}
        }
        let ended = frame.is_none() || this.is_end_stream();
        let failed = matches!(frame, Some(Err(_)));
        this.meter.done.set(ended && !failed);
        this.meter.broke_off.set(failed);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream() && self.flow.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
