//! Who makes a workload's address local to this network namespace: `local <ip>/32 dev lo table local`.
//!
//! The process that parses hostile bytes must not be able to change routes, so with `managed` routes a helper process does
//! it: started before anything else, it speaks rtnetlink on one side and fixed-size messages on a socket pair on the other,
//! knows the delegated subnets, and ends (taking its routes along) when the socket pair closes. With `external` routes novalet adds
//! them and we only look.
//!
//! ```text
//!  supervisor --(Request: add/remove/list ip)--> helper --rtnetlink--> kernel
//!             <-(Reply: ok / why not)-----------
//! ```

mod helper;
mod namespace;
mod wire;

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;

use self::wire::{Op, Reply, Request, Status};

pub use self::helper::run as run_helper;
pub use self::namespace::{refuse_forwarding, refuse_initial_namespace};

/// Sub-command of this program that becomes the helper; not for people.
pub const HELPER_COMMAND: &str = "route-helper";
/// The helper answers in microseconds; one that takes this long is stuck.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// How long the helper may take to remove its routes at the end.
const EXIT_DEADLINE: Duration = Duration::from_secs(2);

/// Why an address is not, or cannot be made, local.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The helper process does not start.
    #[error("the route helper does not start")]
    Spawn(#[source] io::Error),
    /// T38: in the machine's own namespace the machine would answer for workload addresses.
    #[error(
        "managed routes are refused in the machine's own network namespace, or where it cannot be told apart; start the \
         supervisor in a network namespace of its own, or set [routes] mode = \"external\""
    )]
    InitialNamespace,
    /// T34: a packet that arrives for an address without a route would be sent on.
    #[error(
        "this network namespace forwards packets; set net.ipv4.ip_forward=0 and net.ipv6.conf.all.forwarding=0 in it: the \
         supervisor never routes"
    )]
    Forwarding,
    /// T38: the subnet is not delegated to us alone.
    #[error(
        "the subnet of [routes] holds {0}, an address of this machine; give the supervisor a subnet of its own, and the \
         management interface an address outside of it"
    )]
    SubnetInUse(IpAddr),
    /// An address that is not ours.
    #[error("{0} is outside the delegated subnet; correct workload_ip and additional_ips, or the subnet in [routes]")]
    OutsideSubnet(IpAddr),
    /// A route that this helper did not add.
    #[error("the route of {0} was not added by this supervisor and is left alone")]
    NotOurs(IpAddr),
    /// The kernel says no.
    #[error("the kernel refuses the route of {ip}: {why} (managed routes need CAP_NET_ADMIN in this namespace)")]
    Kernel {
        /// Which address.
        ip: IpAddr,
        /// What the kernel says.
        why: io::Error,
    },
    /// The helper does not answer any more.
    #[error("the route helper is gone; restart the supervisor")]
    HelperGone,
    /// External routes: nobody added it.
    #[error("{0} is not local to this network namespace; novalet must run: ip route add local {0} dev lo table local")]
    Missing(IpAddr),
}

/// Who adds routes, as configured.
pub enum Routes {
    /// The helper.
    Managed(RouteHelper),
    /// novalet; we check.
    External,
    /// Nobody: the addresses are local anyway.
    None,
}

impl Routes {
    /// Makes `ip` local, or checks that it is. Blocks for a moment.
    ///
    /// # Errors
    /// When the address is not local afterwards.
    pub fn ensure(&self, ip: IpAddr) -> Result<(), RouteError> {
        match self {
            Self::Managed(helper) => helper.add(ip),
            Self::External => check(ip),
            Self::None => Ok(()),
        }
    }

    /// Ends what [`Routes::ensure`] began. Call it only when no connection of the address is left: without a route they
    /// hang instead of ending.
    ///
    /// # Errors
    /// When the route stays.
    pub fn release(&self, ip: IpAddr) -> Result<(), RouteError> {
        match self {
            Self::Managed(helper) => helper.remove(ip),
            Self::External | Self::None => Ok(()),
        }
    }
}

/// The process that holds `CAP_NET_ADMIN`.
pub struct RouteHelper {
    /// `None` after an answer went missing: what comes next on the socket would answer an older question.
    channel: Mutex<Option<UnixStream>>,
    child: Mutex<Child>,
}

impl RouteHelper {
    /// Starts this program again as helper for `subnets`. Must run before threads start and before privileges are dropped.
    ///
    /// # Errors
    /// When the helper refuses the place it is started in, or cannot start.
    pub fn spawn(subnets: &[IpNet]) -> Result<Self, RouteError> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(HELPER_COMMAND).args(subnets.iter().map(ToString::to_string)).env_clear().current_dir("/");
        Self::spawn_with(command)
    }

    /// Starts `command`, which must call [`run_helper`] with the subnets.
    ///
    /// # Errors
    /// As [`RouteHelper::spawn`].
    pub fn spawn_with(mut command: Command) -> Result<Self, RouteError> {
        let (ours, theirs) = UnixStream::pair().map_err(RouteError::Spawn)?;
        ours.set_read_timeout(Some(ANSWER_DEADLINE)).map_err(RouteError::Spawn)?;
        ours.set_write_timeout(Some(ANSWER_DEADLINE)).map_err(RouteError::Spawn)?;
        let child = command.stdin(OwnedFd::from(theirs)).spawn().map_err(RouteError::Spawn)?;
        // `command` still holds the helper's end of the pair; without this the helper's death would go unnoticed.
        drop(command);
        let helper = Self { channel: Mutex::new(Some(ours)), child: Mutex::new(child) };
        helper.with_channel(|channel| read_answer(channel).map(drop))?;
        Ok(helper)
    }

    /// Makes `ip` local. Doing it twice is fine.
    ///
    /// # Errors
    /// When the helper or the kernel refuses.
    pub fn add(&self, ip: IpAddr) -> Result<(), RouteError> {
        self.ask(Request { op: Op::Add, ip }).map(drop)
    }

    /// Removes the route of `ip`, if this helper added it.
    ///
    /// # Errors
    /// When it did not, or the kernel refuses.
    pub fn remove(&self, ip: IpAddr) -> Result<(), RouteError> {
        self.ask(Request { op: Op::Remove, ip }).map(drop)
    }

    /// The addresses that this helper made local.
    ///
    /// # Errors
    /// When the helper is gone.
    pub fn list(&self) -> Result<Vec<IpAddr>, RouteError> {
        self.ask(Request { op: Op::List, ip: wire::NO_IP })
    }

    /// Process id of the helper.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).id()
    }

    fn ask(&self, request: Request) -> Result<Vec<IpAddr>, RouteError> {
        self.with_channel(|channel| {
            channel.write_all(&request.encode()).map_err(|_| RouteError::HelperGone)?;
            read_answer(channel)
        })
    }

    fn with_channel<T>(
        &self,
        exchange: impl FnOnce(&mut UnixStream) -> Result<T, RouteError>,
    ) -> Result<T, RouteError> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let result = exchange(channel.as_mut().ok_or(RouteError::HelperGone)?);
        if matches!(result, Err(RouteError::HelperGone)) {
            *channel = None;
        }
        result
    }
}

/// Reads items until the final reply.
fn read_answer(channel: &mut UnixStream) -> Result<Vec<IpAddr>, RouteError> {
    let mut items = Vec::new();
    loop {
        let mut bytes = [0; wire::LEN];
        channel.read_exact(&mut bytes).map_err(|_| RouteError::HelperGone)?;
        let reply = Reply::parse(&bytes).ok_or(RouteError::HelperGone)?;
        match reply.status {
            Status::Item => items.push(reply.ip),
            Status::Ok => return Ok(items),
            Status::InitialNamespace => return Err(RouteError::InitialNamespace),
            Status::Forwarding => return Err(RouteError::Forwarding),
            Status::SubnetInUse => return Err(RouteError::SubnetInUse(reply.ip)),
            Status::OutsideSubnet => return Err(RouteError::OutsideSubnet(reply.ip)),
            Status::NotOurs => return Err(RouteError::NotOurs(reply.ip)),
            Status::Malformed => return Err(RouteError::HelperGone),
            Status::Kernel => {
                return Err(RouteError::Kernel { ip: reply.ip, why: io::Error::from_raw_os_error(reply.errno) });
            }
        }
    }
}

impl Drop for RouteHelper {
    /// Closes the channel, which ends the helper, and waits until it removed its routes.
    fn drop(&mut self) {
        *self.channel.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        let deadline = Instant::now() + EXIT_DEADLINE;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                tracing::warn!(pid = child.id(), "the route helper does not end; its routes stay");
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Whether `ip` is local to this namespace.
///
/// # Errors
/// [`RouteError::Missing`] when it is not.
pub fn check(ip: IpAddr) -> Result<(), RouteError> {
    let is_local = match ip {
        IpAddr::V4(_) => can_bind(ip),
        // IPv6 refuses to bind an address that only a route makes local, so the route is looked up.
        IpAddr::V6(ip) => can_bind(ip.into()) || namespace::has_local_route(ip),
    };
    if is_local { Ok(()) } else { Err(RouteError::Missing(ip)) }
}

/// Without `IP_FREEBIND` the kernel binds local addresses only.
fn can_bind(ip: IpAddr) -> bool {
    std::net::UdpSocket::bind(SocketAddr::new(ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_route_is_missing_and_the_text_says_how_to_add_it() {
        let error = check("192.0.2.77".parse().expect("valid")).expect_err("no machine has this documentation address");
        assert!(error.to_string().contains("ip route add local 192.0.2.77 dev lo table local"), "{error}");
        assert!(check("2001:db8::77".parse().expect("valid")).is_err());
    }

    #[test]
    fn loopback_needs_no_route() {
        assert!(check("127.0.0.9".parse().expect("valid")).is_ok());
        assert!(Routes::None.ensure("192.0.2.77".parse().expect("valid")).is_ok());
        assert!(Routes::External.release("192.0.2.77".parse().expect("valid")).is_ok());
    }

    #[test]
    fn a_helper_that_dies_at_once_is_reported_and_reaped() {
        let refused = RouteHelper::spawn_with(Command::new("/bin/false"));
        assert!(matches!(refused, Err(RouteError::HelperGone)));
    }
}
