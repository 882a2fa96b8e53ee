//! The relay as a process, seen from its host and from its app.
// covers: A4

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use common::{FIN, Guest, RST, TOKEN, data, eventually, free_port, read_exact, read_to_end};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nova_proto::hello::{HEAD_LEN, Hello, Kind};
use nova_relay::config::Ingress;

fn reset(stream: &TcpStream) {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).expect("linger");
}

#[test]
fn a_wrong_token_is_denied_whatever_it_asks_for() {
    let (guest, _host) = Guest::started(true);
    for target in [guest.app_port().to_string(), "1".into()] {
        let (status, stream) = guest.dial_target(Kind::Tcp, &target, [0; 16]);
        assert_eq!(status, 3);
        assert_eq!(read_to_end(stream), b"");
    }
    guest.app.set_nonblocking(true).expect("nonblocking");
    assert_eq!(guest.app.accept().expect_err("the app saw nothing").kind(), ErrorKind::WouldBlock);
}

#[test]
fn kinds_that_only_a_guest_sends_are_denied() {
    let (guest, _host) = Guest::started(true);
    for (kind, target) in [(Kind::Proxy, ""), (Kind::Dependency, "a:1"), (Kind::Presence, ""), (Kind::Icmp, "")] {
        assert_eq!(guest.dial_target(kind, target, TOKEN).0, 3, "{kind:?}");
    }
}

#[test]
fn targets_that_are_not_declared_are_absent_however_they_are_spelt() {
    let (guest, _host) = Guest::started(true);
    let port = guest.app_port();
    let proxy = guest.config.proxy_port.to_string();
    for target in ["1", &format!("0{port}"), &format!("+{port}"), &format!("127.0.0.1:{port}"), &proxy, "app.sock"] {
        assert_eq!(guest.dial_target(Kind::Tcp, target, TOKEN).0, 2, "{target}");
    }
    for target in ["other.sock", "../app.sock", "./app.sock", "guest_15080"] {
        assert_eq!(guest.dial_target(Kind::Socket, target, TOKEN).0, 2, "{target}");
    }
}

#[test]
fn an_app_that_refuses_is_told_from_one_that_is_absent() {
    let closed = free_port();
    let mut guest = Guest::new(true, |config| config.ingress.push(Ingress::Tcp(closed)));
    guest.start();
    assert_eq!(guest.dial_target(Kind::Tcp, &closed.to_string(), TOKEN).0, 1);
    assert_eq!(guest.dial_target(Kind::Socket, "app.sock", TOKEN).0, 1);
}

#[test]
fn an_app_that_does_not_accept_in_time_is_told_from_one_that_refuses() {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("socket");
    socket.bind(&std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("bind");
    socket.listen(0).expect("listen");
    let address = socket.local_addr().expect("address").as_socket().expect("address");
    let dial = || TcpStream::connect_timeout(&address, Duration::from_millis(200));
    let _queue_is_full: Vec<_> = std::iter::from_fn(|| dial().ok()).collect();
    let mut guest = Guest::new(true, |config| config.ingress.push(Ingress::Tcp(address.port())));
    guest.start();
    assert_eq!(guest.dial_target(Kind::Tcp, &address.port().to_string(), TOKEN).0, 4);
}

#[test]
fn garbage_instead_of_a_hello_is_closed_without_an_answer() {
    let (guest, _host) = Guest::started(true);
    let valid = Hello { kind: Kind::Tcp, framed: true, token: TOKEN, target: "80".into() }.encode().expect("valid");
    let broken = |at: usize, byte: u8| {
        let mut bytes = valid.clone();
        bytes[at] = byte;
        bytes
    };
    for hello in [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), broken(4, 9), broken(6, 0x80), broken(24, b'\n')] {
        let mut stream = guest.dial();
        stream.write_all(&hello).expect("write");
        let mut answer = Vec::new();
        // A close with unread bytes is a reset on a Unix socket; both are fine, an answer is not.
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"", "{hello:?}");
    }
}

#[test]
fn a_hello_that_never_ends_is_closed_within_its_deadline() {
    let (guest, _host) = Guest::started(true);
    let start = Instant::now();
    let mut streams: Vec<_> = (0..20).map(|_| guest.dial()).collect();
    for (index, stream) in streams.iter_mut().enumerate() {
        stream.write_all(&b"NOVR\x01\x10"[..index % 6]).expect("write");
    }
    for stream in streams {
        assert_eq!(read_to_end(stream), b"");
    }
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
}

#[test]
fn without_a_supervisor_the_app_is_reset_at_once() {
    let mut guest = Guest::new(true, |_| ());
    guest.start();
    let start = Instant::now();
    let error = guest.dial_proxy().read(&mut [0; 1]).expect_err("reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn the_hello_of_each_kind_is_exact() {
    for framed in [false, true] {
        let (guest, mut host) = Guest::started(framed);
        let flags = u8::from(framed);
        let (presence, _open) = host.accept_bytes(HEAD_LEN);
        assert_eq!(presence, [&b"NOVR\x01\x05"[..], &[flags, 0], &TOKEN].concat());
        let _app = guest.dial_proxy();
        let (proxy, _open) = host.accept_bytes(HEAD_LEN);
        assert_eq!(proxy, [&b"NOVR\x01\x01"[..], &[flags, 0], &TOKEN].concat());
        let port = guest.config.dependencies[0].port;
        let target = format!("db.t.nova:{port}");
        let _app = guest.dial_app_side(Ipv4Addr::new(127, 0, 1, 1), port);
        let (dependency, _open) = host.accept_bytes(HEAD_LEN + target.len());
        let len = u8::try_from(target.len()).expect("short");
        assert_eq!(dependency, [&b"NOVR\x01\x02"[..], &[flags, len], &TOKEN, target.as_bytes()].concat());
    }
}

#[test]
fn a_server_that_speaks_first_is_heard() {
    let (guest, mut host) = Guest::started(true);
    let (app, mut supervisor) = guest.egress(&mut host);
    supervisor.write_all(&data(b"220 hello\r\n")).expect("write");
    assert_eq!(read_exact(&app, 11), b"220 hello\r\n");
    let (supervisor, mut app) = guest.ingress();
    app.write_all(b"220 hello\r\n").expect("write");
    assert_eq!(read_exact(&supervisor, 14), data(b"220 hello\r\n"));

    let (guest, mut host) = Guest::started(false);
    let (app, mut supervisor) = guest.egress(&mut host);
    supervisor.write_all(b"220").expect("write");
    assert_eq!(read_exact(&app, 3), b"220");
}

// covers: A4 (half-close)
#[test]
fn half_close_is_carried_in_both_directions_with_records() {
    let (guest, mut host) = Guest::started(true);
    let (mut app, mut supervisor) = guest.egress(&mut host);
    app.write_all(b"ask").expect("write");
    app.shutdown(Shutdown::Write).expect("shutdown");
    assert_eq!(read_exact(&supervisor, 9), [&data(b"ask"), FIN].concat());
    supervisor.write_all(&[&data(b"answer"), FIN].concat()).expect("write");
    assert_eq!(read_to_end(&app), b"answer");
    assert_eq!(read_to_end(&supervisor), b"");

    let (mut supervisor, mut app) = guest.ingress();
    supervisor.write_all(&[&data(b"ask"), FIN].concat()).expect("write");
    assert_eq!(read_to_end(&app), b"ask");
    app.write_all(b"answer").expect("write");
    drop(app);
    assert_eq!(read_to_end(&supervisor), [&data(b"answer"), FIN].concat());
}

#[test]
fn half_close_is_carried_in_both_directions_without_records() {
    let (guest, mut host) = Guest::started(false);
    let (mut app, mut supervisor) = guest.egress(&mut host);
    app.write_all(b"ask").expect("write");
    app.shutdown(Shutdown::Write).expect("shutdown");
    assert_eq!(read_to_end(&supervisor), b"ask");
    supervisor.write_all(b"answer").expect("write");
    drop(supervisor);
    assert_eq!(read_to_end(&app), b"answer");

    let (mut supervisor, mut app) = guest.ingress();
    supervisor.write_all(b"ask").expect("write");
    supervisor.shutdown(Shutdown::Write).expect("shutdown");
    assert_eq!(read_to_end(&app), b"ask");
    app.write_all(b"answer").expect("write");
    drop(app);
    assert_eq!(read_to_end(&supervisor), b"answer");
}

#[test]
fn a_reset_is_never_carried_as_an_end() {
    let (guest, mut host) = Guest::started(true);
    let (app, supervisor) = guest.egress(&mut host);
    reset(&app);
    drop(app);
    assert_eq!(read_to_end(&supervisor), RST);

    for last_words in [RST, b"", b"\x07\x00\x00", b"\x00\x00"] {
        let (mut supervisor, app) = guest.ingress();
        supervisor.write_all(last_words).expect("write");
        drop(supervisor);
        let error = (&app).read(&mut [0; 1]).expect_err("the app must not read an end");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{last_words:?}");
    }
}

#[test]
fn large_bodies_arrive_whole_in_both_directions_at_once() {
    for framed in [false, true] {
        let (guest, mut host) = Guest::started(framed);
        let (app, supervisor) = guest.egress(&mut host);
        let body: Vec<u8> = (0..3_000_000_u32).map(|index| (index % 251) as u8).collect();
        let wire: Vec<u8> = match framed {
            true => body.chunks(60_000).flat_map(data).chain(FIN.iter().copied()).collect(),
            false => body.clone(),
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (&app).write_all(&body).expect("write");
                app.shutdown(Shutdown::Write).expect("shutdown");
            });
            scope.spawn(|| {
                (&supervisor).write_all(&wire).expect("write");
                supervisor.shutdown(Shutdown::Write).expect("shutdown");
            });
            let received = scope.spawn(|| read_to_end(&supervisor));
            assert!(read_to_end(&app) == body, "host to app, framed {framed}");
            let received = received.join().expect("thread");
            let received = if framed { unwrap_records(&received) } else { received };
            assert!(received == body, "app to host, framed {framed}");
        });
    }
}

fn unwrap_records(mut wire: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let [0, high, low, rest @ ..] = wire {
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        out.extend_from_slice(&rest[..len]);
        wire = &rest[len..];
    }
    assert_eq!(wire, FIN);
    out
}

#[test]
fn an_ingress_socket_is_reached_by_name() {
    let (guest, _host) = Guest::started(true);
    let app = UnixListener::bind(guest.path("app.sock")).expect("bind");
    let (status, mut supervisor) = guest.dial_target(Kind::Socket, "app.sock", TOKEN);
    assert_eq!(status, 0);
    let (stream, _) = app.accept().expect("accept");
    supervisor.write_all(&[&data(b"hi"), FIN].concat()).expect("write");
    assert_eq!(read_to_end(stream), b"hi");
}

#[test]
fn a_thousand_connections_are_bounded_and_the_host_still_gets_in() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(4096), hard).expect("limit");
    let mut guest = Guest::new(true, |config| config.max_connections = 200);
    let mut host = guest.host(15001);
    guest.start();
    let (_presence, _open) = host.accept_bytes(HEAD_LEN);

    let app: Vec<TcpStream> = (0..1000).map(|_| guest.dial_proxy()).collect();
    // 200 less the host's share of a quarter, 50.
    let carried: Vec<_> = (0..150).map(|_| host.accept().1).collect();
    app.iter().for_each(|stream| stream.set_nonblocking(true).expect("nonblocking"));
    // A socket reports its reset once.
    let mut waiting: Vec<&TcpStream> = app.iter().collect();
    eventually("850 are reset", || {
        let is_open =
            |stream: &&TcpStream| !stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
        waiting.retain(is_open);
        (waiting.len() == 150).then_some(())
    });
    host.listener().set_nonblocking(true).expect("nonblocking");
    assert_eq!(host.listener().accept().expect_err("no more").kind(), ErrorKind::WouldBlock);
    host.listener().set_nonblocking(false).expect("blocking");
    let _still = guest.ingress();

    drop((app, carried));
    eventually("the places are free again", || {
        let stream = guest.dial_proxy();
        stream.set_read_timeout(Some(Duration::from_millis(100))).expect("timeout");
        (&stream).read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock).then_some(())
    });
}

#[test]
fn a_connection_goes_to_the_instance_that_answers() {
    let mut guest = Guest::new(true, |config| config.host_ports = vec![15001, 15002]);
    let mut second = guest.host(15002);
    guest.start();
    let (app, mut supervisor) = guest.egress(&mut second);
    supervisor.write_all(&data(b"B")).expect("write");
    assert_eq!(read_exact(&app, 1), b"B");

    let mut first = guest.host(15001);
    let (_presence, _open) = first.accept_bytes(HEAD_LEN);
    drop(second);
    std::fs::remove_file(guest.path("host_15002")).expect("remove");
    let (app, mut supervisor) = guest.egress(&mut first);
    supervisor.write_all(&data(b"A")).expect("write");
    assert_eq!(read_exact(&app, 1), b"A");
}

#[test]
fn an_instance_that_only_seems_to_be_there_comes_last() {
    let mut guest = Guest::new(true, |config| config.host_ports = vec![15001, 15002]);
    let hollow = guest.host(15001);
    // A muxer with nobody behind it: accepts and closes.
    let _closer = std::thread::spawn(move || {
        while let Ok(stream) = hollow.listener().accept() {
            drop(stream)
        }
    });
    let mut second = guest.host(15002);
    guest.start();
    let (_presence, _open) = second.accept_bytes(HEAD_LEN);
    second.listener().set_nonblocking(true).expect("nonblocking");
    eventually("a connection reaches the live instance", || {
        let _app = guest.dial_proxy();
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            if second.listener().accept().is_ok() {
                return Some(());
            }
        }
        None
    });
}

#[test]
fn presence_comes_back_when_the_supervisor_does() {
    let (guest, mut host) = Guest::started(true);
    let (hello, first) = host.accept_bytes(HEAD_LEN);
    drop(first);
    let (again, _open) = host.accept_bytes(HEAD_LEN);
    assert_eq!(hello, again);
    drop(guest);
}

#[test]
fn a_configuration_with_mistakes_is_refused_with_all_of_them() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    drop(port);
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_nova-relay"))
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("start");
    let guest = Guest::new(true, |config| {
        config.host_ports.clear();
        config.guest_port = 1024;
    });
    let text = serde_json::to_vec(&guest.config).expect("json");
    child.stdin.take().expect("pipe").write_all(&text).expect("write");
    let output = child.wait_with_output().expect("output");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(message.contains("host_ports is empty") && message.contains("guest_port 1024"), "{message}");
}
