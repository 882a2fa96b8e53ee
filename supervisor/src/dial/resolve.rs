//! From the permitted name to the addresses that may be dialled.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nova_policy::data::EgressTarget;
use nova_policy::host::Host;

use super::race::in_turn;
use super::{DialFailure, Dialer};
use crate::net::guard::{Forbidden, Purpose};
use crate::net::outbound;
use crate::net::resolve::{Families, LookupError};
use crate::reason::Reason;
use crate::state::endpoint::{Endpoint, EndpointSpec};
use crate::state::names::Found;

/// Addresses of one name that are tried. All of its addresses are checked.
const MOST_TRIED: usize = 8;
/// What a name may add to the domain of a wildcard rule: data leaves in names as well.
const MOST_LABELS: usize = 3;
const MOST_BYTES: usize = 100;

/// The addresses of a workload, by family.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sources {
    v4: Option<IpAddr>,
    v6: Option<IpAddr>,
}

impl Sources {
    pub(super) fn of(spec: &EndpointSpec) -> Self {
        let one = |v6: bool| spec.ips().find(|ip| ip.is_ipv6() == v6);
        Self { v4: one(false), v6: one(true) }
    }

    /// The address that a dial to `address` comes from.
    pub(super) fn towards(self, address: IpAddr) -> Option<IpAddr> {
        if address.is_ipv4() { self.v4 } else { self.v6 }
    }

    fn families(self) -> Families {
        Families { v4: self.v4.is_some(), v6: self.v6.is_some() }
    }
}

impl Dialer {
    /// Resolves once and checks every answer. One forbidden address among them refuses the whole name: an answer that
    /// mixes public and private addresses is an attack or a mistake, and a retry must not choose the other half. `canonical` is
    /// told whose they are, also when they are refused.
    pub(super) async fn addresses(
        &self,
        host: &str,
        port: u16,
        target: &EgressTarget,
        caller: &Endpoint,
        sources: Sources,
        canonical: &mut Option<Arc<str>>,
    ) -> Result<Vec<SocketAddr>, DialFailure> {
        let found = match (host.trim_matches(['[', ']']).parse(), target) {
            (Ok(literal), _) => at([literal]),
            // Aliases are names of the policy; DNS knows the full one.
            (Err(_), EgressTarget::Workload { host: full, .. }) => self.lookup(full, caller, sources).await?,
            (Err(_), _) => {
                check_name(host, target)?;
                self.lookup(host, caller, sources).await?
            }
        };
        *canonical = found.canonical;
        // A mapped address means the IPv4 address in it, also for the choice of our own.
        let addresses: Vec<IpAddr> = found.addresses.iter().map(IpAddr::to_canonical).collect();
        for address in &addresses {
            self.may_dial(*address, target).map_err(|why| DialFailure::forbidden(why, *address, port))?;
        }
        let mut usable = in_turn(&addresses);
        usable.retain(|address| sources.towards(*address).is_some());
        usable.truncate(MOST_TRIED);
        if usable.is_empty() {
            return Err(DialFailure::because(Reason::ResolveFailed, LookupError::NoAddress.as_str()));
        }
        Ok(usable.into_iter().map(|address| SocketAddr::new(address, port)).collect())
    }

    /// What the configuration says, what the endpoint knows, or what a server answers.
    async fn lookup(&self, name: &str, caller: &Endpoint, sources: Sources) -> Result<Found, DialFailure> {
        if let Some(fixed) = self.resolver.fixed(name) {
            return Ok(at(fixed));
        }
        if let Some(known) = caller.names.known(name) {
            return Ok(known);
        }
        if !caller.may_ask_for_a_name() {
            return Err(DialFailure::new(Reason::LimitNames));
        }
        let answer = self.resolver.ask(name, sources.families()).await;
        let answer = answer.map_err(|error| DialFailure::because(Reason::ResolveFailed, error.as_str()))?;
        let canonical = answer.canonical.filter(|canonical| !canonical.eq_ignore_ascii_case(name)).map(Arc::from);
        let found = Found { addresses: answer.addresses.into(), canonical };
        caller.names.keep(name, &found, answer.ttl);
        Ok(found)
    }

    fn may_dial(&self, address: IpAddr, target: &EgressTarget) -> Result<(), Forbidden> {
        let own = self.endpoints.load().by_ip(address).map(|endpoint| endpoint.spec().spiffe_id.clone());
        match (target, own) {
            // Own listeners are reached only by naming their workload, at that workload's address.
            (EgressTarget::Workload { spiffe_id, .. }, Some(owner)) if owner == *spiffe_id => Ok(()),
            (_, Some(_)) => Err(Forbidden::OwnListener),
            // A workload may be served by another instance of this machine.
            (EgressTarget::Workload { .. }, None) => self.guard.check(address, Purpose::Workload),
            (EgressTarget::Cidr { .. }, None) => self.outside(address, Purpose::Literal),
            (EgressTarget::External { addresses, .. }, None) => {
                let listed = addresses.iter().any(|net| net.contains(&address));
                self.outside(address, if listed { Purpose::Literal } else { Purpose::External })
            }
        }
    }

    /// A ping asks nobody for anything, but whose it is must be as clear as of a call.
    pub(super) fn may_ping(&self, address: IpAddr) -> Result<(), Forbidden> {
        match self.endpoints.load().by_ip(address) {
            Some(_) => Err(Forbidden::OwnListener),
            None => self.outside(address, Purpose::Literal),
        }
    }

    /// An address that no rule calls a workload's: it must not be this machine's own either, or a guest would reach what
    /// listens here for others.
    fn outside(&self, address: IpAddr, purpose: Purpose) -> Result<(), Forbidden> {
        self.guard.check(address, purpose)?;
        if self.guard.is_lab(address) {
            return Ok(());
        }
        // Who cannot ask must not assume the best.
        if outbound::is_local(address).unwrap_or(true) { Err(Forbidden::OwnAddress) } else { Ok(()) }
    }
}

/// Addresses that no server was asked about.
fn at(addresses: impl Into<Arc<[IpAddr]>>) -> Found {
    Found { addresses: addresses.into(), canonical: None }
}

/// Names that mean the machine or a metadata service are no rule's, and what a name adds to a wildcard is bounded.
fn check_name(host: &str, target: &EgressTarget) -> Result<(), DialFailure> {
    let refused = |detail| Err(DialFailure::because(Reason::NameForbidden, detail));
    if Host::parse(host).is_ok_and(|host| host.is_special_name()) {
        return refused("special_name");
    }
    let EgressTarget::External { host: granted, .. } = target else { return Ok(()) };
    let Some(added) = granted.strip_prefix('*').and_then(|suffix| host.strip_suffix(suffix)) else { return Ok(()) };
    if added.split('.').count() > MOST_LABELS {
        return refused("name_labels");
    }
    if added.len() > MOST_BYTES {
        return refused("name_length");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nova_policy::data::UpstreamTls;

    use super::*;

    fn under(granted: &str, host: &str) -> Option<&'static str> {
        let target = EgressTarget::External {
            host: granted.to_owned(),
            port: 443,
            tls: UpstreamTls::Passthrough,
            ca: None,
            addresses: Vec::new(),
            intercept: false,
            grpc: false,
            via: None,
        };
        check_name(host, &target).err().map(|failure| failure.detail)
    }

    // covers: D7d
    #[test]
    fn a_name_adds_at_most_three_labels_and_a_hundred_bytes_to_a_wildcard() {
        let label = "x".repeat(50);
        assert_eq!(under("*.example.com", "a.b.c.example.com"), None);
        assert_eq!(under("*.example.com", "a.b.c.d.example.com"), Some("name_labels"));
        assert_eq!(under("*.example.com", &format!("{label}.{}.example.com", &label[1..])), None);
        assert_eq!(under("*.example.com", &format!("{label}.{label}.example.com")), Some("name_length"));
        assert_eq!(
            under("a.b.c.d.e.example.com", "a.b.c.d.e.example.com"),
            None,
            "what a rule spells out is its author's"
        );
    }

    // covers: D7.28
    // covers: D7.29
    #[test]
    fn special_names_are_refused_whatever_a_bundle_says() {
        for name in ["localhost", "a.localhost", "metadata.google.internal", "instance-data"] {
            assert_eq!(under(name, name), Some("special_name"));
        }
        assert_eq!(under("*.internal", "metadata.google.internal"), Some("special_name"));
    }
}
