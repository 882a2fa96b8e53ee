//! HTTP on a port, in both versions: every request is checked, decided and re-made before the app sees it.
//!
//! ```text
//!            preface or ALPN
//!   stream ---------+--> h1: the gate, then hyper -----\               /--> refused: problem details or a gRPC status
//!                    \--> h2: streams, one task of all --+-> request --+
//!                                                                       \--> decide -> copy::forward -> answer
//! ```
//! Both versions hand each request to [`Connection::prepare`]: there is no second way to the decision. A request of HTTP/1.1 that
//! was granted a WebSocket leaves HTTP with the 101 of the app (`upgrade`) and ends with its connection.

mod h1;
mod h2;
mod prepare;
mod sniff;
mod stream;
mod upgrade;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderValue, Response};
use tokio::sync::Notify;

use self::prepare::{Named, Ready};
use self::sniff::Version;
use self::upgrade::Switched;
use super::Ingress;
use super::token::Bearer;
use super::xfcc;
use crate::audit::{Kind, Record};
use crate::conn::body::{InFlight, Meter, ReplyBody};
use crate::conn::reply::refusal;
use crate::conn::{Caller, HttpBounds, Identified};
use crate::copy;
use crate::decide::Permit;
use crate::dial::{Pool, Speaks};
use crate::gate::{GateHandle, Refusal};
use crate::net::stream::Stream;
use crate::reason::Reason;
use crate::state::endpoint::{Endpoint, EndpointSpec};
use crate::state::pace::Way;

/// What is the same for every request of a connection, computed once.
struct Connection<'a> {
    ingress: &'a Ingress,
    endpoint: Arc<Endpoint>,
    spec: Arc<EndpointSpec>,
    who: Caller,
    connect: Permit,
    bearer: Bearer,
    /// What the app understands.
    speaks: Speaks,
    pool: Rc<Pool>,
    identity: Option<HeaderValue>,
    source: HeaderValue,
    bounds: HttpBounds,
    /// The last authority, which most callers never change: read once.
    last_named: RefCell<Option<Named>>,
}

/// One exchange after the other of an HTTP/1 connection, or the one of an HTTP/2 stream.
#[derive(Default)]
struct Call {
    permit: RefCell<Option<Permit>>,
    in_flight: Rc<InFlight>,
    /// Knows why bytes were refused; HTTP/2 has none.
    gate: Option<GateHandle>,
    /// The gate refused the body of a request, and that request's record says so.
    refusal_recorded: Cell<bool>,
    /// Tells a stream of HTTP/2 to end.
    cut: Notify,
    /// The app has left HTTP: what goes on once the caller has its 101.
    switched: RefCell<Option<Switched>>,
}

/// How a connection ended.
struct End {
    close: Reason,
    /// Bytes that were refused outside of any request.
    refused: Option<&'static str>,
}

/// Serves the connection until it ends, the endpoint closes, or the policy no longer allows it.
pub(super) async fn serve(ingress: &Ingress, mut conn: Identified, connect: Permit, stream: Stream, speaks: Speaks) {
    let mut cut = ingress.watch(&conn);
    let connection = Connection {
        pool: ingress.dialer.pools().get(&pool_key(&conn, &connect), speaks),
        identity: xfcc::header(&conn),
        source: source_header(conn.who.addr),
        bounds: HttpBounds::new(&conn.endpoint, &conn.spec.limits, Way::ToGuest),
        bearer: Bearer::of(&ingress.known_by.tokens, &conn.spec, &connect),
        speaks,
        ingress,
        endpoint: Arc::clone(&conn.endpoint),
        spec: Arc::clone(&conn.spec),
        who: conn.who.clone(),
        connect,
        last_named: RefCell::new(None),
    };
    let end = match sniff::version(&connection, stream, &mut cut).await {
        Ok((Version::Http1, stream)) => h1::serve(&connection, stream, cut).await,
        // Boxed: few callers speak it, and its state is large.
        Ok((Version::Http2, stream)) => Box::pin(h2::serve(&connection, stream, cut)).await,
        Err(close) => End::with(close),
    };
    conn.record.close(end.close);
    if let Some(refused) = end.refused {
        conn.record.deny(Reason::Malformed);
        conn.record.detail(refused);
    }
}

impl Connection<'_> {
    fn may_still_connect(&self) -> bool {
        self.ingress.decider.still_allows(&self.connect)
    }

    fn still_allows(&self, call: &Call) -> bool {
        let permit = call.permit.borrow();
        let permit = permit.as_ref().filter(|_| call.in_flight.is_active());
        permit.is_none_or(|permit| self.ingress.decider.still_allows(permit))
    }

    /// What an exchange, or one after the other, is kept in.
    fn new_call(&self, gate: Option<GateHandle>) -> Call {
        Call { in_flight: Rc::new(InFlight::with_answers(self.bounds.answers.clone())), gate, ..Call::default() }
    }

    fn open_record(&self) -> Record {
        let mut record = Record::open(&self.ingress.audit, Kind::Request, "ingress", &self.spec);
        if let Some(peer) = &self.who.identity {
            record.peer(&peer.label(), peer.ca.as_deref());
        }
        if let Some(addr) = self.who.addr {
            record.src(addr);
        }
        record
    }

    async fn open(&self, permit: &Permit) -> Result<Stream, Reason> {
        let guest = self.ingress.dialer.guest(permit, &self.spec).await.map_err(|failure| failure.reason)?;
        Ok(Stream::Guest(Box::new(guest)))
    }

    /// Sends a permitted request to the app and gives its answer, or ours when there is none.
    async fn forward(&self, ready: Ready, call: &Call) -> Response<ReplyBody> {
        let Ready { permit, forward, record, form, .. } = ready;
        let meter = Rc::clone(&forward.meter);
        match copy::forward(forward, record, async |_: &mut Record| self.open(&permit).await).await {
            Ok(response) => response,
            Err((mut record, reason)) => {
                let reason = call.blame(&mut record, reason, &meter);
                refusal(&mut record, reason, None, form)
            }
        }
    }
}

impl Call {
    /// Ends the exchange now, for this reason.
    fn cut(&self, reason: Reason) {
        self.in_flight.cut(reason);
        self.cut.notify_one();
    }

    /// Whose fault a failed exchange is: a request whose body was refused on its way did not fail at the app.
    fn blame(&self, record: &mut Record, reason: Reason, meter: &Meter) -> Reason {
        // The gate reads ahead: what it refused may belong to a request that comes after this one.
        let by_gate = self.gate.as_ref().and_then(GateHandle::refusal).filter(|_| meter.broke_off());
        let Some(refused) = by_gate.or(meter.refusal()) else {
            if reason == Reason::BodyTimeout {
                record.deny(reason);
            } else {
                record.fail(reason);
            }
            return reason;
        };
        self.refusal_recorded.set(true);
        record.deny(Reason::Malformed);
        record.detail(refused.as_str());
        record.close(Reason::Malformed);
        Reason::Malformed
    }

    /// What the gate refused and no request's record says yet.
    fn unrecorded_refusal(&self) -> Option<&'static str> {
        let refused = self.gate.as_ref().and_then(GateHandle::refusal);
        refused.filter(|_| !self.refusal_recorded.get()).map(Refusal::as_str)
    }
}

impl End {
    fn with(close: Reason) -> Self {
        Self { close, refused: None }
    }
}

fn pool_key(conn: &Identified, connect: &Permit) -> String {
    let peer = conn.who.identity.as_ref().map_or("", |peer| peer.cert_sha256.as_str());
    let addr = conn.who.addr.filter(|_| peer.is_empty()).map(|addr| addr.ip().to_string()).unwrap_or_default();
    let port = connect.input().port().unwrap_or_default();
    let revision = connect.policy().revision();
    format!("in {} {} {port} {peer}{addr} {revision}", conn.spec.pod_uid, conn.spec.generation)
}

fn source_header(addr: Option<SocketAddr>) -> HeaderValue {
    let ip = addr.map(|addr| addr.ip().to_canonical().to_string()).unwrap_or_default();
    HeaderValue::from_str(&ip).unwrap_or(HeaderValue::from_static("unknown"))
}
