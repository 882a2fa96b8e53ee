//! A guest whose relay is the real one: a muxer on the socket that the supervisor dials, and nova-relay behind it.
//!
//! ```text
//! supervisor --CONNECT 15080--> v.sock --muxer--> relay/guest_15080 --nova-relay--> 127.0.0.1:<target port>
//! nova-relay -- presence ------> relay/host_15001 = v.sock_15001
//! ```

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc;

use nova_proto::ids::BootToken;
use nova_relay::config::{Ingress, Link};
use nova_relay::handover::Handed;
use nova_relay::relay::Relay;
use nova_relay::relay::config::RelayConfig;

use crate::data::{A, token};

/// Takes the place of the guest of pod A in the node's folder.
pub(crate) fn stand_in(dir: &Path) {
    let pod = dir.join("guests").join(A);
    let link = pod.join("relay");
    std::fs::create_dir(&link).expect("a folder");
    symlink(pod.join("v.sock_15001"), link.join("host_15001")).expect("linked");
    start_relay(&link, target_ports(dir));
    std::fs::remove_file(pod.join("v.sock")).expect("the emulated guest's");
    let listener = UnixListener::bind(pod.join("v.sock")).expect("bound");
    let inner = link.join("guest_15080");
    std::thread::spawn(move || {
        for outer in listener.incoming().flatten() {
            let inner = inner.clone();
            // An error is the end of that connection, as with any muxer.
            std::thread::spawn(move || carry(outer, &inner));
        }
    });
}

/// What endpoints.yaml says is what the node's agent tells the relay.
fn target_ports(dir: &Path) -> Vec<Ingress> {
    let text = std::fs::read_to_string(dir.join("endpoints.yaml")).expect("written");
    let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect::<String>();
    let mut ports: Vec<u16> =
        text.split("target_port: ").skip(1).map(|rest| digits(rest).parse().expect("a port")).collect();
    ports.sort_unstable();
    ports.dedup();
    ports.into_iter().map(Ingress::Tcp).collect()
}

/// Returns when it listens. It serves until the test's process ends.
fn start_relay(link: &Path, ingress: Vec<Ingress>) {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
    let config = RelayConfig {
        boot_token: BootToken(token(A)),
        link: Link::Unix { dir: link.to_owned() },
        host_ports: vec![15001],
        guest_port: 15080,
        framed: true,
        proxy_port: free.port(),
        ingress,
        socket_dir: link.to_owned(),
        dependencies: Vec::new(),
        max_connections: 900,
        egress_sockets: Vec::new(),
        ping_from: None,
    };
    let (ready, wait) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let relay = Relay::start(config, Handed::default()).expect("the relay starts");
            ready.send(()).expect("somebody waits");
            relay.serve().await;
        });
    });
    wait.recv().expect("the relay is ready");
}

fn carry(mut outer: UnixStream, inner: &Path) -> io::Result<()> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        outer.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    assert_eq!(line, b"CONNECT 15080\n");
    let mut inner = UnixStream::connect(inner)?;
    outer.write_all(b"OK 15080\n")?;
    let (mut from, mut to) = (outer.try_clone()?, inner.try_clone()?);
    let up = std::thread::spawn(move || one_way(&mut from, &mut to));
    one_way(&mut inner, &mut outer);
    up.join().map_err(|_| io::Error::other("the other way panicked"))
}

/// Copies to the end, which it passes on.
fn one_way(from: &mut UnixStream, to: &mut UnixStream) {
    // Whatever ends it ends the connection.
    let _ = io::copy(from, to);
    let _ = to.shutdown(std::net::Shutdown::Both);
}
