//! Local routes of the node's addresses, when novalet adds them (`routes = "external"` in the supervisor; settled points K1,
//! K6, K10): from the moment at which a supervisor holds the pod's SVID until the endpoint is removed. With `managed` the
//! supervisor's own helper does this, and we touch nothing.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use nix::sched::{CloneFlags, setns};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType};

/// The `local` table.
const TABLE_LOCAL: u8 = 255;
/// Index of `lo` in every network namespace.
const LOOPBACK: u32 = 1;

/// Who adds routes, and where.
#[derive(Debug, Clone)]
pub enum Routes {
    /// The supervisor.
    Managed,
    /// We, in the supervisor's network namespace: a file like `/run/netns/node`, or our own without one.
    External(Option<PathBuf>),
}

/// Why a route could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The namespace or the runtime.
    #[error("cannot enter the supervisor's network namespace: name it with --supervisor-netns")]
    Namespace(#[source] io::Error),
    /// The kernel said no.
    #[error("the kernel refuses the local route: run with CAP_NET_ADMIN there, with lo up")]
    Kernel(#[source] rtnetlink::Error),
}

impl Routes {
    /// Adds `local <ip>/32 dev lo table local`; says whether a route is ours now. One that is there already stays.
    ///
    /// # Errors
    /// When the namespace cannot be entered or the kernel refuses.
    pub async fn add(&self, ip: IpAddr) -> Result<bool, RouteError> {
        self.change(ip, Change::Add).await
    }

    /// Removes the route again, if it is still there.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub async fn remove(&self, ip: IpAddr) -> Result<bool, RouteError> {
        self.change(ip, Change::Remove).await
    }

    async fn change(&self, ip: IpAddr, change: Change) -> Result<bool, RouteError> {
        let Self::External(namespace) = self else { return Ok(false) };
        let namespace = namespace.clone();
        let (done, result) = tokio::sync::oneshot::channel();
        // A thread of its own: entering a namespace holds for the thread, and must not hold for anything else.
        std::thread::spawn(move || {
            let _ = done.send(in_namespace(namespace, ip, change));
        });
        result.await.unwrap_or_else(|_| Err(RouteError::Namespace(io::ErrorKind::BrokenPipe.into())))
    }
}

#[derive(Clone, Copy)]
enum Change {
    Add,
    Remove,
}

fn in_namespace(namespace: Option<PathBuf>, ip: IpAddr, change: Change) -> Result<bool, RouteError> {
    if let Some(path) = namespace {
        let file = File::open(path).map_err(RouteError::Namespace)?;
        setns(file, CloneFlags::CLONE_NEWNET).map_err(|error| RouteError::Namespace(error.into()))?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(RouteError::Namespace)?.block_on(async {
        let (connection, netlink, _) = rtnetlink::new_connection().map_err(RouteError::Namespace)?;
        tokio::spawn(connection);
        let (result, already) = match change {
            Change::Add => (netlink.route().add(route(ip)).execute().await, nix::errno::Errno::EEXIST),
            Change::Remove => (netlink.route().del(route(ip)).execute().await, nix::errno::Errno::ESRCH),
        };
        match result {
            Ok(()) => Ok(true),
            Err(rtnetlink::Error::NetlinkError(message)) if message.raw_code() == -(already as i32) => Ok(false),
            Err(error) => Err(RouteError::Kernel(error)),
        }
    })
}

fn route(ip: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.table = TABLE_LOCAL;
    message.header.protocol = RouteProtocol::Static;
    message.header.scope = RouteScope::Host;
    message.header.kind = RouteType::Local;
    message.header.address_family = if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.header.destination_prefix_length = if ip.is_ipv4() { 32 } else { 128 };
    message.attributes.push(RouteAttribute::Destination(ip.into()));
    message.attributes.push(RouteAttribute::Oif(LOOPBACK));
    message
}
