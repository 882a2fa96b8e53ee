//! HTTP on a port, in both versions: every request is checked, decided and re-made before the app sees it. `serve` carries it;
//! what is decided, and where it goes, is said here.

mod prepare;

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderValue, Request, Response};

use super::Ingress;
use super::token::Bearer;
use super::xfcc;
use crate::audit::{AuditSink, Kind, Record};
use crate::conn::body::{Inbound, ReplyBody};
use crate::conn::{Caller, HttpBounds, Identified};
use crate::decide::{Decider, Permit};
use crate::dial::{Pool, Speaks};
use crate::gate::Limits;
use crate::net::stream::Stream;
use crate::reason::Reason;
use crate::serve::{self, Call, LastNamed, Ready, Side};
use crate::state::endpoint::{Endpoint, EndpointSpec};
use crate::state::port::OpenPort;
use crate::state::room::Room;
use crate::state::way::Way;

/// A suspended machine's timers stand still while its clock goes on: the clock is looked at this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(600);

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
    room: Rc<Room>,
    identity: Option<HeaderValue>,
    source: HeaderValue,
    bounds: HttpBounds,
    /// A request was allowed.
    served: Cell<bool>,
    last_named: LastNamed,
}

/// Serves the connection until it ends, the endpoint closes, or the policy no longer allows it.
pub(super) async fn serve(
    ingress: &Ingress,
    mut conn: Identified,
    port: &OpenPort,
    connect: Permit,
    stream: Stream,
    speaks: Speaks,
) {
    let cut = ingress.watch(&conn, port);
    let bounds = HttpBounds::new(&conn.endpoint, &conn.spec.limits, Way::ToGuest);
    let connection = Connection {
        pool: pool(ingress, &conn, &connect, speaks, bounds.answer_gate),
        identity: xfcc::header(&conn),
        source: source_header(conn.who.addr),
        bounds,
        bearer: Bearer::of(&ingress.known_by.tokens, &conn.spec, &connect),
        speaks,
        ingress,
        room: Room::new(&conn.endpoint),
        endpoint: Arc::clone(&conn.endpoint),
        spec: Arc::clone(&conn.spec),
        who: conn.who.clone(),
        connect,
        served: Cell::new(false),
        last_named: LastNamed::default(),
    };
    let end = serve::serve(&connection, stream.into(), cut).await;
    conn.record.close(end.close);
    if connection.served.get() {
        conn.record.serves();
    }
    if let Some(refused) = end.refused {
        conn.record.deny(Reason::Malformed);
        conn.record.detail(refused);
    }
}

impl Side for Connection<'_> {
    fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    fn spec(&self) -> &EndpointSpec {
        &self.spec
    }

    fn bounds(&self) -> &HttpBounds {
        &self.bounds
    }

    fn way(&self) -> Way {
        Way::ToGuest
    }

    fn decider(&self) -> &Decider {
        &self.ingress.decider
    }

    fn audit(&self) -> &AuditSink {
        &self.ingress.audit
    }

    fn may_go_on(&self) -> bool {
        self.ingress.decider.still_allows(&self.connect)
    }

    fn record(&self) -> Record {
        let (port, number) = self.own_port();
        let mut record = self.open_record();
        record.dest(port, number);
        record
    }

    fn prepare(&self, request: Request<Inbound>, call: &Call) -> Result<Ready, Box<Response<ReplyBody>>> {
        self.checked(request, call)
    }

    async fn open(&self, permit: &Permit, _: &mut Record) -> Result<Stream, Reason> {
        let guest = self.ingress.dialer.guest(permit, &self.spec).await.map_err(|failure| failure.reason)?;
        Ok(Stream::Guest(Box::new(guest)))
    }

    async fn until_outdated(&self, permit: &Permit) -> Reason {
        until(permit.input().token().and_then(|_| self.bearer.last_until())).await;
        Reason::TokenInvalid
    }
}

impl Connection<'_> {
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
}

async fn until(end: Option<SystemTime>) {
    let Some(end) = end else { return std::future::pending().await };
    while let Ok(left) = end.duration_since(SystemTime::now())
        && !left.is_zero()
    {
        tokio::time::sleep(left.min(LONGEST_SLEEP)).await;
    }
}

/// Connections to the app for calls of this caller.
fn pool(ingress: &Ingress, conn: &Identified, connect: &Permit, speaks: Speaks, limits: Limits) -> Rc<Pool> {
    let peer = conn.who.identity.as_ref().map_or("", |peer| peer.cert_sha256.as_str());
    let addr = conn.who.addr.filter(|_| peer.is_empty()).map(|addr| addr.ip().to_string()).unwrap_or_default();
    let key = format_args!(
        "in {} {} {} {peer}{addr} {} {}",
        conn.spec.pod_uid,
        conn.spec.generation,
        connect.input().port().unwrap_or_default(),
        connect.policy().revision(),
        conn.spec.limits.header_bytes,
    );
    ingress.dialer.pools().get(key, speaks, limits)
}

fn source_header(addr: Option<SocketAddr>) -> HeaderValue {
    let ip = addr.map(|addr| addr.ip().to_canonical().to_string()).unwrap_or_default();
    HeaderValue::from_str(&ip).unwrap_or(HeaderValue::from_static("unknown"))
}
