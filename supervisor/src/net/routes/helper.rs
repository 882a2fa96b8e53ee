//! The helper process: the only one that holds `CAP_NET_ADMIN`. Its input is the socket pair on its standard input; it ends
//! when that closes, and takes the routes it added along.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::ExitCode;

use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};
use rustix::thread::CapabilitySet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};

use super::namespace::{Evidence, refuse_forwarding};
use super::wire::{LEN, NO_IP, Op, Reply, Request, Status};
use crate::net::privileges;

/// `lo` is the first interface of every network namespace.
const LOOPBACK: u32 = 1;
/// Table `local`.
const TABLE_LOCAL: u8 = 255;
/// Marks our routes in the kernel's table (`proto` in `ip route`), so that the next helper finds what a killed one left.
const PROTOCOL: u8 = 0x4e;
/// Lets the kernel hand queued connections of a closing listener to the others: without it a drain resets them.
const MIGRATE: &str = "/proc/sys/net/ipv4/tcp_migrate_req";

/// Runs the helper until its standard input closes.
#[must_use]
pub fn run(subnets: Vec<IpNet>) -> ExitCode {
    // Looked at first: without ptrace rights pid 1 cannot be seen.
    let evidence = Evidence::gather();
    let done = match privileges::keep_only(CapabilitySet::NET_ADMIN, None) {
        Ok(()) => serve(subnets, evidence),
        Err(error) => Err(io::Error::other(error)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("{error}"));
            ExitCode::FAILURE
        }
    }
}

fn serve(subnets: Vec<IpNet>, evidence: Evidence) -> io::Result<()> {
    let channel = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    channel.set_nonblocking(true)?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        // A terminal or service manager signals the whole group; the routes must outlive the supervisor's drain.
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()];
        let _ignored = kinds.into_iter().map(signal).collect::<io::Result<Vec<_>>>()?;
        let mut channel = UnixStream::from_std(channel)?;
        let (connection, netlink, _) = rtnetlink::new_connection()?;
        let _connection = tokio::spawn(connection);
        let mut routes = OwnRoutes { netlink, subnets, added: BTreeSet::new() };
        let start = routes.start(evidence).await;
        let refused = start.status != Status::Ok;
        channel.write_all(&start.encode()).await?;
        if refused {
            return Ok(());
        }
        let served = answer_requests(&mut channel, &mut routes).await;
        routes.remove_all().await;
        served
    })
}

async fn answer_requests(channel: &mut UnixStream, routes: &mut OwnRoutes) -> io::Result<()> {
    let mut bytes = [0; LEN];
    loop {
        match channel.read_exact(&mut bytes).await {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let reply = match Request::parse(&bytes) {
            Some(Request { op: Op::Add, ip }) => routes.add(ip).await,
            Some(Request { op: Op::Remove, ip }) => routes.remove(ip).await,
            Some(Request { op: Op::List, .. }) => {
                for ip in &routes.added {
                    channel.write_all(&Reply::new(Status::Item, *ip).encode()).await?;
                }
                Reply::new(Status::Ok, NO_IP)
            }
            None => Reply::new(Status::Malformed, NO_IP),
        };
        channel.write_all(&reply.encode()).await?;
    }
}

/// The routes of this helper.
struct OwnRoutes {
    netlink: Handle,
    subnets: Vec<IpNet>,
    added: BTreeSet<IpAddr>,
}

impl OwnRoutes {
    /// Checks the place, then prepares it.
    async fn start(&self, evidence: Evidence) -> Reply {
        if !evidence.is_other_namespace() {
            return Reply::new(Status::InitialNamespace, NO_IP);
        }
        if refuse_forwarding().is_err() {
            return Reply::new(Status::Forwarding, NO_IP);
        }
        match self.machine_address_in_subnet().await {
            Ok(Some(ip)) => return Reply::new(Status::SubnetInUse, ip),
            Ok(None) => {}
            Err(error) => return kernel_reply(NO_IP, &error),
        }
        if let Err(error) = self.prepare().await {
            return kernel_reply(NO_IP, &error);
        }
        Reply::new(Status::Ok, NO_IP)
    }

    async fn machine_address_in_subnet(&self) -> Result<Option<IpAddr>, rtnetlink::Error> {
        let mut addresses = self.netlink.address().get().execute();
        while let Some(message) = addresses.try_next().await? {
            let held = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Address(ip) | AddressAttribute::Local(ip) if self.holds(ip) => Some(*ip),
                _ => None,
            });
            if message.header.index != LOOPBACK && held.is_some() {
                return Ok(held);
            }
        }
        Ok(None)
    }

    /// `lo` up, connection migration on, nothing left of a helper that was killed.
    async fn prepare(&self) -> Result<(), rtnetlink::Error> {
        self.netlink.link().set(LinkUnspec::new_with_index(LOOPBACK).up().build()).execute().await?;
        if let Err(error) = std::fs::write(MIGRATE, "1") {
            say(format_args!("{MIGRATE} cannot be set ({error}); a drain may reset connections"));
        }
        for ip in self.leftovers().await? {
            say(format_args!("removing the route of {ip}, left by a helper that was killed"));
            self.netlink.route().del(route_message(ip)).execute().await?;
        }
        Ok(())
    }

    fn holds(&self, ip: &IpAddr) -> bool {
        self.subnets.iter().any(|subnet| subnet.contains(ip))
    }

    async fn leftovers(&self) -> Result<Vec<IpAddr>, rtnetlink::Error> {
        let mut found = Vec::new();
        for subnet in &self.subnets {
            let query = match subnet {
                IpNet::V4(_) => RouteMessageBuilder::<std::net::Ipv4Addr>::new().build(),
                IpNet::V6(_) => RouteMessageBuilder::<std::net::Ipv6Addr>::new().build(),
            };
            let mut routes = self.netlink.route().get(query).execute();
            while let Some(route) = routes.try_next().await? {
                if route.header.protocol == RouteProtocol::Other(PROTOCOL) && route.header.table == TABLE_LOCAL {
                    found.extend(destination(&route).filter(|ip| subnet.contains(ip)));
                }
            }
        }
        Ok(found)
    }

    async fn add(&mut self, ip: IpAddr) -> Reply {
        if !self.holds(&ip) || ip.is_unspecified() || ip.is_multicast() {
            return Reply::new(Status::OutsideSubnet, ip);
        }
        if self.added.contains(&ip) {
            return Reply::new(Status::Ok, ip);
        }
        match self.netlink.route().add(route_message(ip)).execute().await {
            Ok(()) => {
                self.added.insert(ip);
                Reply::new(Status::Ok, ip)
            }
            // Somebody else's route does the same; it is not ours to remove.
            Err(error) if errno(&error) == nix::libc::EEXIST => Reply::new(Status::Ok, ip),
            Err(error) => kernel_reply(ip, &error),
        }
    }

    async fn remove(&mut self, ip: IpAddr) -> Reply {
        if !self.added.contains(&ip) {
            return Reply::new(Status::NotOurs, ip);
        }
        match self.netlink.route().del(route_message(ip)).execute().await {
            Err(error) if errno(&error) != nix::libc::ESRCH => kernel_reply(ip, &error),
            // ESRCH: somebody removed it already.
            Ok(()) | Err(_) => {
                self.added.remove(&ip);
                Reply::new(Status::Ok, ip)
            }
        }
    }

    async fn remove_all(&mut self) {
        for ip in std::mem::take(&mut self.added) {
            if let Err(error) = self.netlink.route().del(route_message(ip)).execute().await {
                say(format_args!("the route of {ip} stays: {error}"));
            }
        }
    }
}

/// `local <ip> dev lo table local proto 78 scope host`.
fn route_message(ip: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.table = TABLE_LOCAL;
    message.header.protocol = RouteProtocol::Other(PROTOCOL);
    message.header.scope = RouteScope::Host;
    message.header.kind = RouteType::Local;
    message.header.address_family = match ip {
        IpAddr::V4(_) => rtnetlink::packet_route::AddressFamily::Inet,
        IpAddr::V6(_) => rtnetlink::packet_route::AddressFamily::Inet6,
    };
    message.header.destination_prefix_length = if ip.is_ipv4() { 32 } else { 128 };
    message.attributes.push(RouteAttribute::Destination(ip.into()));
    message.attributes.push(RouteAttribute::Oif(LOOPBACK));
    message
}

fn destination(route: &RouteMessage) -> Option<IpAddr> {
    route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        RouteAttribute::Destination(RouteAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    })
}

fn kernel_reply(ip: IpAddr, error: &rtnetlink::Error) -> Reply {
    Reply { status: Status::Kernel, errno: errno(error), ip }
}

/// The kernel's error number; EIO for what is not the kernel's answer.
fn errno(error: &rtnetlink::Error) -> i32 {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.raw_code().saturating_abs(),
        _ => nix::libc::EIO,
    }
}

/// A line for people. When it cannot be written it is lost, and the routes are kept all the same.
fn say(what: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "nova-supervisor route helper: {what}");
}
