//! Checks that hold between the endpoints of a table.

use std::collections::BTreeMap;

use super::{Backend, Endpoint, Port, Table};
use crate::yaml::Reader;

/// Notes what two endpoints may not share.
pub(super) fn table(reader: &mut Reader<'_>, table: &Table) {
    unique(reader, table, "pod_uid", |endpoint| Some(endpoint.pod_uid.to_string()));
    unique(reader, table, "workload_ip", |endpoint| Some(endpoint.workload_ip.to_string()));
    unique_other_ips(reader, table);
    unique(reader, table, "vsock_cid", |endpoint| match endpoint.backend {
        Some(Backend::VsockCid(cid)) => Some(format!("{cid} on {}", endpoint.node.as_deref().unwrap_or("this node"))),
        _ => None,
    });
    replicas(reader, table);
    reader.subject = String::new();
}

/// An address belongs to one endpoint, whichever of its two it is.
fn unique_other_ips(reader: &mut Reader<'_>, table: &Table) {
    for endpoint in &table.endpoints {
        let Some(ip) = endpoint.other_ip else { continue };
        let others = table.endpoints.iter().filter(|other| other.pod_uid != endpoint.pod_uid);
        let mut owners = others.filter(|other| other.workload_ip == ip || other.other_ip == Some(ip));
        if let Some(owner) = owners.next() {
            reader.subject = format!("endpoint {}", endpoint.workload);
            reader.fail(
                endpoint.at,
                format!(
                    "the address {ip} of additional_ips is already used by {} (line {})",
                    owner.workload, owner.at.line
                ),
                "give it an address of its own",
            );
        }
    }
}

fn unique(reader: &mut Reader<'_>, table: &Table, what: &str, key: impl Fn(&Endpoint) -> Option<String>) {
    let mut seen: BTreeMap<String, &Endpoint> = BTreeMap::new();
    for endpoint in &table.endpoints {
        let Some(key) = key(endpoint) else { continue };
        if let Some(first) = seen.get(&key) {
            reader.subject = format!("endpoint {}", endpoint.workload);
            reader.fail(
                endpoint.at,
                format!("{what} {key} is already used by {} (line {})", first.workload, first.at.line),
                format!("give it a {what} of its own"),
            );
        } else {
            seen.insert(key, endpoint);
        }
    }
}

/// Several pods may run one workload, but policy must not depend on which of them is meant.
fn replicas(reader: &mut Reader<'_>, table: &Table) {
    let mut seen: BTreeMap<&str, &Endpoint> = BTreeMap::new();
    for endpoint in &table.endpoints {
        let Some(first) = seen.get(endpoint.workload.as_str()) else {
            seen.insert(endpoint.workload.as_str(), endpoint);
            continue;
        };
        reader.subject = format!("endpoint {}", endpoint.workload);
        let line = first.at.line;
        if first.tenant != endpoint.tenant {
            reader.fail(
                endpoint.at,
                format!("workload {} also belongs to tenant {} (line {line})", endpoint.workload, first.tenant),
                "rename one: a node's policy is keyed by workload id",
            );
        } else if first.labels != endpoint.labels
            || first.spiffe_id != endpoint.spiffe_id
            || shape(&first.ports) != shape(&endpoint.ports)
        {
            reader.fail(
                endpoint.at,
                format!("workload {} has other labels, ports or identity than on line {line}", endpoint.workload),
                "make all pods of one workload alike",
            );
        }
    }
}

fn shape(ports: &[Port]) -> Vec<(&str, u16, super::Mode, super::Protocol, &super::PortTls)> {
    let mut shape: Vec<_> =
        ports.iter().map(|port| (port.name.as_str(), port.port, port.mode, port.protocol, &port.tls)).collect();
    shape.sort_unstable();
    shape
}
