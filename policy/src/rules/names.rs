//! Reads names, networks and certificates.

use ipnet::IpNet;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::HostPattern;
use crate::data::is_plain_name;
use crate::host::Host;
use crate::yaml::{Node, Reader};

/// CA names with a meaning of their own: they stand for our own trust bundle.
const RESERVED_CA_NAMES: [&str; 2] = ["spiffe", "nova"];
/// Certificates of one external CA.
const MAX_CERTIFICATES: usize = 16;

/// A name of a credential, an owner or a proxy.
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
    is_plain_name(text).then(|| text.to_owned())
}

/// A network with all host bits zero.
pub(super) fn cidr(reader: &mut Reader<'_>, node: &Node) -> Option<IpNet> {
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

/// An exact name, or `*.` and a suffix, of a host that is none of our own.
pub(super) fn host_pattern(text: &str) -> Result<HostPattern, String> {
    let show = |error: crate::host::HostError| error.to_string();
    let (name, wildcard) = match text.strip_prefix("*.") {
        Some(name) => (name, true),
        None => (text, false),
    };
    let host = Host::parse(name).map_err(show)?;
    if host.address().is_some() {
        return Err("an address is not a name".to_owned());
    }
    if host.is_special_name() || (wildcard && host.has_special_name_below()) {
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
