//! HTTP from an app: absolute-form requests to the proxy, CONNECT, and requests inside a tunnel. `serve` carries it; what is
//! decided, and where it goes, is said here.
//!
//! Every request goes through [`Connection::checked`]: there is no second way to the decision, and no second place where what
//! is sent is made.

mod connect;
mod prepare;

use std::rc::Rc;
use std::sync::Arc;

use http::{Method, Request, Response};
use hyper::body::Incoming;

use super::tunnel::{self, Inside, Opened};
use super::{Guest, credential};
use crate::audit::{AuditSink, Record};
use crate::conn::body::{Inbound, ReplyBody};
use crate::conn::{Cut, HttpBounds};
use crate::copy::Forward;
use crate::credentials::Body;
use crate::decide::{Decider, Permit};
use crate::net::stream::{Prefixed, Stream};
use crate::reason::Reason;
use crate::serve::{self, Call, LastNamed, Ready, Side};
use crate::state::endpoint::{Endpoint, EndpointSpec, Stage};
use crate::state::room::Room;
use crate::state::way::Way;

/// What the requests of a connection are allowed to name.
pub(super) enum Mode {
    /// The proxy port: any destination, in absolute form.
    Proxy,
    /// The egress socket: as the proxy port, and in HTTP/2 as well, which clients of `unix://` speak at once.
    Socket,
    /// Inside a tunnel: the tunnel's destination only.
    Inside(Inside),
}

/// What is the same for every request of a connection.
struct Connection {
    guest: Rc<Guest>,
    /// Who asks, as decisions name it.
    workload: Arc<str>,
    mode: Mode,
    bounds: HttpBounds,
    room: Rc<Room>,
    last_named: LastNamed,
    /// Nobody's next request on this connection is awaited any more, but its first one is: the app may need it to finish.
    is_late: bool,
}

/// Carries an opened tunnel to its end: as bytes, or as the requests inside it.
pub(super) async fn carry(guest: Rc<Guest>, opened: Opened, caller: Prefixed, record: Record) {
    if let Some((caller, inside)) = tunnel::carry(&guest, opened, caller, record).await {
        // Boxed: what serves a CONNECT contains this.
        Box::pin(serve(guest, caller, Mode::Inside(inside))).await;
    }
}

/// Serves HTTP until the connection ends, its endpoint closes, or what is on its way is no longer allowed.
pub(super) async fn serve(guest: Rc<Guest>, stream: Prefixed, mode: Mode) {
    let cut = Cut::watch(&guest.endpoint, &guest.egress.policy);
    let bounds = HttpBounds::new(&guest.endpoint, &guest.spec.limits, Way::FromGuest);
    let is_late = guest.endpoint.stage() >= Stage::Draining;
    let connection = Connection {
        room: Room::new(&guest.endpoint),
        workload: guest.spec.workload.as_str().into(),
        last_named: LastNamed::default(),
        guest,
        mode,
        bounds,
        is_late,
    };
    let end = match connection.mode {
        // Proxies are spoken to in HTTP/1.
        Mode::Proxy => serve::serve_http1(&connection, stream, cut).await,
        Mode::Socket | Mode::Inside(_) => serve::serve(&connection, stream, cut).await,
    };
    connection.guest.ended(end.close);
    if let Some(refused) = end.refused {
        let mut record = connection.guest.record();
        record.deny(Reason::Malformed);
        record.detail(refused);
        connection.guest.throttle().await;
    }
}

impl Side for Connection {
    fn endpoint(&self) -> &Arc<Endpoint> {
        &self.guest.endpoint
    }

    fn spec(&self) -> &EndpointSpec {
        &self.guest.spec
    }

    fn bounds(&self) -> &HttpBounds {
        &self.bounds
    }

    fn way(&self) -> Way {
        Way::FromGuest
    }

    fn decider(&self) -> &Decider {
        &self.guest.egress.decider
    }

    fn audit(&self) -> &AuditSink {
        &self.guest.egress.audit
    }

    fn is_late(&self) -> bool {
        self.is_late
    }

    fn record(&self) -> Record {
        self.guest.record()
    }

    fn prepare(&self, request: Request<Inbound>, call: &Call) -> Result<Ready, Box<Response<ReplyBody>>> {
        self.checked(request, call)
    }

    async fn take(&self, request: Request<Incoming>, call: &Call) -> Result<Response<ReplyBody>, Request<Incoming>> {
        if request.method() == Method::CONNECT && matches!(self.mode, Mode::Proxy | Mode::Socket) {
            return Ok(connect::handle(&self.guest, request, call).await);
        }
        Err(request)
    }

    async fn complete(
        &self,
        permit: &Permit,
        forward: Forward,
        body: Body,
        record: &mut Record,
    ) -> Result<Forward, Reason> {
        credential::complete(&self.guest, permit, forward, body, record).await
    }

    async fn open(&self, permit: &Permit, record: &mut Record) -> Result<Stream, Reason> {
        self.guest.egress.dialer.upstream(permit, &self.guest.endpoint, record).await
    }
}
