//! Reads the parts of an endpoint: ports, backend, dependencies, limits, guest.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use nova_proto::ids::PortName;

use super::{Backend, Dependency, Guest, Limits, Mode, Port, PortTarget, PortTls, Protocol, health};
use crate::data::is_plain_name;
use crate::host::Host;
use crate::yaml::{Map, Node, Reader};

/// Context ids that never belong to a guest: hypervisor, loopback, host, any.
const RESERVED_CIDS: [u64; 4] = [0, 1, 2, 0xffff_ffff];

/// Credentials of one pod.
pub const MAX_CREDENTIALS: usize = 64;

/// Keys of a port.
const PORT_KEYS: [&str; 11] = [
    "name",
    "port",
    "target_port",
    "target_unix",
    "mode",
    "protocol",
    "tls12",
    "certificate",
    "strip_token",
    "proxy_protocol_v2",
    "health",
];

/// `None` when one of them cannot be read: a selector must never lose a label and become wider.
pub(crate) fn labels(reader: &mut Reader<'_>, node: &Node) -> Option<BTreeMap<String, String>> {
    let map = reader.any_map(node, "labels")?;
    let fits = |text: &str| {
        (1..=63).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'/'))
    };
    let (mut labels, mut good) = (BTreeMap::new(), true);
    for (name, at, value) in map.iter() {
        let text = reader.text(value, "the label", 256);
        match text.filter(|text| fits(name) && fits(text)) {
            Some(text) => {
                labels.insert(name.to_owned(), text.to_owned());
            }
            None => good = false,
        }
        if text.is_some_and(|text| !fits(name) || !fits(text)) {
            let shown: String = name.chars().take(64).collect();
            reader.fail(at, format!("label {shown:?} is not valid"), "use 1 to 63 of letters, digits, - . _ / in both");
        }
    }
    good.then_some(labels)
}

pub(super) fn ports(reader: &mut Reader<'_>, map: &Map<'_>) -> Vec<Port> {
    let Some(list) = map.get("ports") else { return Vec::new() };
    let mut ports: Vec<Port> = Vec::new();
    for node in reader.list(list, "ports", 256) {
        let Some(port) = port(reader, node) else { continue };
        for other in &ports {
            if other.name == port.name {
                reader.fail(node.at, format!("port name {:?} is there twice", port.name.as_str()), "rename one");
            }
            if other.port == port.port {
                reader.fail(node.at, format!("port {} is there twice", port.port), "give one another number");
            }
        }
        ports.push(port);
    }
    ports
}

fn port(reader: &mut Reader<'_>, node: &Node) -> Option<Port> {
    let map = reader.map(node, "the port", &PORT_KEYS)?;
    let name = reader
        .need(&map, "name", "https")
        .and_then(|node| reader.parsed(node, "port name", "rename it", |text| PortName::new(text)));
    let number = reader.need(&map, "port", "443").and_then(|node| reader.port(node, "port"));
    let target = match (map.get("target_port"), map.get("target_unix")) {
        (Some(port), None) => reader.port(port, "target_port").map(PortTarget::Tcp),
        (None, Some(file)) => reader
            .parsed(file, "target_unix", "write the name of a socket file, without a path", file_name)
            .map(PortTarget::Unix),
        (Some(_), Some(_)) => {
            reader.fail(map.at, "both target_port and target_unix", "keep one");
            None
        }
        (None, None) => number.map(PortTarget::Tcp),
    };
    let modes = [("mtls", Mode::Mtls), ("tls", Mode::Tls), ("tcp", Mode::Tcp)];
    let mode = reader.need(&map, "mode", "mtls").and_then(|node| reader.choice(node, "mode", &modes));
    let protocols =
        [("tcp", Protocol::Tcp), ("raw", Protocol::Tcp), ("http", Protocol::Http), ("grpc", Protocol::Grpc)];
    let protocol = match map.get("protocol") {
        Some(node) => reader.choice(node, "protocol", &protocols),
        None => Some(Protocol::Tcp),
    };
    let tls = port_tls(reader, &map, mode, protocol);
    let proxy_protocol_v2 =
        map.get("proxy_protocol_v2").and_then(|node| reader.flag(node, "proxy_protocol_v2")).unwrap_or(false);
    let health = health::read(reader, &map, protocol);
    Some(Port {
        name: name?,
        port: number?,
        target: target?,
        mode: mode?,
        protocol: protocol?,
        tls,
        proxy_protocol_v2,
        health,
    })
}

fn port_tls(reader: &mut Reader<'_>, map: &Map<'_>, mode: Option<Mode>, protocol: Option<Protocol>) -> PortTls {
    for (key, fits, remedy) in [
        ("tls12", mode != Some(Mode::Tcp), "remove it, or set mode to tls or mtls"),
        ("certificate", mode.is_none_or(|mode| mode == Mode::Tls), "remove it, or set mode to tls"),
        ("strip_token", mode.is_none_or(|mode| mode == Mode::Tls), "remove it, or set mode to tls"),
        ("strip_token", protocol != Some(Protocol::Tcp), "remove it, or set protocol to http or grpc"),
    ] {
        if let Some(node) = map.get(key).filter(|_| !fits) {
            reader.fail(node.at, format!("{key} has no meaning on this port"), remedy);
        }
    }
    let certificate = map
        .get("certificate")
        .and_then(|node| reader.parsed(node, "certificate", "write a name of [[certificates]]", certificate_name));
    let flag = |reader: &mut Reader<'_>, key: &str| map.get(key).and_then(|node| reader.flag(node, key));
    let tls12 = flag(reader, "tls12").unwrap_or(false);
    PortTls { tls12, certificate, strip_token: flag(reader, "strip_token").unwrap_or(false) }
}

fn certificate_name(text: &str) -> Result<String, &'static str> {
    let good = (1..=63).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.'));
    if good { Ok(text.to_owned()) } else { Err("1 to 63 of a-z, 0-9, '-' and '.'") }
}

pub(super) fn backend(reader: &mut Reader<'_>, map: &Map<'_>) -> Option<Backend> {
    let node = map.get("backend")?;
    let map = reader.map(node, "backend", &["vsock_cid", "hybrid", "uds"])?;
    match (map.get("vsock_cid"), map.get("hybrid"), map.get("uds")) {
        (Some(node), None, None) => {
            let cid = reader.number(node, "vsock_cid", 0..=u64::from(u32::MAX))?;
            if RESERVED_CIDS.contains(&cid) {
                reader.fail(node.at, format!("vsock_cid {cid} never belongs to a guest"), "use the CID of the guest");
                return None;
            }
            u32::try_from(cid).ok().map(Backend::VsockCid)
        }
        (None, Some(node), None) => {
            let map = reader.map(node, "hybrid", &["file", "half_close", "vmm_uid", "vmm_gid"])?;
            let file = socket_file(reader, &map);
            let half_close = map.get("half_close").and_then(|node| reader.flag(node, "half_close")).unwrap_or(false);
            let id = |reader: &mut Reader<'_>, name: &str| {
                let value = map.get(name).and_then(|node| reader.number(node, name, 0..=u64::from(u32::MAX - 1)))?;
                u32::try_from(value).ok()
            };
            let (vmm_uid, vmm_gid) = (id(reader, "vmm_uid"), id(reader, "vmm_gid"));
            Some(Backend::Hybrid { file: file?, half_close, vmm_uid, vmm_gid })
        }
        (None, None, Some(node)) => {
            let map = reader.map(node, "uds", &["file"])?;
            Some(Backend::Uds { file: socket_file(reader, &map)? })
        }
        _ => {
            reader.fail(map.at, "backend must have exactly one kind", "write one of vsock_cid, hybrid, uds");
            None
        }
    }
}

fn socket_file(reader: &mut Reader<'_>, map: &Map<'_>) -> Option<String> {
    let node = reader.need(map, "file", "v.sock")?;
    reader.parsed(node, "file", "write the name of a socket file, without a path", file_name)
}

pub(super) fn dependencies(reader: &mut Reader<'_>, map: &Map<'_>) -> Vec<Dependency> {
    let Some(list) = map.get("dependencies") else { return Vec::new() };
    let mut all: Vec<Dependency> = Vec::new();
    for node in reader.list(list, "dependencies", 254) {
        let Some(dependency) = dependency(reader, node) else { continue };
        if all.iter().any(|other| (other.guest_ip, other.port) == (dependency.guest_ip, dependency.port)) {
            reader.fail(
                node.at,
                format!("{}:{} is used twice", dependency.guest_ip, dependency.port),
                "give one of them another guest_ip",
            );
        }
        all.push(dependency);
    }
    all
}

pub(super) fn credentials(reader: &mut Reader<'_>, map: &Map<'_>) -> BTreeSet<String> {
    let Some(list) = map.get("credentials") else { return BTreeSet::new() };
    let names = reader.list(list, "credentials", MAX_CREDENTIALS).iter();
    let name = |text: &str| match is_plain_name(text) {
        true => Ok(text.to_owned()),
        false => Err("1 to 63 of a-z, 0-9 and '-'"),
    };
    names.filter_map(|node| reader.parsed(node, "credential", "write the name that rules use", name)).collect()
}

fn dependency(reader: &mut Reader<'_>, node: &Node) -> Option<Dependency> {
    let map = reader.map(node, "the dependency", &["host", "port", "guest_ip"])?;
    let host = reader
        .need(&map, "host", "db.t.nova")
        .and_then(|node| reader.parsed(node, "host", "write a DNS name or an address", Host::parse));
    let port = reader.need(&map, "port", "5432").and_then(|node| reader.port(node, "port"));
    let guest_ip = reader.need(&map, "guest_ip", "127.0.1.1").and_then(|node| {
        let address: IpAddr = reader.parsed(node, "guest_ip", "write an address like 127.0.1.1", str::parse)?;
        let range = IpNet::new_assert([127, 0, 1, 0].into(), 24);
        if !range.contains(&address) {
            reader.fail(node.at, format!("guest_ip {address} is not in 127.0.1.0/24"), "use 127.0.1.n");
        }
        Some(address)
    });
    Some(Dependency { host: host?, port: port?, guest_ip: guest_ip? })
}

const LIMIT_KEYS: [&str; 14] = [
    "max_connections",
    "max_handshakes",
    "bytes_per_second",
    "connections_per_second",
    "lookups_per_second",
    "max_destination_connections",
    "max_header_bytes",
    "header_timeout_ms",
    "idle_timeout_ms",
    "stream_idle_timeout_ms",
    "body_timeout_ms",
    "answer_timeout_ms",
    "max_lifetime_ms",
    "close_at_max_lifetime",
];

/// A day: what takes longer is a mistake of the unit.
const MAX_TIMEOUT_MS: u64 = 86_400_000;

pub(super) fn limits(reader: &mut Reader<'_>, map: &Map<'_>) -> Limits {
    let Some(map) = map.get("limits").and_then(|node| reader.map(node, "limits", &LIMIT_KEYS)) else {
        return Limits::default();
    };
    let close_at_max_lifetime =
        map.get("close_at_max_lifetime").and_then(|node| reader.flag(node, "close_at_max_lifetime")).unwrap_or(false);
    if close_at_max_lifetime && map.get("max_lifetime_ms").is_none() {
        reader.fail(map.at, "close_at_max_lifetime stands alone", "add max_lifetime_ms, or remove it");
    }
    let bytes_per_second =
        map.get("bytes_per_second").and_then(|node| reader.number(node, "bytes_per_second", 1..=1_000_000_000_000));
    let mut number = |name: &str, range: RangeInclusive<u64>| {
        let value = map.get(name).and_then(|node| reader.number(node, name, range))?;
        u32::try_from(value).ok()
    };
    Limits {
        max_connections: number("max_connections", 1..=100_000),
        max_handshakes: number("max_handshakes", 1..=10_000),
        bytes_per_second,
        connections_per_second: number("connections_per_second", 1..=1_000_000),
        lookups_per_second: number("lookups_per_second", 1..=1_000_000),
        max_destination_connections: number("max_destination_connections", 1..=1_000_000),
        max_header_bytes: number("max_header_bytes", 1024..=65_536),
        header_timeout_ms: number("header_timeout_ms", 1..=MAX_TIMEOUT_MS),
        idle_timeout_ms: number("idle_timeout_ms", 1..=MAX_TIMEOUT_MS),
        stream_idle_timeout_ms: number("stream_idle_timeout_ms", 1..=MAX_TIMEOUT_MS),
        body_timeout_ms: number("body_timeout_ms", 1..=MAX_TIMEOUT_MS),
        answer_timeout_ms: number("answer_timeout_ms", 1..=MAX_TIMEOUT_MS),
        max_lifetime_ms: number("max_lifetime_ms", 1..=30 * MAX_TIMEOUT_MS),
        close_at_max_lifetime,
    }
}

pub(super) fn guest(reader: &mut Reader<'_>, map: &Map<'_>) -> Option<Guest> {
    let node = map.get("guest")?;
    let map = reader.map(node, "guest", &["image", "command", "memory_mib", "env"])?;
    let image = map.get("image").and_then(|node| reader.text(node, "image", 256)).map(str::to_owned);
    let mut command = Vec::new();
    if let Some(list) = map.get("command") {
        for item in reader.list(list, "command", 256) {
            command.extend(reader.text(item, "the argument", 4096).map(str::to_owned));
        }
    }
    let memory = map.get("memory_mib").and_then(|node| reader.number(node, "memory_mib", 64..=1_048_576));
    let mut env = BTreeMap::new();
    if let Some(map) = map.get("env").and_then(|node| reader.any_map(node, "env")) {
        for (name, _, value) in map.iter() {
            if let Some(text) = reader.text(value, "the variable", 4096) {
                env.insert(name.to_owned(), text.to_owned());
            }
        }
    }
    let memory_mib = memory.and_then(|value| u32::try_from(value).ok()).unwrap_or(256);
    Some(Guest { image, command, memory_mib, env })
}

/// One path segment that cannot lead anywhere else.
fn file_name(text: &str) -> Result<String, &'static str> {
    let good = (1..=64).contains(&text.len())
        && !text.starts_with('.')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    if good { Ok(text.to_owned()) } else { Err("1 to 64 of letters, digits, '-', '_' and '.', not starting with '.'") }
}
