//! The egress sockets: what a connection to each means to the supervisor.

mod common;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};

use common::{FIN, Guest, PATIENCE, data, eventually, read_exact, read_to_end};
use nova_proto::hello::Kind;
use nova_relay::config::EgressSocket;

/// A relay that was handed the proxy's socket and one of a dependency.
fn guest(framed: bool) -> Guest {
    let mut guest = Guest::new(framed, |config| {
        config.egress_sockets = vec![
            EgressSocket { name: "egress.sock".into(), dependency: None },
            EgressSocket { name: "db.sock".into(), dependency: Some("db.t.nova:5432".into()) },
        ];
    });
    let bind = |socket: &EgressSocket| UnixListener::bind(guest.path(&socket.name)).expect("bound");
    guest.handed.sockets = guest.config.egress_sockets.iter().map(bind).collect();
    guest
}

fn dial(guest: &Guest, name: &str) -> UnixStream {
    let stream = UnixStream::connect(guest.path(name)).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream
}

// covers: D3a, D3b
#[test]
fn each_socket_says_what_it_leads_to() {
    let mut guest = guest(true);
    let mut host = guest.host(15001);
    guest.start();
    for (name, kind, target) in
        [("egress.sock", Kind::Unix, "egress.sock"), ("db.sock", Kind::Dependency, "db.t.nova:5432")]
    {
        let mut app = dial(&guest, name);
        let (hello, mut supervisor) = host.accept();
        assert_eq!((hello.kind, hello.target.as_str()), (kind, target));
        app.write_all(b"ask").expect("written");
        app.shutdown(Shutdown::Write).expect("half closed");
        let said = [&data(b"ask"), FIN].concat();
        assert_eq!(read_exact(&supervisor, said.len()), said);
        supervisor.write_all(&[&data(b"answer"), FIN].concat()).expect("written");
        assert_eq!(read_to_end(&app), b"answer");
    }
}

// covers: D3a
#[test]
fn connections_of_sockets_count_against_the_same_bound() {
    let mut guest = guest(false);
    guest.config.max_connections = 4;
    let mut host = guest.host(15001);
    guest.start();
    // One of four is kept for the host.
    let mut open: Vec<_> = (0..3).map(|_| dial(&guest, "egress.sock")).collect();
    let mut carried: Vec<_> = (0..3).map(|_| host.accept().1).collect();
    assert_eq!(dial(&guest, "db.sock").read(&mut [0]).expect("an end"), 0);
    drop((open.pop(), carried.pop()));
    eventually("there is room again", || {
        let mut app = dial(&guest, "db.sock");
        app.set_read_timeout(Some(std::time::Duration::from_millis(100))).expect("set");
        app.read(&mut [0]).is_err().then_some(())
    });
}

// covers: D3c
#[test]
fn a_relay_that_is_handed_fewer_sockets_than_it_is_told_of_does_not_start() {
    let mut guest = guest(true);
    guest.handed.sockets.pop();
    let output = guest.fail();
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("speaks of 2") && message.contains("1 were handed over"), "{message}");
}
