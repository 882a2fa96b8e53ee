//! Pairs as people write them, `x -> service-a GET /v1/orders`, and the decision inputs that they mean on one node.
//!
//! A pair has two ends, so it may mean two decisions: the caller's supervisor decides where the call may go, the callee's
//! who may come. Whichever end lives on the node of the bundle is asked.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use nova_proto::ids::SpiffeId;
use thiserror::Error;

use crate::data::{EgressTarget, NodeData};
use crate::engine::Policy;
use crate::host::{Host, HostError, parse_port};
use crate::input::{Input, Peer};
use crate::judge;
use crate::never::{self, Never};
use crate::path::{CanonicalPath, PathError};

/// The port of a destination outside that is written without one.
const DEFAULT_PORT: u16 = 443;
/// Stands for the address of a caller where no rule asks for it.
const ANY_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// A pair, read but not yet looked up in a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    from: From,
    /// Where the caller comes from.
    at: Option<IpAddr>,
    to: String,
    /// A number or the name of a port.
    port: Option<String>,
    ask: Ask,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum From {
    Workload(String),
    Identity(SpiffeId),
    Address(IpAddr),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Ask {
    Connect,
    Opaque,
    Request(String, CanonicalPath),
}

/// Why a text is no pair, or means nothing on this node.
#[derive(Debug, Error)]
pub enum PairError {
    /// Not of the form.
    #[error(
        "a pair is written \"x -> service-a GET /v1/orders\", \"x -> api.example.com:443\" or \"x -> db:5432 opaque\""
    )]
    Form,
    /// The path cannot be asked about.
    #[error("the path is refused before policy is asked")]
    Path(#[source] PathError),
    /// No rule is asked about it.
    #[error(transparent)]
    Never(#[from] Never),
    /// The destination is no host.
    #[error("{0:?} is neither a workload nor a host")]
    Host(String, #[source] HostError),
    /// The caller is neither a workload nor an identity nor an address.
    #[error("{0:?} is neither a workload, nor a SPIFFE ID, nor an address")]
    From(String),
    /// The port must be named.
    #[error("name the port of {to}: one of {}", .known.join(", "))]
    Port {
        /// Where to.
        to: String,
        /// Ports that the bundle knows of it.
        known: Vec<String>,
    },
    /// Its address would decide.
    #[error(
        "rules of {to} ask where the caller comes from, and the address of {from} is not known here: write \"{from}@ADDRESS -> ...\""
    )]
    Address {
        /// Who calls.
        from: String,
        /// Where to.
        to: String,
    },
    /// Neither end lives here.
    #[error("neither end of the pair is in the bundle of node {0:?}: ask the node where one of them runs")]
    NotHere(String),
}

impl FromStr for Pair {
    type Err = PairError;

    fn from_str(text: &str) -> Result<Self, PairError> {
        let (from, rest) = text.split_once("->").ok_or(PairError::Form)?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        let (to, ask) = match words.as_slice() {
            [to] => (*to, Ask::Connect),
            [to, word] if word.eq_ignore_ascii_case("opaque") => (*to, Ask::Opaque),
            [to, method, target] => {
                never::check(method, target.split_once('?').map(|(_, query)| query))?;
                let path = match *target {
                    "*" => CanonicalPath::asterisk(),
                    target => CanonicalPath::parse(target.as_bytes()).map_err(PairError::Path)?,
                };
                (*to, Ask::Request((*method).to_owned(), path))
            }
            _ => return Err(PairError::Form),
        };
        let (to, port) = split_port(to);
        if to.is_empty() || port == Some("") {
            return Err(PairError::Form);
        }
        let (from, at) = caller(from.trim())?;
        Ok(Self { from, at, to: to.to_owned(), port: port.map(str::to_owned), ask })
    }
}

/// `[::1]:443`, `host:443`, `service-a:https`, or no port.
fn split_port(to: &str) -> (&str, Option<&str>) {
    if let Some((host, rest)) = to.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        return (host, rest.strip_prefix(':'));
    }
    match to.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => (host, Some(port)),
        _ => (to, None),
    }
}

/// Who calls, and from where: `x`, `x@10.64.0.3`, `spiffe://...@10.64.0.3`, `10.64.0.3`.
fn caller(text: &str) -> Result<(From, Option<IpAddr>), PairError> {
    let (who, at) = match text.rsplit_once('@') {
        Some((who, at)) => (who, Some(at.parse().map_err(|_| PairError::From(text.to_owned()))?)),
        None => (text, None),
    };
    match (identified(who)?, at) {
        (From::Address(_), Some(_)) => Err(PairError::From(text.to_owned())),
        (From::Address(address), None) => Ok((From::Address(address), Some(address))),
        (from, at) => Ok((from, at)),
    }
}

fn identified(text: &str) -> Result<From, PairError> {
    let wrong = || PairError::From(text.to_owned());
    if text.contains("://") {
        return SpiffeId::new(text).map(From::Identity).map_err(|_| wrong());
    }
    if let Ok(address) = text.parse() {
        return Ok(From::Address(address));
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if text.is_empty() || !text.bytes().all(plain) {
        return Err(wrong());
    }
    Ok(From::Workload(text.to_owned()))
}

impl Pair {
    /// What the node of this policy is asked about the pair: the caller's question first. `addresses` knows those of
    /// workloads; where rules ask for the caller's, the callee is asked about each of them.
    ///
    /// # Errors
    /// When neither end lives on the node, or the port or an address that decides is not clear.
    pub fn inputs(&self, policy: &Policy, addresses: &dyn Fn(&str) -> Vec<IpAddr>) -> Result<Vec<Input>, PairError> {
        let data = policy.data();
        let mut inputs = Vec::new();
        if let From::Workload(source) = &self.from {
            let source = bare(source, data);
            if data.workloads.contains_key(source) {
                inputs.push(self.asked(self.egress(source, data)?));
            }
        }
        let target = bare(&self.to, data);
        if data.workloads.contains_key(target)
            && let Some(peer) = self.peer(target, data)
        {
            let number = inputs.first().and_then(Input::dest_port);
            let port = self.ingress_port(target, number, data)?;
            let asked = |address| self.asked(Input::ingress_connect(target, port.as_str(), &peer, address));
            let sources = self.sources(data, &asked(ANY_ADDRESS), addresses)?;
            inputs.extend(sources.into_iter().map(asked));
        }
        if inputs.is_empty() { Err(PairError::NotHere(data.node.clone())) } else { Ok(inputs) }
    }

    /// Where the callee sees the call come from. `input` is what it is asked, from anywhere.
    fn sources(
        &self,
        data: &NodeData,
        input: &Input,
        addresses: &dyn Fn(&str) -> Vec<IpAddr>,
    ) -> Result<Vec<IpAddr>, PairError> {
        let mut known = match (&self.from, self.at) {
            (_, Some(address)) => vec![address],
            (From::Workload(name), None) => addresses(bare(name, data)),
            _ => Vec::new(),
        };
        let decides = judge::looks_at_source(data, input);
        match known.as_slice() {
            [] if decides => {
                let from = match &self.from {
                    From::Workload(name) => name.clone(),
                    From::Identity(id) => id.to_string(),
                    From::Address(address) => address.to_string(),
                };
                return Err(PairError::Address { from, to: self.to.clone() });
            }
            [] => known.push(ANY_ADDRESS),
            _ if !decides => known.truncate(1),
            _ => {}
        }
        Ok(known)
    }

    fn asked(&self, connect: Input) -> Input {
        match &self.ask {
            Ask::Connect => connect,
            Ask::Opaque => connect.opaque(),
            Ask::Request(method, path) => connect.request(method, path),
        }
    }

    fn egress(&self, source: &str, data: &NodeData) -> Result<Input, PairError> {
        let host = Host::parse(&self.to).map_err(|error| PairError::Host(self.to.clone(), error))?;
        let mut ports = ports_of(&self.to, data);
        // Where the source has rules for one port only, that one is meant.
        let own: Vec<(String, u16)> = granted_ports(source, &self.to, data);
        if self.port.is_none() && own.len() == 1 {
            ports = own;
        }
        let known = || ports.iter().map(|(name, number)| format!("{name} ({number})")).collect();
        let unclear = || PairError::Port { to: self.to.clone(), known: known() };
        let port = match self.port.as_deref() {
            Some(text) => match parse_port(text) {
                Ok(port) => port,
                Err(_) => ports.iter().find(|(name, _)| name == text).map(|(_, number)| *number).ok_or_else(unclear)?,
            },
            None => match ports.as_slice() {
                [] => DEFAULT_PORT,
                [(_, only)] => *only,
                _ => return Err(unclear()),
            },
        };
        Ok(Input::egress_connect(source, &host, port))
    }

    /// The port by name; `number` is what the caller's end was asked about.
    fn ingress_port(&self, target: &str, number: Option<u16>, data: &NodeData) -> Result<String, PairError> {
        let mut known: Vec<String> =
            data.ingress.get(target).into_iter().flat_map(|ports| ports.keys().cloned()).collect();
        let numbered = ports_of(target, data);
        known.extend(numbered.iter().map(|(name, _)| name.clone()));
        known.sort();
        known.dedup();
        match self.port.as_deref() {
            Some(text) => {
                let by_number = parse_port(text).ok();
                let named =
                    numbered.iter().find(|(_, number)| Some(*number) == by_number).map(|(name, _)| name.clone());
                match (named, by_number, known.as_slice()) {
                    (Some(name), ..) => Ok(name),
                    // Nobody on this node calls it, so its number is not in the bundle; but there is only one.
                    (None, Some(_), [only]) => Ok(only.clone()),
                    (None, Some(_), _) => Err(PairError::Port { to: target.to_owned(), known }),
                    (None, None, _) => Ok(text.to_owned()),
                }
            }
            None if known.len() == 1 => Ok(known.remove(0)),
            None if number.is_some() => match numbered.iter().find(|(_, port)| Some(*port) == number) {
                Some((name, _)) => Ok(name.clone()),
                None => Err(PairError::Port { to: target.to_owned(), known }),
            },
            None => Err(PairError::Port { to: target.to_owned(), known }),
        }
    }

    /// The caller as the callee sees it; none for a workload whose identity this bundle does not know.
    fn peer(&self, target: &str, data: &NodeData) -> Option<Peer> {
        match &self.from {
            From::Address(_) => Some(Peer::Anonymous),
            From::Workload(name) => identity_of(bare(name, data), target, data).map(Peer::Own),
            From::Identity(id) => Some(match ca_of(id.as_str(), target, data) {
                Some(ca) => Peer::External { ca: ca.into(), id: id.clone() },
                None => Peer::Own(id.clone()),
            }),
        }
    }
}

/// The workload id in `x` or `x.t.nova`.
fn bare<'n>(name: &'n str, data: &NodeData) -> &'n str {
    match name.strip_suffix(".nova").and_then(|rest| rest.rsplit_once('.')) {
        Some((workload, tenant)) if data.workloads.get(workload).is_none_or(|entry| entry.tenant == tenant) => workload,
        _ => name,
    }
}

/// Names and numbers of a workload's ports, as far as the bundle has them.
fn ports_of(to: &str, data: &NodeData) -> Vec<(String, u16)> {
    let mut ports: Vec<(String, u16)> =
        data.targets.keys().flat_map(|source| granted_ports(source, to, data)).collect();
    if let Some(entry) = data.workloads.get(bare(to, data)) {
        ports.extend(entry.ports.iter().map(|(name, port)| (name.clone(), port.port)));
    }
    ports.sort();
    ports.dedup();
    ports
}

/// Ports of `to` that rules of `source` lead to.
fn granted_ports(source: &str, to: &str, data: &NodeData) -> Vec<(String, u16)> {
    let mut ports = Vec::new();
    for target in data.targets.get(source).into_iter().flat_map(|rules| rules.values()).flatten() {
        if let EgressTarget::Workload { workload, host, aliases, port, port_name, .. } = target
            && (workload == to || host == to || aliases.iter().any(|alias| alias == to))
        {
            ports.push((port_name.clone(), *port));
        }
    }
    ports.sort();
    ports.dedup();
    ports
}

/// The identity of a workload: of this node, or of a peer that some rule of `target` names.
fn identity_of(workload: &str, target: &str, data: &NodeData) -> Option<SpiffeId> {
    if let Some(entry) = data.workloads.get(workload) {
        return Some(entry.spiffe_id.clone());
    }
    let peers = data.ingress.get(target)?.values().flat_map(|port| port.peer.keys());
    let of_peer = peers
        .filter(|id| id.rsplit_once("/w/").is_some_and(|(_, name)| name == workload))
        .find_map(|id| SpiffeId::new(id).ok());
    let tenant = data.workloads.get(target).map(|entry| entry.tenant.as_str()).unwrap_or_default();
    of_peer.or_else(|| SpiffeId::new(format!("spiffe://{}/t/{tenant}/w/{workload}", data.trust_domain)).ok())
}

/// The external CA whose peers this identity would be among.
fn ca_of(id: &str, target: &str, data: &NodeData) -> Option<String> {
    if id.strip_prefix("spiffe://").is_some_and(|rest| rest.split('/').next() == Some(data.trust_domain.as_str())) {
        return None;
    }
    let mut peers = data.ingress.get(target)?.values().flat_map(|port| &port.external);
    let named = peers.find(|(_, peers)| {
        peers.exact.contains_key(id) || peers.prefix.iter().any(|entry| id.starts_with(&entry.prefix))
    });
    named.map(|(ca, _)| ca.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain;
    use crate::testing::{CASE_RULES, CASE_WORKLOADS, policy};

    /// What a bundle alone knows of addresses.
    fn none(_: &str) -> Vec<IpAddr> {
        Vec::new()
    }

    fn asked(text: &str) -> Vec<(String, bool)> {
        let policy = policy(CASE_RULES, CASE_WORKLOADS, "node-1");
        let inputs = text.parse::<Pair>().expect(text).inputs(&policy, &none).expect(text);
        let one = |input: &Input| {
            let shown = serde_json::to_string(input).expect("an input has a JSON form");
            (shown, explain::explain(&policy, input).decision.allow)
        };
        inputs.iter().map(one).collect()
    }

    // covers: B11c
    #[test]
    fn texts_that_are_no_pairs_say_how_to_write_one() {
        for bad in [
            "",
            "x",
            "x ->",
            "x@ -> y",
            "@10.0.0.1 -> y",
            "x@somewhere -> y",
            "10.0.0.1@10.0.0.2 -> y",
            "-> y",
            "x -> y GET",
            "x -> y GET /../z",
            "x -> y: GET /",
            "x y -> z",
            "x -> y a b c",
        ] {
            let pair = bad.parse::<Pair>();
            assert!(pair.is_err(), "{bad}: {pair:?}");
        }
        for (never, why) in [("TRACE /v1", Never::Method), ("GET /v1?_method=DELETE", Never::Override)] {
            let pair = format!("x -> service-a {never}").parse::<Pair>();
            assert!(matches!(pair, Err(PairError::Never(got)) if got == why), "{never}: {pair:?}");
        }
        let policy = policy(CASE_RULES, CASE_WORKLOADS, "node-1");
        let nobody = "nobody -> elsewhere:443".parse::<Pair>().expect("a pair").inputs(&policy, &none);
        assert!(matches!(nobody, Err(PairError::NotHere(_))), "{nobody:?}");
        let unclear = "10.64.1.1 -> service-a".parse::<Pair>().expect("a pair").inputs(&policy, &none);
        assert!(matches!(&unclear, Err(PairError::Port { known, .. }) if known.len() > 1), "{unclear:?}");
    }

    // covers: B11c
    #[test]
    fn a_pair_is_asked_at_both_of_its_ends() {
        let both = asked("x -> service-a GET /v1/orders/42");
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(both[0].0.contains(r#""direction":"egress""#) && both[0].0.contains(r#""dest_port":443"#), "{both:?}");
        assert!(both[1].0.contains(r#""port":"https""#), "{both:?}");
        assert!(both.iter().all(|(_, allow)| *allow), "{both:?}");
        assert!(asked("x -> service-a.t.nova:443 DELETE /v1/orders/42").iter().all(|(_, allow)| !allow));
        assert_eq!(asked("x -> service-a:https POST /v1/orders/1"), asked("x -> service-a:443 POST /v1/orders/1"));
    }

    // covers: B11c
    #[test]
    fn outside_hosts_identities_and_addresses_have_one_end_here() {
        for (text, wanted) in [
            ("service-a -> api.stripe.com", true),
            ("x -> api.stripe.com:443", false),
            ("x -> 10.20.0.7:5432 opaque", true),
            ("service-a -> db:postgres opaque", true),
            ("spiffe://partner/orders -> service-a:https GET /p", true),
            ("spiffe://other/orders -> service-a:https GET /p", false),
            ("10.64.9.9 -> service-a:health", true),
            ("10.99.9.9 -> service-a:health", false),
        ] {
            let got = asked(text);
            assert_eq!(got.iter().map(|(_, allow)| *allow).collect::<Vec<_>>(), [wanted], "{text}: {got:?}");
        }
    }

    // covers: B11c
    #[test]
    fn where_rules_ask_for_the_callers_address_it_is_asked_about_or_has_to_be_given() {
        let rules = "rules:\n- {id: near, tenant: t, from: {workload: x, cidr: 10.0.0.0/30}, to: {workload: a, port: web}, http: {methods: [PUT]}}\n";
        let workloads = "trust_domain: n\nendpoints:\n\
            - {workload_id: x, tenant: t, pod_uid: px, workload_ip: 10.0.0.1, node: n1}\n\
            - {workload_id: a, tenant: t, pod_uid: pa, workload_ip: 10.0.0.2, node: n1, ports: [{name: web, port: 443, mode: mtls, protocol: http}]}\n";
        let policy = policy(rules, workloads, "n1");
        let callee = |text: &str, known: &[IpAddr]| -> Result<Vec<bool>, PairError> {
            let inputs = text.parse::<Pair>().expect(text).inputs(&policy, &|_| known.to_vec())?;
            Ok(inputs[1..].iter().map(|input| explain::explain(&policy, input).decision.allow).collect())
        };
        let (near, far): (IpAddr, IpAddr) = (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 1, 1).into());
        let unknown = callee("x -> a PUT /p", &[]).expect_err("nobody says where x is").to_string();
        assert!(unknown.contains("x@ADDRESS"), "{unknown}");
        assert_eq!(callee("x -> a PUT /p", &[near]).expect("known"), [true]);
        assert_eq!(callee("x -> a PUT /p", &[far, near]).expect("known"), [false, true], "each of them");
        assert_eq!(callee("x@10.0.0.3 -> a PUT /p", &[far]).expect("given"), [true]);
        assert_eq!(callee("x@10.0.1.3 -> a PUT /p", &[near]).expect("given"), [false]);
    }
}
