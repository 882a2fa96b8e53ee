//! Where am I: refusals that keep a supervisor from taking over a machine's own network.

use std::fs;
use std::io;
use std::net::Ipv6Addr;

use super::RouteError;

/// Inode of the initial user namespace: fixed in the kernel's ABI (`PROC_USER_INIT_INO`).
const INITIAL_USER_NAMESPACE: &str = "user:[4026531837]";
/// Inode of the initial pid namespace (`PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";
/// The kernel registers this file in the initial network namespace only.
const INITIAL_ONLY: &str = "/proc/sys/net/core/netdev_budget";
/// The kernel registers this file in every network namespace.
const EVERYWHERE: &str = "/proc/sys/net/core/somaxconn";
/// Flag of local routes in `/proc/net/ipv6_route`.
const RTF_LOCAL: u32 = 0x8000_0000;

/// What can be seen of the network namespace this process is in. Gathered while the process may still look at pid 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Evidence {
    /// A file exists that only the initial namespace has; `None`: such files cannot be seen here.
    initial_only_file: Option<bool>,
    /// The machine's pid 1 is in the same namespace; `None`: it cannot be seen, or the pid 1 seen is a container's.
    with_machine_init: Option<bool>,
    /// We are in a user namespace of our own: the kernel itself refuses any change of the initial network namespace.
    own_user_namespace: bool,
}

impl Evidence {
    pub(super) fn gather() -> Self {
        Self {
            initial_only_file: exists(EVERYWHERE).filter(|seen| *seen).and_then(|_| exists(INITIAL_ONLY)),
            with_machine_init: same_namespace_as_machine_init(),
            own_user_namespace: link("/proc/self/ns/user").is_some_and(|user| user != INITIAL_USER_NAMESPACE),
        }
    }

    /// One sign of the initial namespace is enough to refuse, and without any sign of another one it is refused, too.
    pub(super) fn is_other_namespace(self) -> bool {
        if self.initial_only_file == Some(true) || self.with_machine_init == Some(true) {
            return false;
        }
        self.initial_only_file == Some(false) || self.with_machine_init == Some(false) || self.own_user_namespace
    }
}

/// Refuses the machine's own network namespace (T38).
///
/// # Errors
/// [`RouteError::InitialNamespace`], also when it cannot be told.
pub fn refuse_initial_namespace() -> Result<(), RouteError> {
    if Evidence::gather().is_other_namespace() { Ok(()) } else { Err(RouteError::InitialNamespace) }
}

/// Refuses a network namespace that forwards packets (T34). What cannot be read does not exist in this kernel.
///
/// # Errors
/// [`RouteError::Forwarding`].
pub fn refuse_forwarding() -> Result<(), RouteError> {
    let forwards = ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"]
        .into_iter()
        .any(|path| fs::read_to_string(path).is_ok_and(|value| value.trim() != "0"));
    if forwards { Err(RouteError::Forwarding) } else { Ok(()) }
}

/// Whether the kernel has a local route of exactly `ip`.
pub(super) fn has_local_route(ip: Ipv6Addr) -> bool {
    fs::read_to_string("/proc/net/ipv6_route").is_ok_and(|table| lists_local_route(&table, ip))
}

/// Columns: destination, its prefix length, source, its prefix length, next hop, metric, references, use, flags, device.
fn lists_local_route(table: &str, ip: Ipv6Addr) -> bool {
    let wanted = hex::encode(ip.octets());
    table.lines().any(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let [destination, "80", _, _, _, _, _, _, flags, "lo"] = columns.as_slice() else { return false };
        *destination == wanted && u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & RTF_LOCAL != 0)
    })
}

/// The pid 1 that a container sees is not the machine's, so it proves nothing.
fn same_namespace_as_machine_init() -> Option<bool> {
    if link("/proc/self/ns/pid")? != INITIAL_PID_NAMESPACE {
        return None;
    }
    Some(link("/proc/1/ns/net")? == link("/proc/self/ns/net")?)
}

fn link(path: &str) -> Option<String> {
    fs::read_link(path).ok().map(|target| target.to_string_lossy().into_owned())
}

/// `None` when it cannot be told.
fn exists(path: &str) -> Option<bool> {
    match fs::metadata(path) {
        Ok(_) => Some(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(false),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(file: Option<bool>, init: Option<bool>, own_user_namespace: bool) -> bool {
        Evidence { initial_only_file: file, with_machine_init: init, own_user_namespace }.is_other_namespace()
    }

    #[test]
    fn one_sign_of_the_initial_namespace_is_enough_to_refuse() {
        for own_user_namespace in [false, true] {
            assert!(!evidence(Some(true), Some(false), own_user_namespace));
            assert!(!evidence(Some(false), Some(true), own_user_namespace));
            assert!(!evidence(Some(true), None, own_user_namespace));
        }
    }

    #[test]
    fn no_sign_at_all_is_refused_too() {
        assert!(!evidence(None, None, false));
    }

    #[test]
    fn a_namespace_of_its_own_is_recognised_by_any_sign() {
        assert!(evidence(Some(false), None, false), "container: pid 1 proves nothing");
        assert!(evidence(None, Some(false), false), "no sysctls mounted");
        assert!(evidence(None, None, true), "rootless: pid 1 is unreadable, the kernel guards the initial namespace");
        assert!(evidence(Some(false), None, true));
    }

    #[test]
    fn local_ipv6_routes_are_found_in_the_kernels_table() {
        let table = "\
fd000000000000000000000000000001 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000001 00000000 80200001       lo
fd000000000000000000000000000002 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 00000001     eth0
";
        assert!(lists_local_route(table, "fd00::1".parse().expect("valid")));
        assert!(!lists_local_route(table, "fd00::2".parse().expect("valid")), "a route to a neighbour is not local");
        assert!(!lists_local_route(table, "fd00::3".parse().expect("valid")));
    }
}
