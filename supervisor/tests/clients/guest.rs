//! A guest whose relay is the real one: a muxer on the socket that the supervisor dials, and nova-relay behind it.
//!
//! ```text
//! supervisor --CONNECT 15080--> v.sock --muxer--> relay/guest_15080 --nova-relay--> 127.0.0.1:<target port>
//! nova-relay -- presence ------> relay/host_15001 = v.sock_15001
//! ```

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use serde_json::{Value, json};

use crate::data::A;
use crate::relay::Relay;

/// Takes the place of the guest of pod A in the node's folder.
pub(crate) fn stand_in(dir: &Path) {
    let relay = Relay::start(dir, A, &json!({"ingress": target_ports(dir)}));
    let socket = dir.join("guests").join(A).join("v.sock");
    std::fs::remove_file(&socket).expect("the emulated guest's");
    let listener = UnixListener::bind(socket).expect("bound");
    std::thread::spawn(move || {
        for outer in listener.incoming().flatten() {
            let inner = relay.inner_socket();
            // An error is the end of that connection, as with any muxer.
            std::thread::spawn(move || carry(outer, &inner));
        }
    });
}

/// What endpoints.yaml says is what the node's agent tells the relay.
fn target_ports(dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("endpoints.yaml")).expect("written");
    let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect::<String>();
    let mut ports: Vec<u16> =
        text.split("target_port: ").skip(1).map(|rest| digits(rest).parse().expect("a port")).collect();
    ports.sort_unstable();
    ports.dedup();
    ports.into_iter().map(|port| json!({"tcp": port})).collect()
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
