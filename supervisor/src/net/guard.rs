//! Which addresses a dial may go to, whatever a name resolved to. The address that was checked is the one that is dialled.
//!
//! Forms that carry an IPv4 address inside an IPv6 one (mapped, compatible, NAT64, 6to4, Teredo) are judged by the IPv4
//! address; a Teredo address hides its server and client, so it is refused as a whole.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// What kind of permission asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A rule that names a workload: private ranges are where workloads live.
    Workload,
    /// A rule that names this very address or a range around it.
    Literal,
    /// A rule that names an external host: only addresses of the public internet.
    External,
}

/// The guard, with the exceptions of a lab.
#[derive(Debug, Clone, Default)]
pub struct AddressGuard {
    lab: Vec<IpNet>,
}

impl AddressGuard {
    /// `lab` opens ranges; empty in production.
    #[must_use]
    pub fn new(lab: Vec<IpNet>) -> Self {
        Self { lab }
    }

    /// Whether `address` may be dialled.
    #[must_use]
    pub fn allows(&self, address: IpAddr, purpose: Purpose) -> bool {
        if self.lab.iter().any(|net| net.contains(&address)) {
            return true;
        }
        match address {
            IpAddr::V4(v4) => v4_allows(v4, purpose),
            IpAddr::V6(v6) => match embedded_v4(v6) {
                Embedded::V4(v4) => v4_allows(v4, purpose),
                Embedded::Hidden => false,
                Embedded::None => v6_allows(v6, purpose),
            },
        }
    }
}

/// Metadata services outside of the link-local ranges, in public and private ones: Azure, Alibaba.
const METADATA_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(100, 100, 100, 200)];
/// AWS, Google, Scaleway, Oracle.
const METADATA_V6: [Ipv6Addr; 4] = [
    Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0x0042, 0, 0, 0, 0, 0, 0x42),
    Ipv6Addr::new(0xfd00, 0x00c1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
];

fn v4_allows(address: Ipv4Addr, purpose: Purpose) -> bool {
    let [a, b, c, _] = address.octets();
    let never = a == 0
        || address.is_loopback()
        || address.is_link_local()
        || a >= 224
        || (a == 192 && b == 0 && c == 0)
        || address.is_documentation()
        || (a == 198 && (b == 18 || b == 19))
        || (a == 192 && b == 88 && c == 99)
        || METADATA_V4.contains(&address);
    let private = address.is_private() || (a == 100 && (64..128).contains(&b));
    !never && (!private || purpose != Purpose::External)
}

fn v6_allows(address: Ipv6Addr, purpose: Purpose) -> bool {
    let segments = address.segments();
    let first = segments[0];
    let never = address.is_unspecified()
        || address.is_loopback()
        || first & 0xffc0 == 0xfe80
        || first & 0xffc0 == 0xfec0
        || first & 0xff00 == 0xff00
        || (first == 0x2001 && segments[1] == 0x0db8)
        || (first == 0x3fff && segments[1] < 0x1000)
        || (first == 0x0100 && segments[1..4] == [0, 0, 0])
        || METADATA_V6.contains(&address)
        // ISATAP interface identifiers carry an IPv4 address that some stacks tunnel to.
        || (segments[4] & 0xfdff == 0 && segments[5] == 0x5efe);
    let private = first & 0xfe00 == 0xfc00;
    let global = first & 0xe000 == 0x2000;
    !never && (global || (private && purpose != Purpose::External))
}

enum Embedded {
    V4(Ipv4Addr),
    Hidden,
    None,
}

fn embedded_v4(address: Ipv6Addr) -> Embedded {
    let s = address.segments();
    let join = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Embedded::V4(Ipv4Addr::new(a, b, c, d))
    };
    match s {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Embedded::None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => join(high, low),
        [0x0064, 0xff9b, 0, 0, 0, 0, high, low] => join(high, low),
        [0x0064, 0xff9b, 1, ..] => Embedded::Hidden,
        [0x2002, high, low, ..] => join(high, low),
        [0x2001, 0, ..] => Embedded::Hidden,
        _ => Embedded::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(purpose: Purpose, text: &str) -> bool {
        AddressGuard::default().allows(text.parse().expect("an address"), purpose)
    }

    // covers: A7c
    #[test]
    fn no_purpose_reaches_special_addresses_in_any_spelling() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "192.88.99.1",
            "::",
            "::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "168.63.129.16",
            "::ffff:168.63.129.16",
            "64:ff9b::a83f:8110",
            "100.100.100.200",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fd00:42::42",
            "fd00:c1::a9fe:a9fe",
            "2001:db8::1",
            "::ffff:127.0.0.1",
            "::ffff:7f00:1",
            "::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2002:7f00:1::1",
            "2002:a9fe:a9fe::",
            "2001::1",
            "100::1",
            "2606:4700::200:5efe:a00:1",
        ] {
            for purpose in [Purpose::Workload, Purpose::Literal, Purpose::External] {
                assert!(!check(purpose, text), "{text} as {purpose:?}");
            }
        }
    }

    #[test]
    fn private_ranges_are_for_workloads_and_literals_only() {
        for text in [
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "fc00::1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "2002:a00:1::",
        ] {
            assert!(!check(Purpose::External, text), "{text}");
            assert!(check(Purpose::Workload, text), "{text}");
            assert!(check(Purpose::Literal, text), "{text}");
        }
    }

    #[test]
    fn the_internet_is_reachable() {
        for text in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::808:808"] {
            assert!(check(Purpose::External, text), "{text}");
        }
    }

    #[test]
    fn a_lab_opens_only_its_ranges() {
        let guard = AddressGuard::new(vec!["127.0.0.0/8".parse().expect("a network")]);
        assert!(guard.allows("127.0.0.1".parse().expect("an address"), Purpose::External));
        assert!(!guard.allows("169.254.169.254".parse().expect("an address"), Purpose::External));
        assert!(!guard.allows("::ffff:127.0.0.1".parse().expect("an address"), Purpose::External));
    }
}
