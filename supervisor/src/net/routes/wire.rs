//! The messages between supervisor and route helper: 24 bytes each way, every field in a fixed place.
//!
//! ```text
//! offset 0            1                2..4   4..8                8..24
//!        op / status  family 0, 4, 6   zero   errno (replies)     address
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Length of every message, in bytes.
pub(super) const LEN: usize = 24;
/// Stands where a message names no address.
pub(super) const NO_IP: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Op {
    Add = 1,
    Remove = 2,
    List = 3,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) op: Op,
    pub(super) ip: IpAddr,
}

/// What a reply says. Everything but `Item` ends the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Status {
    Ok = 1,
    Item = 2,
    OutsideSubnet = 3,
    NotOurs = 4,
    Kernel = 5,
    Malformed = 6,
    InitialNamespace = 7,
    Forwarding = 8,
    SubnetInUse = 9,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: Status,
    pub(super) errno: i32,
    pub(super) ip: IpAddr,
}

impl Request {
    pub(super) fn encode(self) -> [u8; LEN] {
        encode(self.op as u8, 0, self.ip)
    }

    pub(super) fn parse(bytes: &[u8; LEN]) -> Option<Self> {
        let (op, errno, ip) = parse(bytes)?;
        let op = [Op::Add, Op::Remove, Op::List].into_iter().find(|known| *known as u8 == op)?;
        (errno == 0).then_some(Self { op, ip })
    }
}

impl Reply {
    pub(super) fn new(status: Status, ip: IpAddr) -> Self {
        Self { status, errno: 0, ip }
    }

    pub(super) fn encode(self) -> [u8; LEN] {
        encode(self.status as u8, self.errno, self.ip)
    }

    pub(super) fn parse(bytes: &[u8; LEN]) -> Option<Self> {
        let (status, errno, ip) = parse(bytes)?;
        let all = [
            Status::Ok,
            Status::Item,
            Status::OutsideSubnet,
            Status::NotOurs,
            Status::Kernel,
            Status::Malformed,
            Status::InitialNamespace,
            Status::Forwarding,
            Status::SubnetInUse,
        ];
        let status = all.into_iter().find(|known| *known as u8 == status)?;
        Some(Self { status, errno, ip })
    }
}

fn encode(first: u8, errno: i32, ip: IpAddr) -> [u8; LEN] {
    let (family, address) = match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            (4, [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
        }
        IpAddr::V6(ip) => (6, ip.octets()),
    };
    let mut bytes = [0; LEN];
    bytes[0] = first;
    bytes[1] = family;
    bytes[4..8].copy_from_slice(&errno.to_be_bytes());
    bytes[8..].copy_from_slice(&address);
    bytes
}

fn parse(bytes: &[u8; LEN]) -> Option<(u8, i32, IpAddr)> {
    let [first, family, 0, 0, e0, e1, e2, e3, address @ ..] = *bytes else { return None };
    let ip = match (family, address) {
        (4, [a, b, c, d, rest @ ..]) if rest == [0; 12] => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        (6, octets) => IpAddr::V6(Ipv6Addr::from(octets)),
        _ => return None,
    };
    Some((first, i32::from_be_bytes([e0, e1, e2, e3]), ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_exactly_a_message_is_refused() {
        let good = Request { op: Op::Add, ip: IpAddr::V4(Ipv4Addr::new(10, 64, 3, 11)) }.encode();
        for (at, value) in [(0, 0), (0, 9), (1, 5), (2, 1), (3, 1), (7, 1), (12, 1), (23, 1)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(Request::parse(&bad), None, "byte {at} = {value}");
        }
    }

    #[test]
    fn messages_round_trip() {
        for ip in ["10.64.3.11", "fd00::1"] {
            let ip = ip.parse().expect("valid");
            let request = Request { op: Op::Remove, ip };
            assert_eq!(Request::parse(&request.encode()), Some(request));
            let reply = Reply { status: Status::Kernel, errno: 17, ip };
            assert_eq!(Reply::parse(&reply.encode()), Some(reply));
        }
    }
}
