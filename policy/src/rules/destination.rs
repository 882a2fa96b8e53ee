//! Reads `to`: who is called.

use ipnet::IpNet;
use nova_proto::ids::PortName;

use super::Destination;
use super::names::{ca_name, cidr, host_pattern, name};
use super::source::workload;
use crate::workloads;
use crate::yaml::{Map, Node, Reader};

/// Keys of `to`.
pub(super) const KEYS: [&str; 9] =
    ["workload", "labels", "external", "cidr", "protocol", "port", "ca", "addresses", "via"];

pub(super) fn read(reader: &mut Reader<'_>, node: &Node) -> Option<Destination> {
    let map = reader.map(node, "to", &KEYS)?;
    for key in ["ca", "addresses", "via"] {
        if let Some(node) = map.get(key).filter(|_| map.get("external").is_none()) {
            reader.fail(node.at, format!("{key} only belongs to an external host"), "remove it");
        }
    }
    if let Some(node) = map.get("protocol").filter(|_| map.get("cidr").is_none()) {
        reader.fail(node.at, "protocol only belongs to a cidr", "remove it: ports know their protocol");
    }
    match (map.get("workload"), map.get("labels"), map.get("external"), map.get("cidr")) {
        (Some(node), None, None, None) => {
            let workload = workload(reader, node);
            let port = port_name(reader, &map);
            Some(Destination::Workload { workload: workload?, port: port? })
        }
        (None, Some(node), None, None) => {
            let labels = workloads::read_labels(reader, node);
            let port = port_name(reader, &map);
            Some(Destination::Labels { labels: labels?, port: port? })
        }
        (None, None, Some(node), None) => external(reader, &map, node),
        (None, None, None, Some(node)) => range(reader, &map, node),
        _ => {
            reader.fail(map.at, "to must have exactly one kind", "write one of workload, labels, external, cidr");
            None
        }
    }
}

fn external(reader: &mut Reader<'_>, map: &Map<'_>, node: &Node) -> Option<Destination> {
    let remedy = "write a DNS name, or *. and a name with at least two labels; addresses go into `cidr`";
    let host = reader.parsed(node, "external", remedy, host_pattern);
    let port = port_number(reader, map);
    let ca = match map.get("ca") {
        Some(node) => Some(ca_name(reader, node)?),
        None => None,
    };
    let via = match map.get("via") {
        Some(node) => Some(name(reader, node, "via")?),
        None => None,
    };
    let addresses = addresses(reader, map);
    Some(Destination::External { host: host?, port: port?, ca, addresses, via })
}

fn range(reader: &mut Reader<'_>, map: &Map<'_>, node: &Node) -> Option<Destination> {
    let cidr = cidr(reader, node);
    let icmp = match map.get("protocol") {
        Some(node) => reader.choice(node, "protocol", &[("tcp", false), ("icmp", true)])?,
        None => false,
    };
    if !icmp {
        let port = port_number(reader, map);
        return Some(Destination::Cidr { cidr: cidr?, port: port? });
    }
    if let Some(node) = map.get("port") {
        reader.fail(node.at, "icmp has no ports", "remove the port");
    }
    Some(Destination::Icmp { cidr: cidr? })
}

fn port_name(reader: &mut Reader<'_>, map: &Map<'_>) -> Option<PortName> {
    let node = reader.need(map, "port", "https")?;
    reader.parsed(node, "port", "write the name of a port, as in the endpoint", |text| {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err("ports of workloads are named, not numbered".to_owned());
        }
        PortName::new(text).map_err(|error| error.to_string())
    })
}

fn port_number(reader: &mut Reader<'_>, map: &Map<'_>) -> Option<u16> {
    let node = reader.need(map, "port", "443")?;
    reader.port(node, "port")
}

fn addresses(reader: &mut Reader<'_>, map: &Map<'_>) -> Vec<IpNet> {
    let Some(list) = map.get("addresses") else { return Vec::new() };
    let mut all = Vec::new();
    for node in reader.list(list, "addresses", 64) {
        all.extend(cidr(reader, node));
    }
    all
}
