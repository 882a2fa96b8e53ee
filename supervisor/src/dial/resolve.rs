//! From the permitted name to the addresses that may be dialled.

use std::io;
use std::net::IpAddr;

use nova_policy::data::EgressTarget;

use super::{DialFailure, Dialer};
use crate::net::guard::Purpose;
use crate::reason::Reason;

impl Dialer {
    /// Resolves once and checks every answer. One forbidden address among them refuses the whole name: an answer that
    /// mixes public and private addresses is an attack or a mistake, and a retry must not choose the other half.
    pub(super) async fn addresses(
        &self,
        host: &str,
        target: &EgressTarget,
        from: IpAddr,
    ) -> Result<Vec<IpAddr>, DialFailure> {
        let mut addresses = match (host.trim_matches(['[', ']']).parse(), target) {
            (Ok(literal), _) => vec![literal],
            // Aliases are names of the policy; DNS knows the full one.
            (Err(_), EgressTarget::Workload { host: full, .. }) => self.lookup(full).await?,
            (Err(_), _) => self.lookup(host).await?,
        };
        if !addresses.iter().all(|address| self.may_dial(*address, target)) {
            return Err(DialFailure::new(Reason::AddressForbidden));
        }
        addresses.retain(|address| address.is_ipv4() == from.is_ipv4());
        if addresses.is_empty() {
            return Err(DialFailure::new(Reason::ResolveFailed));
        }
        Ok(addresses)
    }

    async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, DialFailure> {
        self.resolver.lookup(name).await.map_err(|error| {
            tracing::debug!(name, %error, "name does not resolve");
            let timed_out = error.kind() == io::ErrorKind::TimedOut;
            DialFailure::new(if timed_out { Reason::UpstreamTimeout } else { Reason::ResolveFailed })
        })
    }

    fn may_dial(&self, address: IpAddr, target: &EgressTarget) -> bool {
        let own = self.endpoints.load().by_ip(address.to_canonical()).map(|endpoint| endpoint.spec().spiffe_id.clone());
        match (target, own) {
            // Own listeners are reached only by naming their workload, at that workload's address.
            (EgressTarget::Workload { spiffe_id, .. }, Some(owner)) => owner == *spiffe_id,
            (EgressTarget::External { .. } | EgressTarget::Cidr { .. }, Some(_)) => false,
            (EgressTarget::Workload { .. }, None) => self.guard.allows(address, Purpose::Workload),
            (EgressTarget::Cidr { .. }, None) => self.guard.allows(address, Purpose::Literal),
            (EgressTarget::External { addresses, .. }, None) => {
                let listed = addresses.iter().any(|net| net.contains(&address));
                self.guard.allows(address, if listed { Purpose::Literal } else { Purpose::External })
            }
        }
    }
}
