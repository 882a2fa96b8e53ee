//! One request: checked, decided, and re-made from what was decided.

use std::rc::Rc;

use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version, header, request};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use nova_policy::data::{EgressTarget, UpstreamTls};
use nova_policy::host::Authority;
use nova_policy::input::Input;
use nova_policy::path::CanonicalPath;

use super::{Call, Connection, Mode};
use crate::audit::Record;
use crate::conn::body::RequestBody;
use crate::conn::canonical_path;
use crate::conn::reply::end_gently;
use crate::copy::Forward;
use crate::decide::Permit;
use crate::dial::Speaks;
use crate::headers::strip_request_headers;
use crate::net::stream::Prefixed;
use crate::reason::Reason;

/// A request that may go.
pub(super) struct Ready {
    pub(super) permit: Permit,
    pub(super) forward: Forward,
}

impl Connection {
    /// Checks, decides and re-makes a request. What is decided is what is sent.
    pub(super) fn prepare(
        &self,
        request: Request<Incoming>,
        call: &Call,
        record: &mut Record,
    ) -> Result<Ready, Reason> {
        let (mut head, body) = request.into_parts();
        record.request(head.method.as_str(), "");
        if let Some(upgrade) = head.extensions.remove::<OnUpgrade>() {
            end_gently::<Prefixed>(upgrade);
        }
        let authority = self.authority(&head.uri, &head.headers)?;
        record.dest(authority.host().as_str(), self.port(&authority).unwrap_or(80));
        let path = canonical_path(&head.method, &head.uri)?;
        record.request(head.method.as_str(), path.path());
        strip_request_headers(&mut head.headers).map_err(|_| Reason::Malformed)?;
        let permit = self.decide(&authority, &head.method, &path, record)?;
        call.permit.replace(Some(permit.clone()));
        finish(&mut head, &authority, &path)?;
        let (body, meter) = RequestBody::new(body);
        let body = body.under(self.bounds.requests.clone());
        let pool = self.guest.egress.dialer.pools().get(&self.pool_key(&permit), Speaks::Http1);
        let request = Request::from_parts(head, body);
        let forward = Forward { request, meter, pool, in_flight: Rc::clone(&call.in_flight) };
        Ok(Ready { permit, forward })
    }

    /// The destination, from the one place that may name it.
    fn authority(&self, uri: &Uri, headers: &HeaderMap) -> Result<Authority, Reason> {
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

/// The last step on every way to a destination: gives the head of a permitted request the form in which it is sent. What an
/// app must not have a say in is put into it here, after everything that came from the app was checked.
fn finish(head: &mut request::Parts, authority: &Authority, path: &CanonicalPath) -> Result<(), Reason> {
    let host = HeaderValue::from_str(&authority.to_string()).map_err(|_| Reason::BadDestination)?;
    head.headers.insert(header::HOST, host);
    head.uri = Uri::try_from(path.path_and_query()).map_err(|_| Reason::BadPath)?;
    head.version = Version::HTTP_11;
    head.extensions.clear();
    Ok(())
}
