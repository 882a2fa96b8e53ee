//! IPv4 packets of the tun device: whole echo requests in, whole echo replies out, nothing else (attack T24).

use std::net::Ipv4Addr;

use nova_proto::icmp::Echo;

/// Longest payload of an echo: what is left of 1,500 bytes after the two headers.
pub const PAYLOAD_MAX: usize = 1_472;
/// Longest packet that is looked at, in bytes.
pub const PACKET_MAX: usize = IP_HEADER + ECHO_HEADER + PAYLOAD_MAX;
/// Length of an IPv4 header without options.
const IP_HEADER: usize = 20;
/// Length of an echo's header.
const ECHO_HEADER: usize = 8;
const ICMP: u8 = 1;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;
/// What hosts give a packet that they send.
const TIME_TO_LIVE: u8 = 64;

/// Why a packet is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drop {
    /// Not IPv4.
    NotIpv4,
    /// Shorter than its headers say, or longer than a packet may be.
    Length,
    /// A header or a checksum that no kernel makes.
    Malformed,
    /// A part of a packet.
    Fragment,
    /// A header with options, which could ask for another way.
    Options,
    /// Not from the workload's address.
    Source,
    /// Another protocol than ICMP.
    Protocol,
    /// Another type than echo request.
    Type,
}

impl Drop {
    /// All of them, in the order of the counters.
    pub const ALL: [Self; 8] = [
        Self::NotIpv4,
        Self::Length,
        Self::Malformed,
        Self::Fragment,
        Self::Options,
        Self::Source,
        Self::Protocol,
        Self::Type,
    ];

    /// For the log.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotIpv4 => "not_ipv4",
            Self::Length => "length",
            Self::Malformed => "malformed",
            Self::Fragment => "fragment",
            Self::Options => "options",
            Self::Source => "source",
            Self::Protocol => "protocol",
            Self::Type => "type",
        }
    }
}

/// Takes a packet apart: the echo that is asked for, and the app's payload.
///
/// # Errors
/// Why it is none that goes on.
pub fn parse(packet: &[u8], from: Ipv4Addr) -> Result<(Echo, &[u8]), Drop> {
    let first = *packet.first().ok_or(Drop::Length)?;
    if first >> 4 != 4 {
        return Err(Drop::NotIpv4);
    }
    let header: &[u8; IP_HEADER] = packet.first_chunk().ok_or(Drop::Length)?;
    if first & 0x0f != 5 {
        return Err(Drop::Options);
    }
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if length != packet.len() || length > PACKET_MAX {
        return Err(Drop::Length);
    }
    if checksum(header) != 0 {
        return Err(Drop::Malformed);
    }
    // Everything but "don't fragment": more fragments, an offset, the reserved bit.
    if header[6] & 0b1011_1111 != 0 || header[7] != 0 {
        return Err(Drop::Fragment);
    }
    if header[12..16] != from.octets() {
        return Err(Drop::Source);
    }
    if header[9] != ICMP {
        return Err(Drop::Protocol);
    }
    let destination = Ipv4Addr::new(header[16], header[17], header[18], header[19]);
    parse_echo(&packet[IP_HEADER..], destination)
}

fn parse_echo(message: &[u8], destination: Ipv4Addr) -> Result<(Echo, &[u8]), Drop> {
    let (header, payload) = message.split_first_chunk::<ECHO_HEADER>().ok_or(Drop::Length)?;
    let [kind, code, _, _, id_high, id_low, high, low] = *header;
    if (kind, code) != (ECHO_REQUEST, 0) {
        return Err(Drop::Type);
    }
    if checksum(message) != 0 {
        return Err(Drop::Malformed);
    }
    let id = u16::from_be_bytes([id_high, id_low]);
    Ok((Echo { destination, id, sequence: u16::from_be_bytes([high, low]) }, payload))
}

/// Makes the packet that answers `echo`, with the app's own payload.
#[must_use]
pub fn reply(echo: Echo, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let payload = &payload[..payload.len().min(PAYLOAD_MAX)];
    let length = IP_HEADER + ECHO_HEADER + payload.len();
    let mut packet = vec![0; length];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes());
    packet[8] = TIME_TO_LIVE;
    packet[9] = ICMP;
    packet[12..16].copy_from_slice(&echo.destination.octets());
    packet[16..20].copy_from_slice(&to.octets());
    let sum = checksum(&packet[..IP_HEADER]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    let message = &mut packet[IP_HEADER..];
    message[0] = ECHO_REPLY;
    message[4..6].copy_from_slice(&echo.id.to_be_bytes());
    message[6..8].copy_from_slice(&echo.sequence.to_be_bytes());
    message[ECHO_HEADER..].copy_from_slice(payload);
    let sum = checksum(message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// The internet checksum (RFC 1071); zero over bytes that hold their own.
fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in crate::relay::ping) const WORKLOAD: Ipv4Addr = Ipv4Addr::new(10, 64, 3, 11);
    pub(in crate::relay::ping) const ECHO: Echo =
        Echo { destination: Ipv4Addr::new(10, 64, 3, 1), id: 0x1234, sequence: 7 };

    /// A reply turned around: what a guest's kernel sends.
    pub(in crate::relay::ping) fn request(echo: Echo, payload: &[u8]) -> Vec<u8> {
        let mut packet = reply(Echo { destination: WORKLOAD, ..echo }, echo.destination, payload);
        packet[6] = 0x40;
        packet[20] = ECHO_REQUEST;
        sign(&mut packet);
        packet
    }

    /// Makes the checksums right.
    fn sign(packet: &mut [u8]) {
        packet[10..12].fill(0);
        let sum = checksum(&packet[..IP_HEADER]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet[22..24].fill(0);
        let sum = checksum(&packet[IP_HEADER..]);
        packet[22..24].copy_from_slice(&sum.to_be_bytes());
    }

    // covers: D10b
    #[test]
    fn whole_echo_requests_of_the_workload_are_taken_with_their_payload() {
        for payload in [&b""[..], b"x", &[7; 56], &[9; PAYLOAD_MAX]] {
            assert_eq!(parse(&request(ECHO, payload), WORKLOAD), Ok((ECHO, payload)), "{} bytes", payload.len());
        }
        // What Linux makes of `ping -c 1 10.64.3.1` with 2 bytes, checksums and all.
        let recorded = [
            0x45, 0, 0, 30, 0x12, 0x34, 0x40, 0, 64, 1, 0x0d, 0xf9, 10, 64, 3, 11, 10, 64, 3, 1, 8, 0, 0xe3, 0x5e,
            0x12, 0x34, 0, 7, 0x02, 0x66,
        ];
        let mut signed = recorded;
        sign(&mut signed);
        assert_eq!(parse(&signed, WORKLOAD), Ok((ECHO, &[0x02, 0x66][..])));
    }

    // covers: D10b (T24, F-IC02)
    #[test]
    fn everything_else_is_dropped_for_its_own_reason() {
        type Change = fn(&mut Vec<u8>);
        let rows: [(&str, Change, Drop); 17] = [
            ("nothing", Vec::clear, Drop::Length),
            ("IPv6", |packet| packet[0] = 0x60, Drop::NotIpv4),
            ("a truncated IP header", |packet| packet.truncate(19), Drop::Length),
            (
                "a truncated echo header",
                |packet| {
                    packet.truncate(27);
                    packet[3] = 27;
                    sign(packet);
                },
                Drop::Length,
            ),
            ("fewer bytes than the header says", |packet| packet.truncate(29), Drop::Length),
            ("more bytes than the header says", |packet| packet.push(0), Drop::Length),
            ("IP options", |packet| packet[0] = 0x46, Drop::Options),
            ("a bad checksum of IP", |packet| packet[10] ^= 1, Drop::Malformed),
            ("a bad checksum of ICMP", |packet| packet[22] ^= 1, Drop::Malformed),
            (
                "a first fragment",
                |packet| {
                    packet[6] = 0x20;
                    sign(packet);
                },
                Drop::Fragment,
            ),
            (
                "a last fragment",
                |packet| {
                    packet[7] = 1;
                    sign(packet);
                },
                Drop::Fragment,
            ),
            (
                "the reserved bit",
                |packet| {
                    packet[6] = 0x80;
                    sign(packet);
                },
                Drop::Fragment,
            ),
            (
                "another source",
                |packet| {
                    packet[15] = 12;
                    sign(packet);
                },
                Drop::Source,
            ),
            (
                "TCP",
                |packet| {
                    packet[9] = 6;
                    sign(packet);
                },
                Drop::Protocol,
            ),
            (
                "a timestamp request",
                |packet| {
                    packet[20] = 13;
                    sign(packet);
                },
                Drop::Type,
            ),
            (
                "an echo reply",
                |packet| {
                    packet[20] = 0;
                    sign(packet);
                },
                Drop::Type,
            ),
            (
                "a code",
                |packet| {
                    packet[21] = 1;
                    sign(packet);
                },
                Drop::Type,
            ),
        ];
        for (what, change, why) in rows {
            let mut packet = request(ECHO, b"payload");
            change(&mut packet);
            assert_eq!(parse(&packet, WORKLOAD), Err(why), "{what}");
        }
        let mut jumbo = request(ECHO, &[0; PAYLOAD_MAX]);
        jumbo.push(0);
        let length = u16::try_from(jumbo.len()).expect("short").to_be_bytes();
        jumbo[2..4].copy_from_slice(&length);
        sign(&mut jumbo);
        assert_eq!(parse(&jumbo, WORKLOAD), Err(Drop::Length), "one byte too many");
    }

    proptest! {
        // covers: D10b
        #[test]
        fn fuzz_smoke_no_packet_panics_and_what_parses_is_an_echo_of_the_workload(
            payload in proptest::collection::vec(any::<u8>(), 0..80),
            edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            signed: bool,
        ) {
            let mut packet = request(ECHO, &payload);
            for (at, byte) in edits {
                let at = at.index(packet.len());
                packet[at] = byte;
            }
            if signed {
                sign(&mut packet);
            }
            if let Ok((echo, payload)) = parse(&packet, WORKLOAD) {
                prop_assert_eq!(&packet[12..16], &WORKLOAD.octets());
                let answer = reply(echo, WORKLOAD, payload);
                prop_assert_eq!(checksum(&answer[..IP_HEADER]), 0);
                prop_assert_eq!(checksum(&answer[IP_HEADER..]), 0);
                prop_assert_eq!(&answer[24..], &packet[24..], "id, sequence and payload come back as they were");
            }
        }
    }
}
