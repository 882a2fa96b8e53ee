//! Reads one endpoint.

use std::collections::BTreeMap;
use std::net::IpAddr;

use nova_proto::ids::{BootToken, PodUid, SpiffeId, TenantId, WorkloadId};

use super::{Endpoint, State, is_usable, parts, spiffe_id};
use crate::host::Host;
use crate::yaml::{Map, Node, Reader};

/// Keys of an endpoint.
const KEYS: [&str; 19] = [
    "workload_id",
    "tenant",
    "labels",
    "spiffe_id",
    "pod_uid",
    "generation",
    "workload_ip",
    "additional_ips",
    "node",
    "backend",
    "ports",
    "state",
    "drain_timeout_ms",
    "boot_token",
    "dependencies",
    "credentials",
    "limits",
    "isolation",
    "guest",
];

/// Reads an endpoint; `None` when it cannot be used at all. All its mistakes are in the report either way.
pub(super) fn read(reader: &mut Reader<'_>, node: &Node, trust_domain: &str) -> Option<Endpoint> {
    let map = reader.map(node, "the endpoint", &KEYS)?;
    let workload = reader
        .need(&map, "workload_id", "service-a")
        .and_then(|node| reader.parsed(node, "workload_id", "rename it", workload_id));
    if let Some(workload) = &workload {
        reader.subject = format!("endpoint {workload}");
    }
    let tenant = reader
        .need(&map, "tenant", "t")
        .and_then(|node| reader.parsed(node, "tenant", "rename it", |text| TenantId::new(text)));
    let pod_uid = reader
        .need(&map, "pod_uid", "pod-a")
        .and_then(|node| reader.parsed(node, "pod_uid", "rename it", |text| PodUid::new(text)));
    let generation = match map.get("generation") {
        Some(node) => reader.number(node, "generation", 1..=u64::from(u32::MAX)),
        None => Some(1),
    };
    let workload_ip =
        reader.need(&map, "workload_ip", "10.64.3.21").and_then(|node| read_address(reader, "workload_ip", node));
    let other_ip = map.get("additional_ips").and_then(|node| read_other_ip(reader, node, workload_ip));
    let ports = parts::ports(reader, &map);
    let endpoint = Optional::read(reader, &map);
    let identity = read_identity(reader, &map, trust_domain, tenant.as_ref(), workload.as_ref());
    Some(Endpoint {
        workload: workload?,
        tenant: tenant?,
        labels: endpoint.labels,
        spiffe_id: identity?,
        pod_uid: pod_uid?,
        generation: generation?,
        workload_ip: workload_ip?,
        other_ip,
        node: endpoint.node,
        backend: parts::backend(reader, &map),
        ports,
        state: endpoint.state,
        drain_timeout_ms: endpoint.drain_timeout_ms,
        boot_token: endpoint.boot_token,
        dependencies: parts::dependencies(reader, &map),
        credentials: parts::credentials(reader, &map),
        limits: parts::limits(reader, &map),
        dedicated: endpoint.dedicated,
        guest: parts::guest(reader, &map),
        at: map.at,
    })
}

/// Callers use the id as a name, so it must be one that means a workload and nothing else.
fn workload_id(text: &str) -> Result<WorkloadId, String> {
    let id = WorkloadId::new(text).map_err(|error| error.to_string())?;
    match Host::parse(text) {
        Ok(host) if host.is_special_name() => {
            Err(format!("{text:?} is the name of the machine itself or of a metadata service"))
        }
        Ok(_) => Ok(id),
        Err(_) => Err(format!("{text:?} reads like a number or an address, so nobody can call it by its name")),
    }
}

/// The keys that have a default.
struct Optional {
    labels: BTreeMap<String, String>,
    node: Option<String>,
    state: State,
    drain_timeout_ms: u32,
    boot_token: Option<BootToken>,
    dedicated: bool,
}

impl Optional {
    fn read(reader: &mut Reader<'_>, map: &Map<'_>) -> Self {
        let states = [("pending", State::Pending), ("ready", State::Ready), ("draining", State::Draining)];
        let isolation = [("shared", false), ("dedicated", true)];
        Self {
            labels: map.get("labels").and_then(|node| parts::labels(reader, node)).unwrap_or_default(),
            node: map.get("node").and_then(|node| reader.parsed(node, "node", "use a name like node-1", node_name)),
            state: map.get("state").and_then(|node| reader.choice(node, "state", &states)).unwrap_or(State::Ready),
            drain_timeout_ms: map
                .get("drain_timeout_ms")
                .and_then(|node| reader.number(node, "drain_timeout_ms", 0..=3_600_000))
                .and_then(|value| u32::try_from(value).ok())
                .unwrap_or(10_000),
            boot_token: map
                .get("boot_token")
                .and_then(|node| reader.parsed(node, "boot_token", "write 32 hex digits", boot_token)),
            dedicated: map
                .get("isolation")
                .and_then(|node| reader.choice(node, "isolation", &isolation))
                .unwrap_or(false),
        }
    }
}

fn read_identity(
    reader: &mut Reader<'_>,
    map: &Map<'_>,
    trust_domain: &str,
    tenant: Option<&TenantId>,
    workload: Option<&WorkloadId>,
) -> Option<SpiffeId> {
    if let Some(node) = map.get("spiffe_id") {
        let id = reader.parsed(node, "spiffe_id", "write spiffe://<trust domain>/t/<tenant>/w/<workload>", |text| {
            SpiffeId::new(text)
        })?;
        // The supervisor takes no other, and rules know peers by it: two workloads of one identity would be one peer.
        let own = spiffe_id(trust_domain, tenant?, workload?).ok()?;
        if id.trust_domain() != trust_domain {
            reader.fail(
                node.at,
                format!("spiffe_id is not in the trust domain {trust_domain:?}"),
                "change it or the trust_domain of the file",
            );
        } else if id != own {
            reader.fail(node.at, "spiffe_id is not the one of this workload", format!("write {own}, or leave it out"));
        }
        return Some(id);
    }
    spiffe_id(trust_domain, tenant?, workload?).ok()
}

fn read_address(reader: &mut Reader<'_>, what: &str, node: &Node) -> Option<IpAddr> {
    let address: IpAddr = reader.parsed(node, what, "write one IP address", str::parse)?;
    let address = address.to_canonical();
    if !is_usable(address) {
        reader.fail(
            node.at,
            format!("{what} {address} is unspecified, link-local, multicast or broadcast"),
            "use an address of the delegated subnet, or a loopback address in a lab",
        );
    }
    Some(address)
}

/// A list, because that is what the message to the supervisor has; one address is all that a second family can need.
fn read_other_ip(reader: &mut Reader<'_>, node: &Node, first: Option<IpAddr>) -> Option<IpAddr> {
    let list = reader.list(node, "additional_ips", 1);
    let address = list.first().and_then(|item| read_address(reader, "additional_ips", item))?;
    if first.is_some_and(|first| first.is_ipv4() == address.is_ipv4()) {
        reader.fail(
            node.at,
            format!("{address} is of the same family as workload_ip"),
            "write an IPv6 address beside an IPv4 one, or the other way round",
        );
    }
    Some(address)
}

fn node_name(text: &str) -> Result<String, &'static str> {
    let good = (1..=253).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'));
    if good { Ok(text.to_owned()) } else { Err("1 to 253 of letters, digits, '-', '.' and '_'") }
}

fn boot_token(text: &str) -> Result<BootToken, &'static str> {
    let mut token = [0; 16];
    match hex::decode_to_slice(text, &mut token) {
        Ok(()) if token != [0; 16] => Ok(BootToken(token)),
        _ => Err("not 32 hex digits, or all zero"),
    }
}
