//! Addresses and names of endpoints.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::state::endpoint::DependencySpec;

/// An address that can be one workload's and nobody else's.
pub(super) fn check_ip(what: &str, text: &str) -> Result<IpAddr, String> {
    let ip: IpAddr = text.parse().map_err(|_| format!("{what} {text:?} is not an IP address"))?;
    let is_usable = match ip {
        IpAddr::V4(ip) => is_usable_v4(ip),
        IpAddr::V6(ip) => is_usable_v6(ip),
    };
    if is_usable {
        return Ok(ip);
    }
    Err(format!("{what} {ip} is not an address that one workload can own; use one of the delegated subnet"))
}

/// At most one more, of the other family.
pub(super) fn check_other_ip(first: Option<IpAddr>, texts: &[String]) -> Result<Option<IpAddr>, String> {
    match texts {
        [] => Ok(None),
        [text] => {
            let ip = check_ip("additional_ips", text)?;
            if first.is_some_and(|first| first.is_ipv4() == ip.is_ipv4()) {
                return Err(format!("additional_ips {ip} is of the same family as workload_ip"));
            }
            Ok(Some(ip))
        }
        _ => Err(String::from("additional_ips has more than one address; one of the other family is all there can be")),
    }
}

fn is_usable_v4(ip: Ipv4Addr) -> bool {
    let is_this_network = ip.octets()[0] == 0;
    !(is_this_network || ip.is_broadcast() || ip.is_multicast() || ip.is_link_local())
}

/// An IPv4-mapped address would be the same workload under a second name.
fn is_usable_v6(ip: Ipv6Addr) -> bool {
    !(ip.is_unspecified() || ip.is_multicast() || ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some())
}

/// What a `dependency` hello may name, and where the relay listens for it.
pub(super) fn check_dependency(host: &str, port: u32, guest_ip: &str) -> Result<DependencySpec, String> {
    let wrong = |what: &str| format!("dependency {host:?} port {port}: {what}");
    let is_name = (1..=253).contains(&host.len())
        && host.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_'))
        });
    if !is_name {
        return Err(wrong("the host is not a lower-case DNS name"));
    }
    let port = u16::try_from(port).ok().filter(|port| *port != 0).ok_or_else(|| wrong("the port is not 1 to 65535"))?;
    let is_guest_loopback = guest_ip.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback());
    if !guest_ip.is_empty() && !is_guest_loopback {
        return Err(wrong("guest_ip is not of 127.0.0.0/8"));
    }
    Ok(DependencySpec { host: host.to_owned(), port })
}
