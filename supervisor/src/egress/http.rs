//! HTTP/1.1 from an app: absolute-form requests to the proxy, CONNECT, and plaintext requests inside a tunnel.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;

use http::{HeaderValue, Method, Request, Response, Uri, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use nova_policy::data::{EgressTarget, UpstreamTls};
use nova_policy::host::{Authority, Host};
use nova_policy::input::Input;
use nova_policy::path::CanonicalPath;

use super::{Guest, connect};
use crate::audit::Record;
use crate::conn::body::{BodyRules, InFlight, Meter, ReplyBody, RequestBody};
use crate::conn::reply::{Form, end_gently, refusal};
use crate::conn::{Cut, Event, HttpBounds, canonical_path};
use crate::copy::{self, Forward};
use crate::decide::Permit;
use crate::dial::Speaks;
use crate::gate::GateHandle;
use crate::gate::io::GatedIo;
use crate::headers::strip_request_headers;
use crate::net::stream::{Prefixed, Stream};
use crate::reason::Reason;
use crate::state::endpoint::Stage;
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

struct Connection {
    guest: Rc<Guest>,
    mode: Mode,
    gate: GateHandle,
    current: RefCell<Option<Permit>>,
    in_flight: Rc<InFlight>,
    /// What holds for the bodies of requests.
    requests: BodyRules,
    /// The gate refused the body of a request, and that request's record says so.
    refusal_recorded: Cell<bool>,
}

/// A request that may go.
struct Ready {
    permit: Permit,
    forward: Forward,
}

/// Serves HTTP until the connection ends, its endpoint closes, or what is on its way is no longer allowed.
pub(super) async fn serve(guest: Rc<Guest>, stream: Prefixed, mode: Mode) {
    let mut cut = Cut::watch(&guest.endpoint, &guest.egress.policy);
    let bounds = HttpBounds::new(&guest.endpoint, &guest.spec.limits, Way::FromGuest);
    let io = GatedIo::server(stream, bounds.gate);
    let gate = io.handle();
    // Nobody's next request on this connection is awaited any more, but its first one is: the app may need it to finish.
    let is_draining = guest.endpoint.stage() >= Stage::Draining;
    let connection = Connection {
        guest,
        mode,
        gate,
        current: RefCell::new(None),
        in_flight: Rc::new(InFlight::with_answers(bounds.answers)),
        requests: bounds.requests,
        refusal_recorded: Cell::new(false),
    };
    let service = service_fn(|request| connection.handle(request));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.idle)
        .keep_alive(!is_draining)
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    let mut serving = std::pin::pin!(serving);
    let cut_by = loop {
        tokio::select! {
            biased;
            event = cut.next() => match event {
                // A guest has no certificate that could end.
                Event::PeerEnding(_) => {}
                Event::PeerEnded(reason) => break reason,
                Event::Closed => break Reason::Draining,
                Event::PolicyChanged if !connection.still_allowed() => break Reason::PolicyRevoked,
                // An idle connection ends now; one with an answer on its way ends after it. New ones may still be opened.
                Event::Draining if !is_draining => serving.as_mut().graceful_shutdown(),
                Event::Aged => serving.as_mut().graceful_shutdown(),
                Event::PolicyChanged | Event::Draining => {}
            },
            served = serving.as_mut() => break if served.is_ok() { Reason::Done } else { Reason::Reset },
        }
    };
    connection.in_flight.cut(cut_by);
    connection.guest.ended(cut_by);
    if let Some(refused) = connection.gate.refusal().filter(|_| !connection.refusal_recorded.get()) {
        let mut record = connection.guest.record();
        record.deny(Reason::Malformed);
        record.detail(refused.as_str());
    }
}

impl Connection {
    fn still_allowed(&self) -> bool {
        let current = self.current.borrow();
        let request = current.as_ref().filter(|_| self.in_flight.is_active());
        request.is_none_or(|permit| self.guest.egress.decider.still_allows(permit))
    }

    async fn handle(&self, request: Request<Incoming>) -> Result<Response<ReplyBody>, Infallible> {
        if request.method() == Method::CONNECT && matches!(self.mode, Mode::Proxy) {
            return Ok(connect::handle(&self.guest, request).await);
        }
        let mut record = self.guest.record();
        let call = format!("{} {}", request.method(), without_query(request.uri()));
        let ready = match self.prepare(request, &mut record) {
            Ok(ready) => ready,
            Err(reason) => {
                record.deny(reason);
                self.guest.egress.audit.throttle(&self.guest.spec.pod_uid).await;
                return Ok(refusal(&mut record, reason, Some(&call), Form::Problem));
            }
        };
        let meter = Rc::clone(&ready.forward.meter);
        let open = async |record: &mut Record| self.dial(&ready.permit, record).await;
        match copy::forward(ready.forward, record, open).await {
            Ok(response) => Ok(response),
            Err((mut record, reason)) => {
                let reason = self.blame(&mut record, reason, &meter);
                Ok(refusal(&mut record, reason, Some(&call), Form::Problem))
            }
        }
    }

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

    /// Checks, decides and re-makes a request. What is decided is what is sent.
    fn prepare(&self, request: Request<Incoming>, record: &mut Record) -> Result<Ready, Reason> {
        let (mut head, body) = request.into_parts();
        record.request(head.method.as_str(), "");
        if let Some(upgrade) = head.extensions.remove::<OnUpgrade>() {
            end_gently::<Prefixed>(upgrade);
        }
        let authority = self.authority(&head.uri, &head.headers)?;
        record.dest(authority.host().as_str(), self.port(&authority).unwrap_or(80));
        if head.method == Method::TRACE || head.method == Method::CONNECT {
            return Err(Reason::Unsupported);
        }
        let path = canonical_path(&head.method, &head.uri)?;
        record.request(head.method.as_str(), path.path());
        strip_request_headers(&mut head.headers).map_err(|_| Reason::Malformed)?;
        let permit = self.decide(&authority, &head.method, &path, record)?;
        self.current.replace(Some(permit.clone()));
        let host = HeaderValue::from_str(&authority.to_string()).map_err(|_| Reason::BadDestination)?;
        head.headers.insert(header::HOST, host);
        head.uri = Uri::try_from(path.path_and_query()).map_err(|_| Reason::BadPath)?;
        head.version = http::Version::HTTP_11;
        head.extensions.clear();
        let (body, meter) = RequestBody::new(body);
        let body = body.under(self.requests.clone());
        let pool = self.guest.egress.dialer.pools().get(&self.pool_key(&permit), Speaks::Http1);
        let forward =
            Forward { request: Request::from_parts(head, body), meter, pool, in_flight: Rc::clone(&self.in_flight) };
        Ok(Ready { permit, forward })
    }

    /// The destination, from the one place that may name it.
    fn authority(&self, uri: &Uri, headers: &http::HeaderMap) -> Result<Authority, Reason> {
        let parse = |text: &str| Authority::parse(text).map_err(|_| Reason::BadDestination);
        match &self.mode {
            Mode::Proxy => {
                // Origin form is a request to us, and https:// would have to be downgraded or guessed: both are refused.
                if uri.scheme_str() != Some("http") {
                    return Err(Reason::Unsupported);
                }
                parse(uri.authority().ok_or(Reason::BadDestination)?.as_str())
            }
            Mode::Inside { host, port } => {
                let named = headers.get(header::HOST).and_then(|value| value.to_str().ok());
                let named = parse(named.ok_or(Reason::BadDestination)?)?;
                let target = uri.authority().map(|authority| parse(authority.as_str())).transpose()?;
                let is_tunnels = |name: &Authority| name.host() == host && name.port_or(*port) == *port;
                let all_same = is_tunnels(&named) && target.as_ref().is_none_or(is_tunnels);
                if all_same { Ok(named) } else { Err(Reason::BadDestination) }
            }
        }
    }

    fn port(&self, authority: &Authority) -> Option<u16> {
        match self.mode {
            Mode::Proxy => authority.port(),
            Mode::Inside { port, .. } => Some(port),
        }
    }

    /// Decides on the named port. Without one it is 80, or 443 with TLS when 80 has no rule at all and 443 has: an upgrade
    /// that the record notes. It never goes the other way.
    fn decide(
        &self,
        authority: &Authority,
        method: &Method,
        path: &CanonicalPath,
        record: &mut Record,
    ) -> Result<Permit, Reason> {
        let decider = &self.guest.egress.decider;
        let workload = self.guest.spec.workload.as_str();
        let on = |port| Input::egress_request(workload, authority.host(), port, method.as_str(), path);
        if let Some(port) = self.port(authority) {
            return decider.decide(on(port), record);
        }
        match decider.decide(on(80), record) {
            Err(Reason::NoGrant) => {}
            decided => return decided,
        }
        record.dest(authority.host().as_str(), 443);
        let permit = decider.decide(on(443), record)?;
        let with_tls = matches!(
            permit.target(),
            Some(EgressTarget::Workload { .. } | EgressTarget::External { tls: UpstreamTls::Originate, .. })
        );
        record.upgraded();
        if with_tls { Ok(permit) } else { Err(Reason::NoGrant) }
    }

    fn pool_key(&self, permit: &Permit) -> String {
        let (spec, input) = (&self.guest.spec, permit.input());
        let svid = self.guest.endpoint.svid.current();
        format!(
            "out {} {} {}:{} {} {} {}",
            spec.pod_uid,
            spec.generation,
            input.dest_host().unwrap_or_default(),
            input.dest_port().unwrap_or_default(),
            permit.rule(),
            permit.policy().revision(),
            svid.as_ref().map_or("", |svid| svid.serial.as_str()),
        )
    }
}

/// What the caller asked for, as far as it may be written down.
fn without_query(uri: &Uri) -> String {
    let text = uri.to_string();
    text.split(['?', '#']).next().unwrap_or_default().chars().take(512).collect()
}
