//! HTTP/1.1 on a port: every request is gated, decided and re-made before the app sees it.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response, Uri, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use nova_policy::host::Authority;

use super::Ingress;
use super::token::Bearer;
use super::xfcc;
use crate::audit::{Kind, Record};
use crate::conn::body::{InFlight, ReplyBody, RequestBody};
use crate::conn::reply::{end_gently, refusal};
use crate::conn::{Event, Identified, canonical_path};
use crate::copy::{self, Forward};
use crate::decide::Permit;
use crate::dial::Pool;
use crate::gate::io::GatedIo;
use crate::gate::{GateHandle, Limits};
use crate::headers::{self, strip_request_headers};
use crate::net::stream::Stream;
use crate::reason::Reason;

/// A connection without a request for this long is closed.
const IDLE: Duration = Duration::from_secs(75);

/// What is the same for every request of a connection, computed once.
struct Connection<'a> {
    ingress: &'a Ingress,
    conn: RefCell<Identified>,
    connect: Permit,
    bearer: Bearer,
    gate: GateHandle,
    current: RefCell<Option<Permit>>,
    in_flight: Rc<InFlight>,
    /// The gate refused the body of a request, and that request's record says so.
    refusal_recorded: Cell<bool>,
    pool: Rc<Pool>,
    identity: Option<HeaderValue>,
    source: HeaderValue,
    /// The last Host, which most callers never change: read once.
    last_named: RefCell<Option<Named>>,
}

/// A Host header as it came, what it means, and how it is passed on.
#[derive(Clone)]
struct Named {
    raw: HeaderValue,
    authority: Authority,
    canonical: HeaderValue,
}

/// Serves the connection until it ends, the endpoint closes, or the policy no longer allows it.
pub(super) async fn serve(ingress: &Ingress, conn: Identified, connect: Permit, stream: Stream) {
    let mut cut = ingress.watch(&conn);
    let io = GatedIo::server(stream, Limits::default());
    let gate = io.handle();
    let connection = Connection {
        pool: ingress.dialer.pools().get(&pool_key(&conn, &connect)),
        identity: xfcc::header(&conn),
        source: source_header(conn.who.addr),
        bearer: Bearer::of(&conn.spec, &connect),
        ingress,
        conn: RefCell::new(conn),
        connect,
        gate,
        current: RefCell::new(None),
        last_named: RefCell::new(None),
        in_flight: Rc::default(),
        refusal_recorded: Cell::new(false),
    };
    let close = {
        let in_flight = Rc::clone(&connection.in_flight);
        let service = service_fn(|request| connection.handle(request));
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE)
            .serve_connection(TokioIo::new(io), service)
            .with_upgrades();
        let mut serving = std::pin::pin!(serving);
        let mut done = Reason::Done;
        let close = loop {
            tokio::select! {
                biased;
                event = cut.next() => match event {
                    Event::Draining => serving.as_mut().graceful_shutdown(),
                    Event::PeerEnding(reason) => {
                        done = reason;
                        serving.as_mut().graceful_shutdown();
                    }
                    Event::PeerEnded(reason) => break reason,
                    Event::Closed => break Reason::Draining,
                    Event::PolicyChanged if connection.still_allowed() => {}
                    Event::PolicyChanged => break Reason::PolicyRevoked,
                },
                served = serving.as_mut() => break if served.is_ok() { done } else { Reason::Reset },
            }
        };
        // Before the bodies are dropped: their records say why they were cut.
        in_flight.cut(close);
        close
    };
    let refused = connection.gate.refusal().filter(|_| !connection.refusal_recorded.get());
    let mut conn = connection.conn.into_inner();
    conn.record.close(close);
    if let Some(refused) = refused {
        conn.record.deny(Reason::Malformed);
        conn.record.detail(refused.as_str());
    }
}

impl Connection<'_> {
    fn still_allowed(&self) -> bool {
        let decider = &self.ingress.decider;
        let current = self.current.borrow();
        let request = current.as_ref().filter(|_| self.in_flight.is_active());
        decider.still_allows(&self.connect) && request.is_none_or(|permit| decider.still_allows(permit))
    }

    async fn handle(&self, request: Request<Incoming>) -> Result<Response<ReplyBody>, Infallible> {
        let mut record = {
            let conn = self.conn.borrow();
            let mut record = Record::open(&self.ingress.audit, Kind::Request, "ingress", &conn.spec);
            if let Some(peer) = &conn.who.identity {
                record.peer(&peer.label(), peer.ca.as_deref());
            }
            if let Some(addr) = conn.who.addr {
                record.src(addr);
            }
            record
        };
        match self.prepare(request, &mut record) {
            Err(reason) => {
                record.deny(reason);
                // A refusal waits for nothing: without this a flood of them would take turn after turn.
                tokio::task::yield_now().await;
                Ok(refusal(&mut record, reason, None))
            }
            Ok((permit, forward)) => {
                let spec = std::sync::Arc::clone(&self.conn.borrow().spec);
                let open = async |_: &mut Record| {
                    let guest = self.ingress.dialer.guest(&permit, &spec).await.map_err(|failure| failure.reason)?;
                    Ok(Stream::Guest(Box::new(guest)))
                };
                match copy::forward(forward, record, open).await {
                    Ok(response) => Ok(response),
                    Err((mut record, reason)) => {
                        let reason = self.blame(&mut record, reason);
                        Ok(refusal(&mut record, reason, None))
                    }
                }
            }
        }
    }

    /// The one destination that a request names: its Host, and an absolute target must say the same.
    fn named(&self, uri: &Uri, headers: &http::HeaderMap) -> Result<Named, Reason> {
        let host = headers.get(header::HOST).ok_or(Reason::BadDestination)?;
        let mut last = self.last_named.borrow_mut();
        let named = match last.as_ref().filter(|last| last.raw == host) {
            Some(last) => last.clone(),
            None => last.insert(read_host(host)?).clone(),
        };
        let Some(target) = uri.authority() else { return Ok(named) };
        let target = Authority::parse(target.as_str()).map_err(|_| Reason::BadDestination)?;
        if target.host() == named.authority.host() { Ok(named) } else { Err(Reason::BadDestination) }
    }

    /// Whose fault a failed exchange is: a request whose body the gate refused did not fail at the app.
    fn blame(&self, record: &mut Record, reason: Reason) -> Reason {
        let Some(refused) = self.gate.refusal() else {
            record.fail(reason);
            return reason;
        };
        self.refusal_recorded.set(true);
        record.deny(Reason::Malformed);
        record.detail(refused.as_str());
        record.close(Reason::Malformed);
        Reason::Malformed
    }

    /// Checks, decides and re-makes a request. What is decided is what is sent.
    fn prepare(&self, request: Request<Incoming>, record: &mut Record) -> Result<(Permit, Forward), Reason> {
        let (mut head, body) = request.into_parts();
        record.request(head.method.as_str(), "");
        if let Some(upgrade) = head.extensions.remove::<OnUpgrade>() {
            end_gently::<Stream>(upgrade);
        }
        let Named { authority, canonical, .. } = self.named(&head.uri, &head.headers)?;
        record.dest(authority.host().as_str(), authority.port_or(443));
        let path = canonical_path(&head.method, &head.uri)?;
        record.request(head.method.as_str(), path.path());
        if head.method == Method::TRACE || head.method == Method::CONNECT {
            return Err(Reason::Unsupported);
        }
        strip_request_headers(&mut head.headers).map_err(|_| Reason::Malformed)?;
        let input = self.connect.input().request(head.method.as_str(), &path);
        let permit = self.bearer.decide(&self.ingress.decider, &mut head.headers, input, record)?;
        self.current.replace(Some(permit.clone()));
        if let Some(identity) = &self.identity {
            head.headers.insert(headers::XFCC, identity.clone());
        }
        head.headers.insert(headers::XFF, self.source.clone());
        head.headers.insert(header::HOST, canonical);
        head.uri = Uri::try_from(path.path_and_query()).map_err(|_| Reason::BadPath)?;
        head.version = http::Version::HTTP_11;
        head.extensions.clear();
        let (body, meter) = RequestBody::new(body);
        let request = Request::from_parts(head, body);
        let forward = Forward { request, meter, pool: Rc::clone(&self.pool), in_flight: Rc::clone(&self.in_flight) };
        Ok((permit, forward))
    }
}

fn read_host(raw: &HeaderValue) -> Result<Named, Reason> {
    let text = raw.to_str().map_err(|_| Reason::BadDestination)?;
    let authority = Authority::parse(text).map_err(|_| Reason::BadDestination)?;
    let canonical = HeaderValue::from_str(&authority.to_string()).map_err(|_| Reason::BadDestination)?;
    // A copy: the value as it came is a piece of hyper's read buffer, which must not live as long as the connection.
    let raw = HeaderValue::from_bytes(raw.as_bytes()).map_err(|_| Reason::BadDestination)?;
    Ok(Named { raw, authority, canonical })
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
