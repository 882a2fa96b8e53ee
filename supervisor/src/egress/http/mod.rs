//! HTTP from an app: absolute-form requests to the proxy, CONNECT, and plaintext requests inside a tunnel.
//!
//! ```text
//!   stream --> h1: the gate, then hyper --> request --> prepare --> refused: problem details
//!                                                          \------> copy::forward -> answer
//! ```
//! Every request goes through [`Connection::prepare`]: there is no second way to the decision, and no second place where what
//! is sent is made.

mod h1;
mod prepare;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use nova_policy::host::Host;

use self::prepare::Ready;
use super::Guest;
use crate::audit::Record;
use crate::conn::body::{InFlight, Meter, ReplyBody};
use crate::conn::reply::{Form, refusal};
use crate::conn::{Cut, HttpBounds};
use crate::copy;
use crate::decide::Permit;
use crate::gate::GateHandle;
use crate::net::stream::{Prefixed, Stream};
use crate::reason::Reason;
use crate::state::pace::Way;

/// What the requests of a connection are allowed to name.
pub(super) enum Mode {
    /// The proxy port: any destination, in absolute form.
    Proxy,
    /// Inside a tunnel: the tunnel's destination only.
    Inside {
        /// Host of the tunnel.
        host: Host,
        /// Port of the tunnel.
        port: u16,
    },
}

/// What is the same for every request of a connection.
struct Connection {
    guest: Rc<Guest>,
    mode: Mode,
    bounds: HttpBounds,
}

/// One exchange after the other of an HTTP/1 connection.
struct Call {
    permit: RefCell<Option<Permit>>,
    in_flight: Rc<InFlight>,
    /// Knows why bytes were refused.
    gate: GateHandle,
    /// The gate refused the body of a request, and that request's record says so.
    refusal_recorded: Cell<bool>,
}

/// Serves HTTP until the connection ends, its endpoint closes, or what is on its way is no longer allowed.
pub(super) async fn serve(guest: Rc<Guest>, stream: Prefixed, mode: Mode) {
    let cut = Cut::watch(&guest.endpoint, &guest.egress.policy);
    let bounds = HttpBounds::new(&guest.endpoint, &guest.spec.limits, Way::FromGuest);
    let connection = Connection { guest, mode, bounds };
    let close = h1::serve(&connection, stream, cut).await;
    connection.guest.ended(close);
}

impl Connection {
    /// What an exchange, or one after the other, is kept in.
    fn new_call(&self, gate: GateHandle) -> Call {
        Call {
            permit: RefCell::default(),
            in_flight: Rc::new(InFlight::with_answers(self.bounds.answers.clone())),
            gate,
            refusal_recorded: Cell::default(),
        }
    }

    fn still_allows(&self, call: &Call) -> bool {
        let permit = call.permit.borrow();
        let permit = permit.as_ref().filter(|_| call.in_flight.is_active());
        permit.is_none_or(|permit| self.guest.egress.decider.still_allows(permit))
    }

    /// Decides a request and gives the answer to it, of the other side or ours.
    async fn answer(&self, request: Request<Incoming>, call: &Call) -> Response<ReplyBody> {
        let mut record = self.guest.record();
        let asked = format!("{} {}", request.method(), without_query(request.uri()));
        let ready = match self.prepare(request, call, &mut record) {
            Ok(ready) => ready,
            Err(reason) => {
                record.deny(reason);
                self.guest.egress.audit.throttle(&self.guest.spec.pod_uid).await;
                return refusal(&mut record, reason, Some(&asked), Form::Problem);
            }
        };
        let Ready { permit, forward } = ready;
        let meter = Rc::clone(&forward.meter);
        let open = async |record: &mut Record| self.dial(&permit, record).await;
        match copy::forward(forward, record, open).await {
            Ok(response) => response,
            Err((mut record, reason)) => {
                let reason = call.blame(&mut record, reason, &meter);
                refusal(&mut record, reason, Some(&asked), Form::Problem)
            }
        }
    }

    async fn dial(&self, permit: &Permit, record: &mut Record) -> Result<Stream, Reason> {
        match self.guest.egress.dialer.upstream(permit, &self.guest.endpoint).await {
            Ok(upstream) => {
                record.dialled(upstream.addr);
                Ok(upstream.stream)
            }
            Err(failure) => {
                if let Some(addr) = failure.addr {
                    record.dialled(addr);
                }
                Err(failure.reason)
            }
        }
    }
}

impl Call {
    /// Whose fault a failed exchange is: a request whose body the gate refused did not fail at the other side.
    fn blame(&self, record: &mut Record, reason: Reason, meter: &Meter) -> Reason {
        // The gate reads ahead: what it refused may belong to a request that comes after this one.
        let Some(refused) = self.gate.refusal().filter(|_| meter.broke_off()) else {
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
}

/// What the caller asked for, as far as it may be written down.
fn without_query(uri: &Uri) -> String {
    let text = uri.to_string();
    text.split(['?', '#']).next().unwrap_or_default().chars().take(512).collect()
}
