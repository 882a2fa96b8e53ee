//! The guest's network: `lo` and nothing else. Any other live interface is a way around the supervisor, so the guest does
//! not start with one.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use rtnetlink::{Handle, LinkUnspec, new_connection};

/// Every interface's switch and the one that new interfaces inherit.
const IPV6_SWITCHES: [&str; 2] =
    ["/proc/sys/net/ipv6/conf/all/disable_ipv6", "/proc/sys/net/ipv6/conf/default/disable_ipv6"];
const LOWEST_FREE_PORT: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";

/// Why the guest has no network.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// No netlink socket.
    #[error("cannot talk to the kernel about interfaces: {0}")]
    Open(#[source] io::Error),
    /// The kernel refused.
    #[error("cannot {what}: {source}; nova-init needs a network namespace of its own (unshare -Urn, or a microVM)")]
    Kernel {
        /// What.
        what: String,
        /// Why.
        source: rtnetlink::Error,
    },
    /// There is a way around the supervisor.
    #[error(
        "the guest has the network interface {0} beside lo: remove it (no NIC in a microVM, a network namespace of its \
         own for a process guest), it would be a way around the supervisor"
    )]
    OtherInterface(String),
    /// There is no lo.
    #[error("the guest has no interface lo")]
    NoLoopback,
    /// No device for pings.
    #[error(
        "cannot make the device of the app's pings: {0}; the guest's kernel needs tun devices (CONFIG_TUN, or the module \
         tun in `modules`), or set icmp to false"
    )]
    Tun(#[source] io::Error),
    /// A setting of the kernel.
    #[error("cannot write {path}: {source}")]
    Setting {
        /// Its file.
        path: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Brings `lo` up with the workload's address, without IPv6. `lowest_port` is the lowest port below 1024 that an
/// unprivileged process of this guest must be able to bind.
///
/// # Errors
/// When the kernel refuses or the guest has another interface.
pub async fn prepare(workload_ip: Ipv4Addr, lowest_port: Option<u16>) -> Result<(), NetError> {
    let (connection, handle, _) = new_connection().map_err(NetError::Open)?;
    let connection = tokio::spawn(connection);
    let done = prepare_with(&handle, workload_ip).await;
    connection.abort();
    done?;
    disable_ipv6()?;
    if let Some(port) = lowest_port {
        write(LOWEST_FREE_PORT, &port.to_string())?;
    }
    Ok(())
}

async fn prepare_with(handle: &Handle, workload_ip: Ipv4Addr) -> Result<(), NetError> {
    let links: Vec<LinkMessage> =
        handle.link().get().execute().try_collect().await.map_err(kernel("list the interfaces"))?;
    if let Some(other) = links.iter().find(|link| is_a_way_out(link)) {
        return Err(NetError::OtherInterface(name_of(other)));
    }
    let lo = links.iter().find(|link| is_loopback(link)).ok_or(NetError::NoLoopback)?.header.index;
    let up = LinkUnspec::new_with_index(lo).up().build();
    handle.link().set(up).execute().await.map_err(kernel("bring lo up"))?;
    let add = handle.address().add(lo, workload_ip.into(), 32).replace();
    add.execute().await.map_err(kernel(&format!("add {workload_ip}/32 to lo")))
}

/// Kernels with built-in tunnels have devices that are down and lead nowhere; those are harmless without CAP_NET_ADMIN.
fn is_a_way_out(link: &LinkMessage) -> bool {
    let live = link.header.flags.contains(LinkFlags::Up) || link.header.link_layer_type == LinkLayerType::Ether;
    live && !is_loopback(link)
}

fn is_loopback(link: &LinkMessage) -> bool {
    link.header.flags.contains(LinkFlags::Loopback)
}

fn name_of(link: &LinkMessage) -> String {
    let name = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    });
    name.unwrap_or_else(|| format!("number {}", link.header.index))
}

fn disable_ipv6() -> Result<(), NetError> {
    // A kernel without IPv6 has no switch.
    IPV6_SWITCHES.into_iter().filter(|path| Path::new(path).exists()).try_for_each(|path| write(path, "1"))
}

pub(super) fn write(path: &'static str, value: &str) -> Result<(), NetError> {
    fs::write(path, value).map_err(|source| NetError::Setting { path, source })
}

pub(super) fn kernel(what: &str) -> impl FnOnce(rtnetlink::Error) -> NetError {
    let what = what.to_owned();
    move |source| NetError::Kernel { what, source }
}
