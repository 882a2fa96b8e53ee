//! The network of a run: node, world and outside, with the addresses of the demo.

use std::path::Path;

use super::spawn::{Net, Proc, command, run};

/// Workload addresses come from here.
pub const SUBNET: &str = "10.64.3.0/26";
/// The node's own address, outside of the subnet: the supervisor refuses to manage routes of its own address.
pub const MANAGEMENT: &str = "10.64.99.2";
/// The resolver in the world.
pub const DNS: &str = "10.64.99.53";
/// The stub of api.stripe.com.
pub const STRIPE: &str = "10.64.99.80";
/// The server that speaks first.
pub const TCP_FIRST: &str = "10.64.99.90";
/// The caller that knows nothing of us.
pub const OUTSIDE: &str = "10.64.98.10";

/// The namespaces, alive as long as this value.
pub struct Network {
    /// Supervisor and novalet-ref.
    pub node: Net,
    /// Resolver, upstreams, and the router between the others.
    pub world: Net,
    /// External callers.
    pub outside: Net,
    _holders: Vec<Proc>,
}

impl Network {
    /// Makes namespaces, links, addresses and routes.
    ///
    /// # Errors
    /// When the kernel or `ip` refuses.
    pub fn make(logs: &Path) -> anyhow::Result<Self> {
        let (node_holder, node) = Proc::hold_net("node", logs)?;
        let (world_holder, world) = Proc::hold_net("world", logs)?;
        let (outside_holder, outside) = Proc::hold_net("outside", logs)?;
        for net in [node, world, outside] {
            ip(net, "link set lo up")?;
        }
        let peer = world.0;
        ip(node, &format!("link add up0 type veth peer name node0 netns {peer}"))?;
        ip(outside, &format!("link add up0 type veth peer name out0 netns {peer}"))?;
        ip(node, &format!("addr add {MANAGEMENT}/24 dev up0"))?;
        ip(node, "link set up0 up")?;
        for address in ["10.64.99.1", DNS, STRIPE, TCP_FIRST] {
            ip(world, &format!("addr add {address}/24 dev node0"))?;
        }
        ip(world, "addr add 10.64.98.1/24 dev out0")?;
        ip(world, "link set node0 up")?;
        ip(world, "link set out0 up")?;
        ip(world, &format!("route add {SUBNET} dev node0"))?;
        ip(node, "route add default via 10.64.99.1")?;
        ip(outside, &format!("addr add {OUTSIDE}/24 dev up0"))?;
        ip(outside, "link set up0 up")?;
        ip(outside, "route add default via 10.64.98.1")?;
        run(&mut command(world, ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])?)?;
        // The supervisor pings in a group of its own as root, and in the only one there is otherwise.
        let groups = "f=/proc/sys/net/ipv4/ping_group_range; echo 0 65535 > $f || echo 0 0 > $f";
        run(&mut command(node, ["sh", "-c", groups])?)?;
        Ok(Self { node, world, outside, _holders: vec![node_holder, world_holder, outside_holder] })
    }
}

fn ip(net: Net, arguments: &str) -> anyhow::Result<()> {
    run(&mut command(net, ["ip"].into_iter().chain(arguments.split(' ')))?)?;
    Ok(())
}
