//! Any bytes as messages of an ICMP connection, and as a packet of a guest's kernel: nothing panics, messages round trip, and
//! what is taken is a whole echo request of the workload, answered with its own bytes.
#![no_main]

use std::net::Ipv4Addr;

use libfuzzer_sys::fuzz_target;
use nova_proto::icmp::{LEN, Message};
use nova_relay::relay::ping::packet;

const WORKLOAD: Ipv4Addr = Ipv4Addr::new(10, 64, 3, 11);

fuzz_target!(|data: &[u8]| {
    if let Some(bytes) = data.first_chunk::<LEN>()
        && let Ok(message) = Message::parse(*bytes)
    {
        assert_eq!(message.encode(), *bytes);
    }
    if let Ok((echo, payload)) = packet::parse(data, WORKLOAD) {
        assert!(data.len() <= packet::PACKET_MAX && data[12..16] == WORKLOAD.octets());
        let reply = packet::reply(echo, WORKLOAD, payload);
        assert_eq!(reply[24..], data[24..], "id, sequence and payload come back");
    }
});
