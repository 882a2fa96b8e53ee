//! One request: checked, decided, and re-made from what was decided.

use std::rc::Rc;

use http::uri::Scheme;
use http::{HeaderMap, Request, Response, Uri, header};
use nova_policy::host::Authority;

use super::Connection;
use crate::audit::Record;
use crate::conn::body::{Inbound, ReplyBody, RequestBody};
use crate::conn::canonical_path;
use crate::conn::reply::{Form, refusal};
use crate::copy::Forward;
use crate::credentials::Body;
use crate::decide::Permit;
use crate::dial::Speaks;
use crate::headers::{self, join_cookies, strip_request_headers};
use crate::reason::Reason;
use crate::serve::{Call, Named, Ready, asks_for_websocket, body_rules, check_fields, readdress};

impl Connection<'_> {
    /// Checks, decides and re-makes a request; `Err` is the refusal to answer with. What is decided is what is sent.
    pub(super) fn checked(&self, request: Request<Inbound>, call: &Call) -> Result<Ready, Box<Response<ReplyBody>>> {
        let mut record = self.open_record();
        let form = Form::of(request.headers());
        let expects = request.headers().contains_key(header::EXPECT);
        match self.admit(request, call, &mut record) {
            Ok((permit, forward)) => {
                Ok(Ready { permit, forward, body: Body::Pass, record, form, expects, asked: None })
            }
            Err(reason) => {
                record.deny(reason);
                Err(Box::new(refusal(&mut record, reason, None, form)))
            }
        }
    }

    fn admit(&self, request: Request<Inbound>, call: &Call, record: &mut Record) -> Result<(Permit, Forward), Reason> {
        let (mut head, body) = request.into_parts();
        record.request(head.method.as_str(), "");
        check_fields(&head, &body, &self.bounds.gate, record)?;
        let named = match self.named(&head.uri, &head.headers, record) {
            Ok(named) => named,
            Err(reason) => {
                let (name, number) = self.own_port();
                record.dest(name, number);
                return Err(reason);
            }
        };
        // The name as the caller wrote it, and the port that it called, whatever it wrote of that.
        record.dest(named.authority.host().as_str(), self.own_port().1);
        let path = canonical_path(&head.method, &head.uri)?;
        record.request(head.method.as_str(), path.path());
        let upgrades = self.speaks == Speaks::Http1 && asks_for_websocket(&head);
        strip_request_headers(&mut head.headers).map_err(|_| Reason::Malformed)?;
        let mut input = self.connect.input().request(head.method.as_str(), &path);
        if upgrades {
            headers::set_websocket(&mut head.headers);
            input = input.with_upgrade(headers::WEBSOCKET);
        }
        let permit = self.bearer.decide(self.ingress, &mut head.headers, input, record)?;
        call.granted(&permit);
        self.served.set(true);
        if let Some(identity) = &self.identity {
            head.headers.insert(headers::XFCC, identity.clone());
        }
        head.headers.insert(headers::XFF, self.source.clone());
        join_cookies(&mut head.headers);
        readdress(&mut head, named.canonical.clone(), &path)?;
        let rules = body_rules(&self.bounds, &body, self.speaks);
        let (body, meter) = RequestBody::new(body);
        let body = body.under(rules);
        let request = Request::from_parts(head, body);
        let forward = Forward {
            request,
            meter,
            pool: Rc::clone(&self.pool),
            room: Rc::clone(&self.room),
            in_flight: call.in_flight(),
            secret: None,
        };
        Ok((permit, forward))
    }

    /// The one destination that a request names: in its target, in Host, or in both, and then both say the same.
    fn named(&self, uri: &Uri, headers: &HeaderMap, record: &mut Record) -> Result<Rc<Named>, Reason> {
        let target = uri.authority().map(|target| target.as_str());
        let host = headers.get(header::HOST);
        let first = match (host, target) {
            (Some(host), _) => self.last_named.read(host.as_bytes())?,
            (None, Some(target)) => return self.last_named.read(target.as_bytes()),
            (None, None) => return Err(Reason::BadDestination),
        };
        let Some(target) = target else { return Ok(first) };
        let target = Authority::parse(target).map_err(|_| Reason::BadDestination)?;
        let default = if uri.scheme() == Some(&Scheme::HTTP) { 80 } else { 443 };
        let is_same_port = target.port_or(default) == first.authority.port_or(default);
        if target.host() == first.authority.host() && is_same_port {
            return Ok(first);
        }
        record.detail("authority_mismatch");
        Err(Reason::BadDestination)
    }

    /// Name and number of the port that was called.
    pub(super) fn own_port(&self) -> (&str, u16) {
        let name = self.connect.input().port().unwrap_or_default();
        let number = self.spec.ports.iter().find(|port| port.name.as_str() == name).map(|port| port.port);
        (name, number.unwrap_or_default())
    }
}
