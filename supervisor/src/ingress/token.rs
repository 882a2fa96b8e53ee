//! The bearer token of a request on a `tls` port.

use http::{HeaderMap, header};
use nova_policy::input::Input;

use crate::audit::Record;
use crate::decide::{Decider, Permit};
use crate::reason::Reason;
use crate::state::endpoint::EndpointSpec;

/// What a connection's port does about tokens.
pub(super) struct Bearer {
    strip: bool,
}

impl Bearer {
    /// For connections to the port that `connect` is about.
    pub(super) fn of(spec: &EndpointSpec, connect: &Permit) -> Self {
        let port = spec.ports.iter().find(|port| connect.input().port() == Some(port.name.as_str()));
        Self { strip: port.is_some_and(|port| port.tls.strip_token) }
    }

    /// Decides a request, and takes its token away if the app must not see it.
    pub(super) fn decide(
        &self,
        decider: &Decider,
        headers: &mut HeaderMap,
        input: Input,
        record: &mut Record,
    ) -> Result<Permit, Reason> {
        if self.strip {
            headers.remove(header::AUTHORIZATION);
        }
        decider.decide(input, record)
    }
}
