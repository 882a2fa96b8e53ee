//! One request: checked, decided, and re-made from what was decided.

use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, request};
use nova_policy::data::{EgressTarget, UpstreamTls};
use nova_policy::host::Authority;
use nova_policy::input::Input;
use nova_policy::path::CanonicalPath;

use super::{Connection, Mode};
use crate::audit::Record;
use crate::conn::body::{GoAhead, Inbound, ReplyBody, RequestBody};
use crate::conn::canonical_path;
use crate::conn::reply::{Form, refusal};
use crate::copy::Forward;
use crate::credentials::Body;
use crate::decide::Permit;
use crate::dial::Speaks;
use crate::egress::credential;
use crate::egress::tunnel::Inside;
use crate::headers::{self, join_cookies, strip_request_headers};
use crate::reason::Reason;
use crate::serve::{Asked, Call, Named, Ready, asks_for_websocket, body_rules, check_fields, is_plain, readdress};

impl Connection {
    /// Checks, decides and re-makes a request; `Err` is the refusal to answer with. What is decided is what is sent.
    pub(super) fn checked(&self, request: Request<Inbound>, call: &Call) -> Result<Ready, Box<Response<ReplyBody>>> {
        let mut record = self.guest.record();
        if matches!(self.mode, Mode::Inside(Inside { intercepted: true, .. })) {
            record.intercepted();
        }
        let asked = Asked::of(&request);
        let form = Form::of(request.headers());
        let expects = headers::expects(request.headers());
        match self.admit(request, call, &mut record) {
            Ok((permit, forward, body)) => {
                Ok(Ready { permit, forward, body, record, form, expects, asked: Some(asked) })
            }
            Err(reason) => {
                record.deny(reason);
                Err(Box::new(refusal(&mut record, reason, Some(&asked.text()), form)))
            }
        }
    }

    fn admit(
        &self,
        request: Request<Inbound>,
        call: &Call,
        record: &mut Record,
    ) -> Result<(Permit, Forward, Body), Reason> {
        let (mut head, body) = request.into_parts();
        record.request(head.method.as_str(), "");
        check_fields(&head, &body, &self.bounds.gate, record)?;
        let upgrades = asks_for_websocket(&head);
        let named = self.named(&head, upgrades, record)?;
        record.dest(named.authority.host().as_str(), self.port(&named.authority).unwrap_or(80));
        let path = canonical_path(&head.method, &head.uri)?;
        record.request(head.method.as_str(), path.path());
        if headers::asks_for_datagrams(&head.headers) {
            return Err(Reason::Unsupported);
        }
        let expects = headers::expects(&head.headers);
        strip_request_headers(&mut head.headers).map_err(|_| Reason::Malformed)?;
        let asked = Question { authority: &named.authority, method: &head.method, path: &path, upgrades };
        let permit = self.decide(&asked, record)?;
        if !head.headers.get(header::HOST).is_some_and(|host| named.is_spelled(host.as_bytes())) {
            note_host(&head.headers, &named.authority, 80, record);
        }
        call.granted(&permit);
        self.guest.serves();
        if upgrades {
            headers::set_websocket(&mut head.headers);
        }
        let speaks = Speaks::of(&permit, head.version);
        finish(&mut head, &named, &path)?;
        let rules = body_rules(&self.bounds, &body, speaks);
        let may_wait = expects && speaks != Speaks::Http2 && matches!(body, Inbound::Http1(_));
        let (body, meter) = RequestBody::new(body);
        let todo = credential::give(&permit, &mut head, record)?;
        let body = if todo == Body::Watch { body.under(rules).watched() } else { body.under(rules) };
        let pool = self.guest.egress.dialer.pool(&permit, &self.guest.endpoint, speaks, self.bounds.answer_gate);
        let request = Request::from_parts(head, body);
        // A body that is read here is wanted, whatever the destination says.
        let request = if may_wait && !todo.is_read_first() { asking_first(request) } else { request };
        let (room, in_flight) = (Rc::clone(&self.room), call.in_flight());
        let forward = Forward { request, meter, pool, room, in_flight, secret: credential::secret_of(&permit) };
        Ok((permit, forward, todo))
    }

    /// The destination, from the one place that may name it.
    fn named(&self, head: &request::Parts, upgrades: bool, record: &mut Record) -> Result<Rc<Named>, Reason> {
        let request::Parts { uri, headers, .. } = head;
        match &self.mode {
            Mode::Proxy | Mode::Socket => {
                // Origin form is a request to us, and https:// would have to be downgraded or guessed: both are refused.
                if !is_plain(uri, upgrades) {
                    return Err(Reason::Unsupported);
                }
                self.last_named.read(uri.authority().ok_or(Reason::BadDestination)?.as_str().as_bytes())
            }
            Mode::Inside(Inside { host, port, .. }) => {
                record.dest(host.as_str(), *port);
                let target = uri.authority().map(|target| target.as_str().as_bytes());
                let written = target.into_iter().chain(headers.get(header::HOST).map(HeaderValue::as_bytes));
                let mut first = None;
                for raw in written {
                    let named = self.last_named.read(raw)?;
                    if named.authority.host() != host || named.authority.port_or(*port) != *port {
                        record.detail("authority_mismatch");
                        return Err(Reason::BadDestination);
                    }
                    first.get_or_insert(named);
                }
                first.ok_or(Reason::BadDestination)
            }
        }
    }

    fn port(&self, authority: &Authority) -> Option<u16> {
        match self.mode {
            Mode::Proxy | Mode::Socket => authority.port(),
            Mode::Inside(Inside { port, .. }) => Some(port),
        }
    }

    /// Decides on the named port. Without one it is 80, or 443 with TLS when 80 has no rule at all and 443 has: an upgrade
    /// that the record notes. It never goes the other way.
    fn decide(&self, asked: &Question<'_>, record: &mut Record) -> Result<Permit, Reason> {
        let decider = &self.guest.egress.decider;
        let host = asked.authority.host();
        let on = |port| {
            let input =
                Input::egress_request(Arc::clone(&self.workload), host, port, asked.method.as_str(), asked.path);
            if asked.upgrades { input.with_upgrade(headers::WEBSOCKET) } else { input }
        };
        if let Some(port) = self.port(asked.authority) {
            return decider.decide(on(port), record);
        }
        match decider.decide(on(80), record) {
            Err(Reason::NoGrant) => {}
            decided => return decided,
        }
        record.dest(host.as_str(), 443);
        let permit = decider.decide(on(443), record)?;
        let with_tls = matches!(
            permit.target(),
            Some(EgressTarget::Workload { .. } | EgressTarget::External { tls: UpstreamTls::Originate, .. })
        );
        record.upgraded();
        if with_tls { Ok(permit) } else { Err(Reason::NoGrant) }
    }
}

/// What a request asks for.
struct Question<'a> {
    authority: &'a Authority,
    method: &'a Method,
    path: &'a CanonicalPath,
    upgrades: bool,
}

/// Notes that Host names something else than the target of a request, which alone decides.
pub(super) fn note_host(headers: &HeaderMap, target: &Authority, default: u16, record: &mut Record) {
    let Some(named) = headers.get(header::HOST) else { return };
    let named = named.to_str().ok().and_then(|named| Authority::parse(named).ok());
    let same = |named: &Authority| named.host() == target.host() && named.port_or(default) == target.port_or(default);
    if !named.as_ref().is_some_and(same) {
        record.detail("host_mismatch");
    }
}

/// The last step on every way to a destination: gives the head of a permitted request the form in which it is sent. What an
/// app must not have a say in is put into it here, after everything that came from the app was checked.
fn finish(head: &mut request::Parts, named: &Named, path: &CanonicalPath) -> Result<(), Reason> {
    join_cookies(&mut head.headers);
    readdress(head, named.canonical.clone(), path)
}

/// Hands the question of an app that waits for 100 on to the destination: its body is not sent before that wants it.
fn asking_first(request: Request<RequestBody>) -> Request<RequestBody> {
    let ahead = GoAhead::default();
    let mut request = request.map(|body| body.held_by(ahead.clone()));
    request.headers_mut().insert(header::EXPECT, HeaderValue::from_static(headers::CONTINUE));
    hyper::ext::on_informational(&mut request, move |interim| {
        if interim.status() == StatusCode::CONTINUE {
            ahead.go();
        }
    });
    request
}
