//! Everything a guest might try to get out without the relay. Each attempt is reported with what the kernel said; whether
//! something arrived anywhere is for the outside to say.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use serde_json::{Value, json};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

const PATIENCE: Duration = Duration::from_millis(700);
/// ETH_P_ALL in network order.
const EVERY_PACKET: i32 = 0x0300;
/// A query for api.stripe.com, type A.
const DNS_QUERY: &[u8] =
    b"\x13\x37\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03api\x06stripe\x03com\x00\x00\x01\x00\x01";
/// An echo request with its checksum.
const ECHO_REQUEST: &[u8] = &[8, 0, 0xf7, 0xfd, 0, 1, 0, 1];

/// Arguments of `nova-lab probe`.
#[derive(clap::Args)]
pub struct Args {
    /// TCP addresses to connect to
    #[arg(long)]
    tcp: Vec<SocketAddr>,
    /// UDP addresses to send a DNS query to
    #[arg(long)]
    udp: Vec<SocketAddr>,
    /// Addresses to ping
    #[arg(long)]
    ping: Vec<IpAddr>,
}

/// Tries everything and prints one JSON object.
///
/// # Errors
/// When the result cannot be printed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut attempts = vec![
        attempt("raw socket, packet", || {
            Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(EVERY_PACKET))).map(drop)
        }),
        attempt("raw socket, IP", || Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255))).map(drop)),
    ];
    for ip in &args.ping {
        attempts.push(attempt(&format!("raw ping {ip}"), || ping(*ip, Type::RAW)));
        attempts.push(attempt(&format!("ping {ip}"), || ping(*ip, Type::DGRAM)));
    }
    for address in &args.tcp {
        attempts.push(attempt(&format!("tcp {address}"), || connect(*address)));
    }
    for address in &args.udp {
        attempts.push(attempt(&format!("udp {address}"), || ask(*address)));
    }
    println!("{}", json!({"interfaces": interfaces(), "attempts": attempts}));
    Ok(())
}

fn attempt(what: &str, action: impl FnOnce() -> std::io::Result<()>) -> Value {
    match action() {
        Ok(()) => json!({"what": what, "out": true}),
        Err(error) => json!({"what": what, "out": false, "errno": error.raw_os_error(), "error": error.to_string()}),
    }
}

fn connect(to: SocketAddr) -> std::io::Result<()> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.connect_timeout(&SockAddr::from(to), PATIENCE)
}

fn ask(to: SocketAddr) -> std::io::Result<()> {
    exchange(&Socket::new(Domain::for_address(to), Type::DGRAM, None)?, to, DNS_QUERY)
}

fn ping(ip: IpAddr, kind: Type) -> std::io::Result<()> {
    let to = SocketAddr::new(ip, 0);
    let protocol = if ip.is_ipv4() { Protocol::ICMPV4 } else { Protocol::ICMPV6 };
    exchange(&Socket::new(Domain::for_address(to), kind, Some(protocol))?, to, ECHO_REQUEST)
}

/// Out means that an answer came.
fn exchange(socket: &Socket, to: SocketAddr, message: &[u8]) -> std::io::Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send_to(message, &SockAddr::from(to))?;
    let mut answer = [std::mem::MaybeUninit::uninit(); 512];
    socket.recv_from(&mut answer).map(drop)
}

fn interfaces() -> Vec<Value> {
    let Ok(addresses) = getifaddrs() else { return Vec::new() };
    addresses
        .map(|entry| json!({"name": entry.interface_name, "address": entry.address.map(|address| address.to_string())}))
        .collect()
}
