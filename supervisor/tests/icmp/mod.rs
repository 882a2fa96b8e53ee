//! A namespace whose wire is the loopback interface, and everything of ICMP that is on it.

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::data::PATIENCE;

const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;

/// An echo message as it is on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Echoed {
    pub(crate) from: Ipv4Addr,
    pub(crate) to: Ipv4Addr,
    pub(crate) id: u16,
    pub(crate) sequence: u16,
    pub(crate) payload: Vec<u8>,
}

impl Echoed {
    /// As the answer of who was asked.
    pub(crate) fn turned(&self) -> Self {
        Self { from: self.to, to: self.from, ..self.clone() }
    }
}

/// Writes a setting of the namespace.
pub(crate) fn set(path: &str, value: &str) {
    std::fs::write(path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// Sees every ICMP packet of the namespace, and can send as anybody.
pub(crate) struct Wire {
    socket: Socket,
}

impl Wire {
    pub(crate) fn tap() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).expect("root of the namespace");
        socket.set_nonblocking(true).expect("set");
        socket.set_header_included_v4(true).expect("set");
        Self { socket }
    }

    /// The echo requests that came since.
    pub(crate) fn requests(&self) -> Vec<Echoed> {
        let mut requests = Vec::new();
        while let Some(packet) = self.packet() {
            if packet[20] == ECHO_REQUEST {
                requests.push(parse(&packet));
            }
        }
        requests
    }

    /// Waits for so many echo requests, and takes no more.
    pub(crate) fn requests_until(&self, count: usize) -> Vec<Echoed> {
        let (mut requests, deadline) = (Vec::new(), Instant::now() + PATIENCE);
        while requests.len() < count {
            assert!(Instant::now() < deadline, "only {} of {count} requests: {requests:?}", requests.len());
            match self.packet() {
                Some(packet) if packet[20] == ECHO_REQUEST => requests.push(parse(&packet)),
                Some(_) => {}
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        requests
    }

    /// Whether no request came since. What the supervisor had sent would be here: loopback delivers at once.
    pub(crate) fn is_quiet(&self) -> bool {
        self.requests().is_empty()
    }

    /// Sends an echo reply.
    pub(crate) fn send(&self, answer: &Echoed) {
        let length = u16::try_from(28 + answer.payload.len()).expect("short");
        let mut packet = vec![0x45, 0];
        packet.extend(length.to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, 1, 0, 0]);
        packet.extend(answer.from.octets());
        packet.extend(answer.to.octets());
        let mut message = vec![ECHO_REPLY, 0, 0, 0];
        message.extend(answer.id.to_be_bytes());
        message.extend(answer.sequence.to_be_bytes());
        message.extend(&answer.payload);
        let sum = checksum(&message).to_be_bytes();
        message[2..4].copy_from_slice(&sum);
        packet.extend(message);
        self.socket.send_to(&packet, &SockAddr::from(SocketAddr::from((answer.to, 0)))).expect("sent");
    }

    fn packet(&self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 4096];
        match (&self.socket).read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => panic!("the wire: {error}"),
            // Always with the header of IP, which has no options here, and one of an echo.
            Ok(length) => {
                buffer.truncate(length);
                assert!(length >= 28 && buffer[0] == 0x45, "{buffer:?}");
                Some(buffer)
            }
        }
    }
}

fn parse(packet: &[u8]) -> Echoed {
    let address = |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
    let number = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    Echoed { from: address(12), to: address(16), id: number(24), sequence: number(26), payload: packet[28..].to_vec() }
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}
