//! Reads the parts of a rule.

use std::collections::BTreeSet;

use ipnet::IpNet;
use nova_proto::ids::{PortName, SpiffeId, WorkloadId};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::{Destination, HostPattern, Http, Source, UriPattern};
use crate::data::UpstreamTls;
use crate::host::Host;
use crate::path::pattern::PathPattern;
use crate::workloads;
use crate::yaml::{Map, Node, Reader};

/// CA names with a meaning of their own: they stand for our own trust bundle.
const RESERVED_CA_NAMES: [&str; 2] = ["spiffe", "nova"];
/// Refused everywhere: they echo credentials, or are not requests to a path.
const REFUSED_METHODS: [&str; 3] = ["CONNECT", "TRACE", "TRACK"];
/// Certificates of one external CA.
const MAX_CERTIFICATES: usize = 16;

pub(super) fn source(reader: &mut Reader<'_>, node: &Node) -> Option<Source> {
    let map = reader.map(node, "from", &["workload", "labels", "cidr", "external_ca", "uri"])?;
    if let Some(uri) = map.get("uri").filter(|_| map.get("external_ca").is_none()) {
        reader.fail(uri.at, "uri without external_ca", "add external_ca, or name a workload instead");
    }
    match (map.get("workload"), map.get("labels"), map.get("cidr"), map.get("external_ca")) {
        (Some(node), None, None, None) => workload(reader, node).map(Source::Workload),
        (None, Some(node), None, None) => Some(Source::Labels(workloads::read_labels(reader, node))),
        (None, None, Some(node), None) => cidr(reader, node).map(Source::Cidr),
        (None, None, None, Some(node)) => {
            let ca = ca_name(reader, node);
            let uri = reader.need(&map, "uri", "spiffe://partner/*").and_then(|node| {
                reader.parsed(node, "uri", "write spiffe://<domain>/<path>, or end it in /*", uri_pattern)
            });
            Some(Source::External { ca: ca?, uri: uri? })
        }
        _ => {
            reader.fail(map.at, "from must have exactly one kind", "write one of workload, labels, cidr, external_ca");
            None
        }
    }
}

pub(super) fn destination(reader: &mut Reader<'_>, node: &Node) -> Option<Destination> {
    let keys = ["workload", "labels", "external", "cidr", "port", "ca", "addresses"];
    let map = reader.map(node, "to", &keys)?;
    for key in ["ca", "addresses"] {
        if let Some(node) = map.get(key).filter(|_| map.get("external").is_none()) {
            reader.fail(node.at, format!("{key} only belongs to an external host"), "remove it");
        }
    }
    match (map.get("workload"), map.get("labels"), map.get("external"), map.get("cidr")) {
        (Some(node), None, None, None) => {
            let workload = workload(reader, node);
            let port = port_name(reader, &map);
            Some(Destination::Workload { workload: workload?, port: port? })
        }
        (None, Some(node), None, None) => {
            let labels = workloads::read_labels(reader, node);
            Some(Destination::Labels { labels, port: port_name(reader, &map)? })
        }
        (None, None, Some(node), None) => {
            let remedy = "write a DNS name, or *. and a name with at least two labels; addresses go into `cidr`";
            let host = reader.parsed(node, "external", remedy, host_pattern);
            let port = port_number(reader, &map);
            let ca = map.get("ca").and_then(|node| ca_name(reader, node));
            let addresses = addresses(reader, &map);
            Some(Destination::External { host: host?, port: port?, ca, addresses })
        }
        (None, None, None, Some(node)) => {
            let cidr = cidr(reader, node);
            let port = port_number(reader, &map);
            Some(Destination::Cidr { cidr: cidr?, port: port? })
        }
        _ => {
            reader.fail(map.at, "to must have exactly one kind", "write one of workload, labels, external, cidr");
            None
        }
    }
}

/// `None` when the block cannot be read: a rule must never lose it and become wider.
pub(super) fn http(reader: &mut Reader<'_>, node: &Node) -> Option<Http> {
    let map = reader.map(node, "http", &["methods", "paths"])?;
    let mut good = true;
    let mut methods = BTreeSet::new();
    if let Some(list) = map.get("methods") {
        for node in reader.list(list, "methods", 64) {
            match reader.parsed(node, "method", "write upper-case names like GET, or leave methods out", method) {
                Some(method) => {
                    methods.insert(method);
                }
                None => good = false,
            }
        }
        if methods.is_empty() && good {
            reader.fail(list.at, "methods is empty: the rule allows nothing", "list methods, or leave it out for all");
            good = false;
        }
    }
    let mut paths = Vec::new();
    match map.get("paths") {
        None => paths.push(PathPattern::Prefix("/".to_owned())),
        Some(list) => {
            let remedy = "write /exact/path, /prefix/** or /a/*/b in canonical spelling";
            for node in reader.list(list, "paths", 1024) {
                match reader.parsed(node, "path", remedy, PathPattern::parse) {
                    Some(path) => paths.push(path),
                    None => good = false,
                }
            }
            if paths.is_empty() && good {
                reader.fail(list.at, "paths is empty: the rule allows nothing", "list paths, or leave it out for all");
                good = false;
            }
        }
    }
    good.then_some(Http { methods, paths })
}

pub(super) fn tls(reader: &mut Reader<'_>, map: &Map<'_>, to: &Destination, http: bool) -> UpstreamTls {
    let default = if http { UpstreamTls::Originate } else { UpstreamTls::Passthrough };
    let external = matches!(to, Destination::External { .. });
    let Some(node) = map.get("tls") else { return default };
    let words =
        [("originate", UpstreamTls::Originate), ("passthrough", UpstreamTls::Passthrough), ("none", UpstreamTls::None)];
    let Some(tls) = reader.choice(node, "tls", &words) else { return default };
    if !external {
        reader.fail(node.at, "tls only belongs to rules to an external host", "remove it");
    } else if http && tls == UpstreamTls::Passthrough {
        reader.fail(
            node.at,
            "requests inside the app's own TLS cannot be read, so the http block can never match",
            "use tls: originate and call http://, or drop the http block",
        );
    } else if !http && tls == UpstreamTls::None {
        reader.fail(node.at, "tls: none is for plaintext HTTP and needs an http block", "use tls: passthrough");
    }
    tls
}

/// A name of a credential.
pub(super) fn name(reader: &mut Reader<'_>, node: &Node, what: &str) -> Option<String> {
    reader.parsed(node, what, "rename it", |text| plain_name(text).ok_or(NAME_RULE))
}

pub(super) fn ca_name(reader: &mut Reader<'_>, node: &Node) -> Option<String> {
    reader.parsed(node, "external CA name", "rename it", |text| match plain_name(text) {
        Some(name) if RESERVED_CA_NAMES.contains(&name.as_str()) => Err("it stands for our own trust bundle"),
        Some(name) => Ok(name),
        None => Err(NAME_RULE),
    })
}

/// The certificates of a CA in DER.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut all = Vec::new();
    for item in CertificateDer::pem_slice_iter(pem) {
        let der = item.map_err(|error| format!("not PEM: {error:?}"))?;
        let (rest, certificate) =
            x509_parser::parse_x509_certificate(&der).map_err(|_| "not an X.509 certificate".to_owned())?;
        if !rest.is_empty() || !certificate.is_ca() {
            return Err("a certificate in it is not a CA certificate".to_owned());
        }
        all.push(der.to_vec());
    }
    match all.len() {
        0 => Err("no certificate in it".to_owned()),
        1..=MAX_CERTIFICATES => Ok(all),
        _ => Err(format!("more than {MAX_CERTIFICATES} certificates")),
    }
}

const NAME_RULE: &str = "1 to 63 of a-z, 0-9 and '-'";

fn plain_name(text: &str) -> Option<String> {
    let good = (1..=63).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    good.then(|| text.to_owned())
}

fn workload(reader: &mut Reader<'_>, node: &Node) -> Option<WorkloadId> {
    reader.parsed(node, "workload", "write the id of a workload", |text| WorkloadId::new(text))
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

fn cidr(reader: &mut Reader<'_>, node: &Node) -> Option<IpNet> {
    reader.parsed(node, "cidr", "write a network like 10.0.0.0/8 with all host bits zero", |text| {
        let net: IpNet = text.parse().map_err(|_| "not a network in CIDR notation".to_owned())?;
        if net != net.trunc() {
            return Err(format!("host bits are set, the network is {}", net.trunc()));
        }
        match net {
            IpNet::V6(v6) if v6.addr().to_ipv4_mapped().is_some() && v6.prefix_len() >= 96 => {
                Err("an IPv4-mapped network matches nothing: write it as IPv4".to_owned())
            }
            _ => Ok(net),
        }
    })
}

fn host_pattern(text: &str) -> Result<HostPattern, String> {
    let show = |error: crate::host::HostError| error.to_string();
    let (name, wildcard) = match text.strip_prefix("*.") {
        Some(name) => (name, true),
        None => (text, false),
    };
    let host = Host::parse(name).map_err(show)?;
    if host.address().is_some() {
        return Err("an address is not a name".to_owned());
    }
    if host.is_special_name() {
        return Err("it names the machine itself or a metadata service".to_owned());
    }
    if host.as_str() == "nova" || host.as_str().ends_with(".nova") {
        return Err("names under .nova are workloads: use `workload`".to_owned());
    }
    if !host.as_str().contains('.') {
        return Err("a name with one label is a workload's short name".to_owned());
    }
    Ok(if wildcard { HostPattern::Suffix(format!(".{host}")) } else { HostPattern::Exact(host) })
}

fn uri_pattern(text: &str) -> Result<UriPattern, String> {
    let prefix = match text.strip_suffix('*') {
        Some(prefix) => prefix,
        None if text.ends_with('/') => text,
        None => return SpiffeId::new(text).map(UriPattern::Exact).map_err(|error| error.to_string()),
    };
    if !prefix.ends_with('/') {
        return Err("a prefix must end in '/', else it covers names of others".to_owned());
    }
    match SpiffeId::new(format!("{prefix}x")) {
        Ok(_) => Ok(UriPattern::Prefix(prefix.to_owned())),
        Err(_) => Err("not the start of a SPIFFE ID: spiffe://<domain>/, no empty or dot segment".to_owned()),
    }
}

fn method(text: &str) -> Result<String, &'static str> {
    if text == "*" {
        return Ok(text.to_owned());
    }
    let good = (1..=32).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_'));
    match good {
        true if REFUSED_METHODS.contains(&text) => Err("this method is refused everywhere"),
        true => Ok(text.to_owned()),
        false => Err("not an upper-case method name"),
    }
}
