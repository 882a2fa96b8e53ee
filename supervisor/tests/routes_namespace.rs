//! Managed routes in network namespaces that the test makes itself: it runs itself again under `unshare`.
#![allow(clippy::panic, reason = "a test that lacks its tools fails")]

mod unshared;

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use nova_supervisor::net::routes::{HELPER_COMMAND, RouteError, RouteHelper, Routes, check};
use unshared::{INSIDE, inside, run};

const SUBNET: &str = "10.64.3.0/24";

/// The helper as the supervisor starts it, but from the real program: the test binary has no sub-commands.
fn spawn_helper(subnet: &str) -> Result<RouteHelper, RouteError> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nova-supervisor"));
    command.arg(HELPER_COMMAND).args(subnet.split(' ')).env_clear();
    RouteHelper::spawn_with(command)
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// The table `local` as `ip` shows it.
fn local_routes() -> String {
    let v4 = run("ip", &["route", "show", "table", "local"]);
    let v6 = run("ip", &["-6", "route", "show", "table", "local"]);
    format!("{}{}", String::from_utf8_lossy(&v4.stdout), String::from_utf8_lossy(&v6.stdout))
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_machines_own_namespace_is_refused() {
    // covers: A8 (T38)
    if std::fs::metadata("/proc/sys/net/core/netdev_budget").is_err() {
        println!("SKIPPED: this test does not run in the machine's own network namespace");
        return;
    }
    assert!(matches!(spawn_helper(SUBNET), Err(RouteError::InitialNamespace)));
    // A user namespace of its own changes nothing as long as the network is the machine's.
    let test = "the_machines_own_namespace_is_refused";
    if std::env::var(INSIDE).is_err() && run("unshare", &["-Ur", "true"]).status.success() {
        let myself = std::env::current_exe().expect("the test binary");
        let inner =
            Command::new("unshare").args(["-Ur", "--"]).arg(myself).args(["--exact", test]).env(INSIDE, "1").output();
        assert!(inner.expect("unshare runs").status.success());
    }
}

#[test]
fn a_namespace_that_forwards_is_refused() {
    // covers: A8 (T34)
    if inside("a_namespace_that_forwards_is_refused") {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("root of the namespace");
        assert!(matches!(spawn_helper(SUBNET), Err(RouteError::Forwarding)));
    }
}

#[test]
fn a_subnet_that_holds_an_address_of_the_machine_is_refused() {
    // covers: A8 (T38)
    if inside("a_subnet_that_holds_an_address_of_the_machine_is_refused") {
        let made = run("ip", &["link", "add", "out0", "type", "dummy"]);
        if !made.status.success() {
            println!("SKIPPED: no dummy interfaces: {}", String::from_utf8_lossy(&made.stderr));
            return;
        }
        assert!(run("ip", &["addr", "add", "10.64.3.1/24", "dev", "out0"]).status.success());
        let refused = spawn_helper(SUBNET).err();
        assert!(matches!(refused, Some(RouteError::SubnetInUse(held)) if held == ip("10.64.3.1")), "{refused:?}");
        spawn_helper("10.65.0.0/24").expect("a subnet of its own");
    }
}

#[test]
fn an_address_outside_the_subnet_is_refused() {
    // covers: A8
    if inside("an_address_outside_the_subnet_is_refused") {
        let helper = spawn_helper(SUBNET).expect("starts");
        for other in ["10.64.4.1", "127.0.0.5", "8.8.8.8", "fd00::1"] {
            assert!(matches!(helper.add(ip(other)), Err(RouteError::OutsideSubnet(_))), "{other}");
        }
        assert!(matches!(helper.remove(ip("10.64.3.9")), Err(RouteError::NotOurs(_))));
        assert!(!local_routes().contains("8.8.8.8"));
    }
}

#[test]
fn the_helper_holds_one_capability_and_cannot_get_more() {
    // covers: A8
    if inside("the_helper_holds_one_capability_and_cannot_get_more") {
        let helper = spawn_helper(SUBNET).expect("starts");
        let status = std::fs::read_to_string(format!("/proc/{}/status", helper.pid())).expect("readable");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
            line.trim().to_owned()
        };
        let net_admin = format!("{:016x}", 1 << 12);
        assert_eq!(field("CapEff:"), net_admin);
        assert_eq!(field("CapPrm:"), net_admin);
        assert_eq!(field("CapBnd:"), net_admin);
        assert_eq!((field("CapInh:"), field("CapAmb:")), ("0".repeat(16), "0".repeat(16)));
        assert_eq!((field("NoNewPrivs:"), field("Threads:")), ("1".to_owned(), "1".to_owned()));
    }
}

#[test]
fn an_added_address_can_be_bound_listened_on_and_dialled_from() {
    // covers: A8
    if inside("an_added_address_can_be_bound_listened_on_and_dialled_from") {
        let (a, b) = (ip("10.64.3.11"), ip("10.64.3.12"));
        let helper = spawn_helper(SUBNET).expect("starts");
        assert!(check(a).is_err());
        helper.add(a).expect("in the subnet");
        helper.add(a).expect("twice is fine");
        helper.add(b).expect("in the subnet");
        check(a).expect("local now");
        let listener = TcpListener::bind(SocketAddr::new(b, 8443)).expect("bound without IP_FREEBIND");
        let from = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        from.bind(&SocketAddr::new(a, 0).into()).expect("bound");
        from.connect_timeout(&SocketAddr::new(b, 8443).into(), Duration::from_secs(2)).expect("same node");
        let (_, peer) = listener.accept().expect("a connection");
        assert_eq!(peer.ip(), a, "the listener sees the calling workload");
        let mut listed = helper.list().expect("alive");
        listed.sort();
        assert_eq!(listed, [a, b]);
        helper.remove(a).expect("ours");
        assert!(UdpSocket::bind(SocketAddr::new(a, 0)).is_err(), "the kernel answers for it no more");
        assert!(TcpStream::connect_timeout(&SocketAddr::new(a, 8443), Duration::from_secs(1)).is_err());
        let migrate = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_migrate_req").unwrap_or_default();
        assert_eq!(migrate.trim(), "1", "a drain hands queued connections on");
    }
}

#[test]
fn ipv6_addresses_work_the_same() {
    // covers: A8
    if inside("ipv6_addresses_work_the_same") {
        let a = ip("fd00:64::11");
        let helper = spawn_helper("fd00:64::/64").expect("starts");
        helper.add(a).expect("in the subnet");
        check(a).expect("local now");
        helper.remove(a).expect("ours");
        assert!(check(a).is_err());
    }
}

#[test]
fn a_workload_of_both_families_has_a_route_in_each_subnet_and_none_outside_of_them() {
    // covers: A8
    if inside("a_workload_of_both_families_has_a_route_in_each_subnet_and_none_outside_of_them") {
        let helper = spawn_helper("10.64.3.0/24 fd00:64::/64").expect("starts");
        let both = [ip("10.64.3.11"), ip("fd00:64::11")];
        for one in both {
            helper.add(one).expect("in a subnet");
            check(one).expect("local now");
        }
        for other in ["10.64.4.11", "fd00:65::11"] {
            assert!(matches!(helper.add(ip(other)), Err(RouteError::OutsideSubnet(_))), "{other}");
        }
        // One that is killed leaves both, and the next one takes both away.
        let pid = nix::unistd::Pid::from_raw(i32::try_from(helper.pid()).expect("a pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("alive");
        until("the helper is gone", || matches!(helper.list(), Err(RouteError::HelperGone)));
        let next = spawn_helper("fd00:64::/64 10.64.3.0/24").expect("starts");
        assert!(both.iter().all(|one| check(*one).is_err()), "{}", local_routes());
        for one in both {
            next.add(one).expect("in a subnet");
            next.remove(one).expect("ours");
            assert!(check(one).is_err(), "{one}");
        }
    }
}

#[test]
fn the_routes_go_with_the_helper_and_the_helper_with_its_channel() {
    // covers: A8 (A14)
    if inside("the_routes_go_with_the_helper_and_the_helper_with_its_channel") {
        let helper = spawn_helper(SUBNET).expect("starts");
        helper.add(ip("10.64.3.11")).expect("in the subnet");
        assert!(local_routes().contains("10.64.3.11"));
        // A terminal's Ctrl-C reaches the helper too; it must outlive the supervisor's drain.
        let pid = nix::unistd::Pid::from_raw(i32::try_from(helper.pid()).expect("a pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("alive");
        helper.add(ip("10.64.3.12")).expect("still there");
        drop(helper);
        assert!(!local_routes().contains("10.64.3.1"), "{}", local_routes());
    }
}

#[test]
fn what_a_killed_helper_left_is_removed_by_the_next_and_a_foreign_route_is_not() {
    // covers: A8
    if inside("what_a_killed_helper_left_is_removed_by_the_next_and_a_foreign_route_is_not") {
        let helper = spawn_helper(SUBNET).expect("starts");
        helper.add(ip("10.64.3.11")).expect("in the subnet");
        let foreign = run("ip", &["route", "add", "local", "10.64.3.99/32", "dev", "lo", "table", "local"]);
        assert!(foreign.status.success(), "{}", String::from_utf8_lossy(&foreign.stderr));
        let pid = nix::unistd::Pid::from_raw(i32::try_from(helper.pid()).expect("a pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("alive");
        until("the helper is gone", || matches!(helper.add(ip("10.64.3.12")), Err(RouteError::HelperGone)));
        assert!(local_routes().contains("10.64.3.11"));
        let next = spawn_helper(SUBNET).expect("starts");
        assert!(!local_routes().contains("10.64.3.11"), "left by the first helper");
        next.add(ip("10.64.3.99")).expect("local already");
        drop(next);
        assert!(local_routes().contains("10.64.3.99"), "somebody else's");
    }
}

#[test]
fn external_routes_are_checked_and_never_changed() {
    // covers: A8
    if inside("external_routes_are_checked_and_never_changed") {
        assert!(run("ip", &["link", "set", "lo", "up"]).status.success());
        let a = ip("10.64.3.11");
        assert!(matches!(Routes::External.ensure(a), Err(RouteError::Missing(_))));
        assert!(run("ip", &["route", "add", "local", "10.64.3.11/32", "dev", "lo", "table", "local"]).status.success());
        Routes::External.ensure(a).expect("novalet added it");
        Routes::External.release(a).expect("nothing to do");
        assert!(local_routes().contains("10.64.3.11"));
    }
}
