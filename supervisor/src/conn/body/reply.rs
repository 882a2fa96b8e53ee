//! Answers on their way to callers.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::{BodyError, Meter};
use crate::audit::Record;
use crate::conn::flow::{BodyRules, Flow};
use crate::credentials::Held;
use crate::gate::{Limits, check_trailers};
use crate::headers::strip_trailers;
use crate::reason::Reason;

/// The exchange that a connection is busy with, shared between the connection and its bodies.
#[derive(Default)]
pub struct InFlight {
    active: Cell<bool>,
    cut: Cell<Option<Reason>>,
    answers: Option<BodyRules>,
}

impl InFlight {
    /// Its answers keep to `rules`.
    #[must_use]
    pub fn with_answers(rules: BodyRules) -> Self {
        Self { answers: Some(rules), ..Self::default() }
    }

    /// An exchange starts.
    pub fn start(&self) {
        self.active.set(true);
    }

    /// The exchange ended without an answer of the other side.
    pub fn end(&self) {
        self.active.set(false);
    }

    /// Whether an answer is still on its way.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.active.get()
    }

    /// The connection is about to be cut for this reason.
    pub fn cut(&self, reason: Reason) {
        self.cut.set(Some(reason));
    }

    /// Whether it was cut.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut.get().is_some()
    }

    /// What cut it, if that was not the end of its own connection.
    #[must_use]
    pub fn cut_by(&self) -> Option<Reason> {
        self.cut.get().filter(|cut| !matches!(cut, Reason::Done | Reason::Reset))
    }
}

/// What happens to the upstream connection when an answer has ended well; dropping it unused closes the connection.
pub trait Lease: 'static {
    /// Why an answer broke off: the fault of its bytes or of its connection. The second is the finer reason, if there is one.
    fn broken(&self) -> (Reason, &'static str);
    /// The exchange ended as it should: the connection may serve another one.
    fn give_back(self: Box<Self>);
}

/// What a caller gets: an answer of the other side, or a text of ours.
pub enum ReplyBody {
    /// An upstream's or app's answer.
    Forwarded(Box<Forwarded>),
    /// A text of ours.
    Text(Full<Bytes>),
}

/// An answer on its way to the caller, with the request's record and the upstream connection.
pub struct Forwarded {
    inner: Incoming,
    request: Rc<Meter>,
    bytes: u64,
    record: Option<Record>,
    lease: Option<Box<dyn Lease>>,
    in_flight: Rc<InFlight>,
    flow: Flow,
    /// Its length is not told to whoever frames it.
    is_lengthless: bool,
    secret: Option<Arc<Held>>,
}

impl Forwarded {
    /// `in_flight` learns of the end, and says why when the connection was cut.
    #[must_use]
    pub fn new(
        inner: Incoming,
        request: Rc<Meter>,
        record: Record,
        lease: Box<dyn Lease>,
        in_flight: Rc<InFlight>,
    ) -> Self {
        let flow = Flow::under(in_flight.answers.clone());
        Self {
            inner,
            request,
            bytes: 0,
            record: Some(record),
            lease: Some(lease),
            in_flight,
            flow,
            is_lengthless: false,
            secret: None,
        }
    }

    /// The same, and it breaks off when its trailers say `secret`.
    #[must_use]
    pub fn without(mut self, secret: Option<Arc<Held>>) -> Self {
        self.secret = secret;
        self
    }

    fn is_over(&self) -> bool {
        self.inner.is_end_stream() && self.flow.is_empty()
    }

    fn fail(&mut self, error: &BodyError) {
        let (reason, detail) = match (error, &self.lease) {
            (BodyError::Late, _) => (Reason::UpstreamTimeout, ""),
            (BodyError::Echo, _) => (Reason::CredentialEchoed, ""),
            (BodyError::Refused { refusal, .. }, _) => (Reason::UpstreamMalformed, refusal.as_str()),
            (_, Some(lease)) => lease.broken(),
            (_, None) => (Reason::UpstreamClosed, ""),
        };
        if let Some(record) = &mut self.record {
            record.fail(reason);
            record.detail(detail);
        }
        self.finish(reason);
    }

    /// The next piece. The gate has seen the trailers of HTTP/1; nobody those of HTTP/2.
    fn poll_checked(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let inner = &mut self.inner;
        let source = |cx: &mut Context<'_>| Pin::new(&mut *inner).poll_frame(cx).map_err(BodyError::Broken);
        let frame = ready!(self.flow.poll(cx, source, || BodyError::Late)).transpose();
        let fault = frame.as_ref().ok().and_then(|frame| {
            let trailers = frame.as_ref()?.trailers_ref()?;
            if self.secret.as_ref().is_some_and(|secret| secret.is_said_by(trailers)) {
                return Some(BodyError::Echo);
            }
            check_trailers(trailers, false, &Limits::default()).err().map(BodyError::refused)
        });
        Poll::Ready(fault.map_or(frame, Err).transpose())
    }

    fn finish(&mut self, close: Reason) {
        let Some(mut record) = self.record.take() else { return };
        self.in_flight.active.set(false);
        self.request.give_up();
        record.bytes(self.request.bytes(), self.bytes);
        record.close(close);
        // An answer that overtook its request leaves bytes of the request behind: never reused.
        if close == Reason::Done
            && self.request.is_done()
            && let Some(lease) = self.lease.take()
        {
            lease.give_back();
        }
    }
}

impl Drop for Forwarded {
    fn drop(&mut self) {
        // A connection that ended in good order did so without the rest of this answer.
        let cut = self.in_flight.cut.get().filter(|cut| *cut != Reason::Done).unwrap_or(Reason::Aborted);
        self.finish(if self.is_over() { Reason::Done } else { cut });
    }
}

impl ReplyBody {
    /// Lets an answer end where it ends, so that trailers can follow it in HTTP/1.1, whose lengths leave no room for them (RFC 9112,
    /// section 7.1.2). False: there is none to come.
    pub fn forget_length(&mut self) -> bool {
        match self {
            Self::Forwarded(forwarded) if !forwarded.is_over() => {
                forwarded.is_lengthless = true;
                true
            }
            Self::Forwarded(_) | Self::Text(_) => false,
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let forwarded = match self.get_mut() {
            Self::Text(text) => return Pin::new(text).poll_frame(cx).map_err(|never| match never {}),
            Self::Forwarded(forwarded) => forwarded,
        };
        let mut frame = ready!(forwarded.poll_checked(cx));
        match &mut frame {
            Some(Ok(data)) => {
                if let Some(trailers) = data.trailers_mut() {
                    strip_trailers(trailers);
                }
                forwarded.bytes += data.data_ref().map_or(0, Bytes::len) as u64;
                if forwarded.is_over() {
                    forwarded.finish(Reason::Done);
                }
            }
            Some(Err(error)) => forwarded.fail(error),
            None => forwarded.finish(Reason::Done),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_end_stream(),
            Self::Forwarded(forwarded) => forwarded.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => text.size_hint(),
            Self::Forwarded(forwarded) if forwarded.is_lengthless => SizeHint::default(),
            Self::Forwarded(forwarded) => forwarded.inner.size_hint(),
        }
    }
}
