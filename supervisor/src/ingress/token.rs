//! The bearer token of a request on a `tls` port (RFC 6750): verified, and a part of what is decided.
//!
//! ```text
//! no rule of the port asks for a token     it is the app's own business: passed on unseen
//! no token                                 decided without one; 401 where a rule would let one with a token in
//! a token that is not good                 401, whatever else would let the request in
//! a good one                               its issuer, subject and the claims that rules ask for are decided on
//! ```
//! What was decided holds for the exchange: a token that ends while an answer is on its way cuts nothing. The next request
//! on the connection is decided anew. A WebSocket has no next request, so it ends with its token.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderMap, HeaderValue, header};
use nova_policy::data::IngressPort;
use nova_policy::engine::Policy;
use nova_policy::input::Input;

use super::Ingress;
use crate::audit::Record;
use crate::decide::Permit;
use crate::reason::Reason;
use crate::state::endpoint::{EndpointSpec, PortMode};
use crate::tokens::{Fault, Issuers, Verified};

/// A token of this connection that was good, by its digest. Clients send the same one again and again.
type Last = ([u8; 32], Rc<Verified>);

/// What a connection's port does about tokens.
pub(super) struct Bearer {
    issuers: Arc<Issuers>,
    spec: Arc<EndpointSpec>,
    /// Without a certificate of the caller's, a token may say who calls.
    reads: bool,
    strip: bool,
    last: RefCell<Option<Last>>,
}

impl Bearer {
    /// For connections to the port that `connect` is about.
    pub(super) fn of(issuers: &Arc<Issuers>, spec: &Arc<EndpointSpec>, connect: &Permit) -> Self {
        let port = spec.ports.iter().find(|port| connect.input().port() == Some(port.name.as_str()));
        Self {
            issuers: Arc::clone(issuers),
            spec: Arc::clone(spec),
            reads: port.is_some_and(|port| port.mode == PortMode::Tls),
            strip: port.is_some_and(|port| port.tls.strip_token),
            last: RefCell::new(None),
        }
    }

    /// Decides a request with its token, and takes the token away if the app must not see it.
    pub(super) fn decide(
        &self,
        ingress: &Ingress,
        headers: &mut HeaderMap,
        input: Input,
        record: &mut Record,
    ) -> Result<Permit, Reason> {
        // Without counting in the count that all threads share.
        let policy = self.reads.then(|| ingress.policy.peek());
        let policy = policy.as_ref().and_then(|policy| policy.as_deref());
        let rules = policy.and_then(|policy| rules(policy, &input)).filter(|port| !port.jwt.is_empty());
        let presented = rules.map(|_| bearer(headers).map(|token| token.map(ToOwned::to_owned)));
        if self.strip {
            headers.remove(header::AUTHORIZATION);
        }
        let Some((rules, presented)) = rules.zip(presented) else { return ingress.decider.decide(input, record) };
        let verified = match presented {
            Err(fault) => return Err(refuse(record, fault)),
            Ok(None) => return without(ingress.decider.decide(input, record), record),
            Ok(Some(token)) => self.verify(&token).map_err(|fault| refuse(record, fault))?,
        };
        let (peer, issuer) = verified.label();
        record.peer(&peer, Some(&issuer));
        let asked = rules.jwt.get(verified.issuer()).into_iter().flatten();
        let claims = asked.filter_map(|rule| rule.jwt.as_ref()).flat_map(|jwt| jwt.claims.keys());
        let input = input.with_token(verified.token(claims.map(String::as_str)));
        ingress.decider.decide(input, record)
    }

    /// When the last good token ends, which is that of the request that was decided last.
    pub(super) fn last_until(&self) -> Option<SystemTime> {
        self.last.borrow().as_ref().map(|(_, verified)| verified.until)
    }

    fn verify(&self, token: &str) -> Result<Rc<Verified>, Fault> {
        let digest = digest(token);
        if let Some((_, known)) = self.last.borrow().as_ref().filter(|(last, _)| *last == digest)
            && self.issuers.still_verifies(known)
        {
            return Ok(Rc::clone(known));
        }
        let verified = Rc::new(self.issuers.verify(token, &self.spec.spiffe_id)?);
        self.last.replace(Some((digest, Rc::clone(&verified))));
        Ok(verified)
    }
}

/// The rules of the port that the request came to.
fn rules<'p>(policy: &'p Policy, input: &Input) -> Option<&'p IngressPort> {
    policy.data().ingress.get(input.workload())?.get(input.port()?)
}

/// The one bearer token of a request. Another scheme is none: it may be the app's own.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Fault> {
    let mut fields = headers.get_all(header::AUTHORIZATION).iter();
    let Some(field) = fields.next() else { return Ok(None) };
    if fields.next().is_some() {
        return Err(Fault::Repeated);
    }
    let text = HeaderValue::to_str(field).map_err(|_| Fault::Malformed)?;
    let Some((scheme, token)) = text.split_once(' ') else { return Ok(None) };
    Ok(scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' ')))
}

fn refuse(record: &mut Record, fault: Fault) -> Reason {
    let reason = if fault == Fault::KeysUnavailable { Reason::TokenKeysUnavailable } else { Reason::TokenInvalid };
    record.deny(reason);
    record.detail(fault.as_str());
    reason
}

/// Nothing let the request in without a token; with one, a rule of the port might.
fn without(decided: Result<Permit, Reason>, record: &mut Record) -> Result<Permit, Reason> {
    decided.map_err(|reason| {
        if reason != Reason::NoGrant {
            return reason;
        }
        record.deny(Reason::TokenMissing);
        Reason::TokenMissing
    })
}

fn digest(token: &str) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, token.as_bytes()).as_ref());
    out
}
