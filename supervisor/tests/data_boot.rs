//! A guest whose machine still boots while its endpoint is there.

mod data;

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use data::{A, Node, PATIENCE, Plan, RAW, dial, is, until};
use nova_supervisor::identity::DevCa;

/// As long as the supervisor needs to ask twice.
const REFUSES: Duration = Duration::from_secs(1);

/// In the place of guest A: its socket refuses, then takes connections and drops them, then belongs to a muxer whose answer
/// comes in two pieces and to an app that speaks first.
fn boot_slowly(dir: &Path, _: &DevCa) {
    let socket = dir.join("guests").join(A).join("v.sock");
    std::fs::remove_file(&socket).expect("the emulated guest's");
    drop(UnixListener::bind(&socket).expect("bound"));
    std::thread::spawn(move || {
        std::thread::sleep(REFUSES);
        std::fs::remove_file(&socket).expect("the refusing one");
        let listener = UnixListener::bind(&socket).expect("bound");
        for stream in listener.incoming().take(2).flatten() {
            drop(stream);
        }
        for stream in listener.incoming().flatten() {
            // An error is the end of that connection.
            std::thread::spawn(move || greet(stream));
        }
    });
}

fn greet(mut stream: UnixStream) -> io::Result<()> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    assert_eq!(line, b"CONNECT 15080\n");
    stream.write_all(b"OK 10")?;
    std::thread::sleep(Duration::from_millis(200));
    stream.write_all(b"24\n")?;
    let mut head = [0; 24];
    stream.read_exact(&mut head)?;
    stream.read_exact(&mut vec![0; usize::from(head[7])])?;
    // Status and the app's first words in one write.
    stream.write_all(b"\x00220 hi\r\n")?;
    stream.read_exact(&mut [0])
}

// covers: D2c (F-RV06)
#[test]
fn an_endpoint_waits_for_a_machine_that_boots_and_eats_nothing_of_its_app() {
    // Waits until service-a serves.
    let node = Node::with(Plan { prepare: boot_slowly, ..Plan::default() });
    let mut caller = dial(&node.ip(97), &format!("{}:{RAW}", node.ip(21))).expect("connected");
    caller.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut said = [0; 8];
    caller.read_exact(&mut said).expect("the app's first words");
    assert_eq!(&said, b"220 hi\r\n");
    drop(caller);
    node.audited(1, |line| is(line, &[("kind", "close"), ("workload", "service-a")]));
    until("nothing is left open", || node.open("service-a") == 0);
}
