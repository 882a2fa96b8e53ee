//! Which calls may share connections to an upstream: those that are the same in everything that makes connections different.

use std::rc::Rc;

use nova_policy::data::EgressTarget;

use super::parent::Way;
use super::{Dialer, Pool, Speaks};
use crate::decide::Permit;
use crate::gate::Limits;
use crate::state::endpoint::Endpoint;

impl Dialer {
    /// The connections that may carry what `permit` grants to `caller`, and whose answers keep to `limits`.
    ///
    /// Pod and generation: nobody gets another workload's connection. Host, port, rule and revision: they say scheme, CA and
    /// everything else about the destination. SVID and trust: who we are there, and whom we believed when we connected. The
    /// credential and its version: a connection never carries two values. The parent proxy, and who we are for it. Not the
    /// address: it is chosen, and checked, when a connection is made, and none is used for longer than five minutes.
    #[must_use]
    pub fn pool(&self, permit: &Permit, caller: &Endpoint, speaks: Speaks, limits: Limits) -> Rc<Pool> {
        let (spec, input) = (caller.spec(), permit.input());
        let svid = caller.svid.current();
        let (credential, value) = permit.credential().map_or(("", 0), |(held, _)| (held.name(), held.version()));
        let target = permit.target();
        let host = input.dest_host().unwrap_or_default();
        let (proxy, version) = match target.map(|target| self.parents.towards(target, host)) {
            Some(Way::Through(parent)) => (parent.name(), parent.version()),
            _ => ("-", 0),
        };
        let is_workload = matches!(target, Some(EgressTarget::Workload { .. }));
        let key = format_args!(
            "out {} {} {speaks:?} {host}:{} {} {} {} {} {} {credential}@{value} {proxy} {version}",
            spec.pod_uid,
            spec.generation,
            input.dest_port().unwrap_or_default(),
            permit.rule(),
            permit.policy().revision(),
            svid.as_ref().map_or("", |svid| svid.serial.as_str()),
            if is_workload { self.tls.trust_version() } else { 0 },
            limits.head_bytes,
        );
        self.pools.get(key, speaks, limits)
    }
}
