//! The way of the app's pings: a tun device that only ICMP has a route to. The relay reads it; TCP and UDP to addresses
//! outside of the guest have no route, as before.
//!
//! ```text
//! ip tuntap add tun0 mode tun user <relay> && ip link set tun0 up
//! ip rule add ipproto icmp lookup 100 && ip route add default dev tun0 src <workload ip> table 100
//! ip rule add ipproto udp dport 1025 lookup 100
//! ```
//!
//! The last rule is for `ping` of iputils: it asks the kernel for a source address with a UDP socket to port 1025, and sends
//! nothing on it. Whatever somebody does send there is dropped by the relay.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use rtnetlink::packet_route::IpProtocol;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RulePortRange};
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder, new_connection};

use super::net::{NetError, kernel, write};
use crate::relay::ping::DEVICE;
use crate::sys;

const TUN: &str = "/dev/net/tun";
/// Groups that may open ping sockets, which need no capability.
const PING_GROUPS: &str = "/proc/sys/net/ipv4/ping_group_range";
/// Our own routing table.
const TABLE: u32 = 100;
/// Ours come before the kernel's table `main` and after `local`, so the guest's own addresses answer by themselves.
const PRIORITY: u32 = 100;
/// Where ping of iputils looks for its source address.
const SOURCE_PROBE_PORT: u16 = 1025;

/// Makes the device and the rules; returns the device. IPv6 must be off already. `group` is the app's.
///
/// # Errors
/// When the kernel has no tun devices or refuses.
pub async fn prepare(from: Ipv4Addr, relay_uid: Option<u32>, group: u32) -> Result<OwnedFd, NetError> {
    let tun = make_device(relay_uid).map_err(NetError::Tun)?;
    let (connection, handle, _) = new_connection().map_err(NetError::Open)?;
    let connection = tokio::spawn(connection);
    let done = route(&handle, from).await;
    connection.abort();
    done?;
    write(PING_GROUPS, &format!("{group} {group}"))?;
    Ok(tun)
}

fn make_device(owner: Option<u32>) -> io::Result<OwnedFd> {
    let file = OwnedFd::from(fs::OpenOptions::new().read(true).write(true).open(TUN)?);
    sys::make_tun(&file, DEVICE, owner)?;
    Ok(file)
}

async fn route(handle: &Handle, from: Ipv4Addr) -> Result<(), NetError> {
    let index = nix::net::if_::if_nametoindex(DEVICE).map_err(|error| NetError::Tun(error.into()))?;
    let up = LinkUnspec::new_with_index(index).up().build();
    handle.link().set(up).execute().await.map_err(kernel("bring tun0 up"))?;
    let default = RouteMessageBuilder::<Ipv4Addr>::new().output_interface(index).table_id(TABLE).pref_source(from);
    let default = default.scope(rtnetlink::packet_route::route::RouteScope::Link).build();
    handle.route().add(default).execute().await.map_err(kernel("add the route of pings"))?;
    let icmp = vec![RuleAttribute::IpProtocol(IpProtocol::Icmp)];
    let range = RulePortRange { start: SOURCE_PROBE_PORT, end: SOURCE_PROBE_PORT };
    let probe = vec![RuleAttribute::IpProtocol(IpProtocol::Udp), RuleAttribute::DestinationPortRange(range)];
    for selector in [icmp, probe] {
        let mut rule = handle.rule().add().v4().table_id(TABLE).priority(PRIORITY).action(RuleAction::ToTable);
        rule.message_mut().attributes.extend(selector);
        rule.execute().await.map_err(kernel("add the rule of pings; the guest's kernel must be 4.17 or later"))?;
    }
    Ok(())
}
