//! HTTP from a caller, in both versions and for both directions: framing, streams, and what cuts them. What differs between
//! ingress and egress, above all what is decided, is a [`Side`].
//!
//! ```text
//!            preface or ALPN
//!   stream ---------+--> h1: the gate, then hyper -----\               /--> refused: problem details or a gRPC status
//!                    \--> h2: streams, one task of all --+-> request --+
//!                                                                       \--> Side::prepare -> copy::forward -> answer
//! ```
//! Both versions hand each request to [`Side::prepare`]: there is no second way to the decision. A request of HTTP/1.1 that was
//! granted a WebSocket leaves HTTP with the 101 of the other side (`upgrade`) and ends with its connection.

mod call;
mod h1;
mod h2;
mod head;
mod named;
mod sniff;
mod stream;
mod unserved;
mod upgrade;

use std::rc::Rc;
use std::sync::Arc;

use http::{Method, Request, Response, Uri};
use hyper::body::Incoming;

use self::sniff::Version;
use crate::audit::{AuditSink, Record};
use crate::conn::body::{Inbound, ReplyBody};
use crate::conn::reply::{Form, refusal};
use crate::conn::{Cut, HttpBounds};
use crate::copy::{self, Forward};
use crate::credentials::Body;
use crate::decide::{Decider, Permit};
use crate::net::stream::{Prefixed, Stream};
use crate::reason::Reason;
use crate::state::endpoint::{Endpoint, EndpointSpec};
use crate::state::way::Way;

pub use self::call::{Call, CallerLeft};
pub use self::h1::serve as serve_http1;
pub use self::head::{asks_for_websocket, body_rules, check_fields, is_plain, readdress};
pub use self::named::{LastNamed, Named};

/// One direction, as the HTTP of one connection sees it.
pub trait Side {
    /// Whose connection it is.
    fn endpoint(&self) -> &Arc<Endpoint>;
    /// What the whole connection is judged by.
    fn spec(&self) -> &EndpointSpec;
    /// What its messages must keep to.
    fn bounds(&self) -> &HttpBounds;
    /// Where its requests go.
    fn way(&self) -> Way;
    /// What decides.
    fn decider(&self) -> &Decider;
    /// Where it is written down.
    fn audit(&self) -> &AuditSink;

    /// Whether the connection itself is still allowed, whatever goes on over it.
    fn may_go_on(&self) -> bool {
        true
    }

    /// Whether it came when the endpoint drained already: what it asks first is still served.
    fn is_late(&self) -> bool {
        false
    }

    /// Opens the record of a request that nothing is known of yet.
    fn record(&self) -> Record;

    /// Checks, decides and re-makes a request; `Err` is the refusal to answer with. What is decided is what is sent.
    ///
    /// # Errors
    /// The answer.
    fn prepare(&self, request: Request<Inbound>, call: &Call) -> Result<Ready, Box<Response<ReplyBody>>>;

    /// Answers a request that asks this side for something, instead of naming where it goes: a CONNECT to a proxy.
    fn take(
        &self,
        request: Request<Incoming>,
        _call: &Call,
    ) -> impl Future<Output = Result<Response<ReplyBody>, Request<Incoming>>> {
        std::future::ready(Err(request))
    }

    /// Does what must be done with the body before a permitted request can go.
    ///
    /// # Errors
    /// Why it must not go.
    fn complete(
        &self,
        _permit: &Permit,
        forward: Forward,
        _body: Body,
        _record: &mut Record,
    ) -> impl Future<Output = Result<Forward, Reason>> {
        std::future::ready(Ok(forward))
    }

    /// Opens a connection to where a permitted request goes.
    fn open(&self, permit: &Permit, record: &mut Record) -> impl Future<Output = Result<Stream, Reason>>;

    /// Resolves when what `permit` rests on ends by itself.
    fn until_outdated(&self, _: &Permit) -> impl Future<Output = Reason> {
        std::future::pending()
    }
}

/// A request that may go.
pub struct Ready {
    /// What was granted.
    pub permit: Permit,
    /// What is sent.
    pub forward: Forward,
    /// What is still to be done with its body.
    pub body: Body,
    /// The request's.
    pub record: Record,
    /// How the caller reads a refusal.
    pub form: Form,
    /// The caller waits for 100 before it sends the body.
    pub expects: bool,
    /// What the caller is told that it asked for, if it may be told.
    pub asked: Option<Asked>,
}

/// What a request asked for, for texts: most are answered without one.
pub struct Asked {
    method: Method,
    uri: Uri,
}

impl Asked {
    /// Of this request.
    #[must_use]
    pub fn of<B>(request: &Request<B>) -> Self {
        Self { method: request.method().clone(), uri: request.uri().clone() }
    }

    /// As far as it may be written down: without the query.
    #[must_use]
    pub fn text(&self) -> String {
        let target = self.uri.to_string();
        let target = target.split(['?', '#']).next().unwrap_or_default();
        format!("{} {}", self.method, target.chars().take(512).collect::<String>())
    }
}

impl Ready {
    /// Whether a WebSocket is granted, and the request asks for it.
    fn upgrades(&self) -> bool {
        self.permit.input().upgrade().is_some()
    }
}

/// How a connection ended.
pub struct End {
    /// Why.
    pub close: Reason,
    /// Bytes that were refused outside of any request.
    pub refused: Option<&'static str>,
}

impl End {
    fn with(close: Reason) -> Self {
        Self { close, refused: None }
    }
}

/// Serves the connection, in the version that its caller speaks, until it ends, the endpoint closes, or the policy no longer
/// allows it.
pub async fn serve(side: &impl Side, stream: Prefixed, mut cut: Cut) -> End {
    let version = sniff::version(side, stream, &mut cut).await;
    cut.again();
    match version {
        Ok((Version::Http1, stream)) => serve_http1(side, stream, cut).await,
        // Boxed: few callers speak it, and its state is large.
        Ok((Version::Http2, stream)) => Box::pin(h2::serve(side, stream, cut)).await,
        Err(close) => End::with(close),
    }
}

fn still_allows(side: &impl Side, call: &Call) -> bool {
    call.permit_in_use().is_none_or(|permit| side.decider().still_allows(&permit))
}

/// Sends a permitted request to the other side and gives its answer, or ours when there is none.
async fn forward(side: &impl Side, ready: Ready, call: &Call) -> Result<Response<ReplyBody>, CallerLeft> {
    let Ready { permit, mut forward, body, mut record, form, asked, .. } = ready;
    let asked = || asked.as_ref().map(Asked::text);
    let meter = Rc::clone(&forward.meter);
    if body.is_read_first() {
        // Boxed: rare, and it reads a body.
        forward = match Box::pin(side.complete(&permit, forward, body, &mut record)).await {
            Ok(forward) => forward,
            Err(reason) => {
                let reason = call.unsent(&mut record, reason, &meter)?;
                side.audit().throttle(&side.spec().pod_uid).await;
                return Ok(refusal(&mut record, reason, asked().as_deref(), form));
            }
        };
    }
    match copy::forward(forward, record, async |record: &mut Record| side.open(&permit, record).await).await {
        Ok(response) => Ok(response),
        Err((mut record, reason)) => {
            let reason = call.blame(&mut record, reason, &meter)?;
            Ok(refusal(&mut record, reason, asked().as_deref(), form))
        }
    }
}
