//! Which addresses a dial may go to, whatever a name resolved to. The address that was checked is the one that is dialled.
//!
//! Forms that carry an IPv4 address inside an IPv6 one (mapped, compatible, NAT64, 6to4, Teredo) are judged by the IPv4
//! address; a Teredo address hides its server and client, so it is refused as a whole.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};

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

/// Why an address may not be dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forbidden {
    /// 0.0.0.0/8 and `::`, which mean the machine itself.
    Unspecified,
    /// The machine itself.
    Loopback,
    /// Link-local: neighbours, and most metadata services.
    LinkLocal,
    /// A metadata service with an address elsewhere.
    Metadata,
    /// Multicast and broadcast.
    Multicast,
    /// Documentation, benchmarks, protocol assignments, future use.
    Reserved,
    /// A tunnel that hides where it leads: Teredo, ISATAP, a NAT64 prefix that nobody configured.
    Tunnel,
    /// A private range, and the rule names none.
    Private,
    /// A workload of this node that the rule does not name.
    OwnListener,
    /// Another address of this machine.
    OwnAddress,
}

impl Forbidden {
    /// For the record's detail.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link_local",
            Self::Metadata => "metadata",
            Self::Multicast => "multicast",
            Self::Reserved => "reserved",
            Self::Tunnel => "tunnel",
            Self::Private => "private",
            Self::OwnListener => "own_listener",
            Self::OwnAddress => "own_address",
        }
    }
}

/// The guard, with the exceptions of a lab.
#[derive(Debug, Clone, Default)]
pub struct AddressGuard {
    lab: Vec<IpNet>,
    nat64: Vec<Ipv6Net>,
}

impl AddressGuard {
    /// `lab` opens ranges; empty in production. `nat64` are prefixes of 96 bits behind which the network puts IPv4
    /// addresses, beside the well-known one.
    #[must_use]
    pub fn new(lab: Vec<IpNet>, nat64: Vec<Ipv6Net>) -> Self {
        Self { lab, nat64 }
    }

    /// Whether a lab opens `address`.
    #[must_use]
    pub fn is_lab(&self, address: IpAddr) -> bool {
        self.lab.iter().any(|net| net.contains(&address))
    }

    /// Whether `address` may be dialled.
    #[must_use]
    pub fn allows(&self, address: IpAddr, purpose: Purpose) -> bool {
        self.check(address, purpose).is_ok()
    }

    /// The same, with the reason.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check(&self, address: IpAddr, purpose: Purpose) -> Result<(), Forbidden> {
        if self.is_lab(address) {
            return Ok(());
        }
        match address {
            IpAddr::V4(v4) => check_v4(v4, purpose),
            IpAddr::V6(v6) => match self.embedded_v4(v6) {
                Embedded::V4(v4) => check_v4(v4, purpose),
                Embedded::Hidden => Err(Forbidden::Tunnel),
                Embedded::None => check_v6(v6, purpose),
            },
        }
    }

    fn embedded_v4(&self, address: Ipv6Addr) -> Embedded {
        if self.nat64.iter().any(|prefix| prefix.contains(&address)) {
            let [.., high, low] = address.segments();
            return Embedded::join(high, low);
        }
        embedded_v4(address)
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

fn check_v4(address: Ipv4Addr, purpose: Purpose) -> Result<(), Forbidden> {
    match address.octets() {
        [0, ..] => Err(Forbidden::Unspecified),
        [127, ..] => Err(Forbidden::Loopback),
        [169, 254, ..] => Err(Forbidden::LinkLocal),
        _ if METADATA_V4.contains(&address) => Err(Forbidden::Metadata),
        [224..=239, ..] | [255, 255, 255, 255] => Err(Forbidden::Multicast),
        [240..=255, ..] | [192, 0, 0, _] | [198, 18 | 19, ..] | [192, 88, 99, _] => Err(Forbidden::Reserved),
        _ if address.is_documentation() => Err(Forbidden::Reserved),
        [100, 64..=127, ..] => private(purpose),
        _ if address.is_private() => private(purpose),
        _ => Ok(()),
    }
}

fn check_v6(address: Ipv6Addr, purpose: Purpose) -> Result<(), Forbidden> {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Err(Forbidden::Unspecified),
        [0, 0, 0, 0, 0, 0, 0, 1] => Err(Forbidden::Loopback),
        // With the site-local ones, which are no more.
        [0xfe80..=0xfeff, ..] => Err(Forbidden::LinkLocal),
        [0xff00..=0xffff, ..] => Err(Forbidden::Multicast),
        _ if METADATA_V6.contains(&address) => Err(Forbidden::Metadata),
        // ISATAP interface identifiers carry an IPv4 address that some stacks tunnel to.
        [_, _, _, _, 0 | 0x0200, 0x5efe, ..] => Err(Forbidden::Tunnel),
        // Documentation, twice; benchmarks; ORCHID, twice.
        [0x2001, 0x0db8, ..] | [0x3fff, 0..=0x0fff, ..] | [0x2001, 2 | 0x10..=0x2f, ..] => Err(Forbidden::Reserved),
        [0xfc00..=0xfdff, ..] => private(purpose),
        [0x2000..=0x3fff, ..] => Ok(()),
        _ => Err(Forbidden::Reserved),
    }
}

fn private(purpose: Purpose) -> Result<(), Forbidden> {
    if purpose == Purpose::External { Err(Forbidden::Private) } else { Ok(()) }
}

enum Embedded {
    V4(Ipv4Addr),
    Hidden,
    None,
}

impl Embedded {
    fn join(high: u16, low: u16) -> Self {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Self::V4(Ipv4Addr::new(a, b, c, d))
    }
}

fn embedded_v4(address: Ipv6Addr) -> Embedded {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Embedded::None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => Embedded::join(high, low),
        [0x0064, 0xff9b, 0, 0, 0, 0, high, low] => Embedded::join(high, low),
        [0x0064, 0xff9b, 1, ..] => Embedded::Hidden,
        [0x2002, high, low, ..] => Embedded::join(high, low),
        [0x2001, 0, ..] => Embedded::Hidden,
        _ => Embedded::None,
    }
}

#[cfg(test)]
mod tests;
