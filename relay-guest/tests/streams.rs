//! Streams that other relays cut short, end early or mix up: each case failed in the field somewhere.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use common::{FIN, Guest, TOKEN, data, read_exact, read_to_end};
use nova_proto::hello::Kind;

const MEBIBYTE: usize = 1 << 20;
/// More than the host's socket holds, and less than that, the relay and the relay's socket hold together.
const ROOM: usize = 256 * 1024;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

/// As records, with the end.
fn records(body: &[u8]) -> Vec<u8> {
    body.chunks(60_000).flat_map(data).chain(FIN.iter().copied()).collect()
}

/// Everything up to the end, out of its records.
fn read_records(mut stream: &UnixStream) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let head = read_exact(&mut stream, 3);
        match head[0] {
            0 => body.extend(read_exact(&mut stream, usize::from(u16::from_be_bytes([head[1], head[2]])))),
            _ => {
                assert_eq!(head, FIN);
                return body;
            }
        }
    }
}

// covers: D2c (F-RV01, F-RV02)
#[test]
fn an_answer_that_starts_after_the_end_of_the_request_arrives_whole() {
    let answer = pattern(MEBIBYTE);
    let (guest, mut host) = Guest::started(true);

    let (mut app, mut supervisor) = guest.egress(&mut host);
    app.write_all(b"ten bytes!").expect("written");
    app.shutdown(Shutdown::Write).expect("half closed");
    assert_eq!(read_records(&supervisor), b"ten bytes!");
    let wire = records(&answer);
    std::thread::scope(|scope| {
        scope.spawn(|| supervisor.write_all(&wire).expect("written"));
        assert!(read_to_end(&app) == answer, "out of the guest");
    });

    let (mut supervisor, mut app) = guest.ingress();
    supervisor.write_all(&[&data(b"ten bytes!"), FIN].concat()).expect("written");
    assert_eq!(read_to_end(&app), b"ten bytes!");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            app.write_all(&answer).expect("written");
            app.shutdown(Shutdown::Both).expect("closed");
        });
        assert!(read_records(&supervisor) == answer, "into the guest");
    });
}

// covers: D2c (F-RV03)
#[test]
fn connections_that_both_sides_close_at_once_take_no_later_one_with_them() {
    let (guest, mut host) = Guest::started(true);
    for number in 0..3000 {
        let (mut app, mut supervisor) = guest.egress(&mut host);
        app.write_all(b"a").expect("written");
        assert_eq!(read_exact(&supervisor, 4), data(b"a"), "connection {number}");
        supervisor.write_all(&data(b"b")).expect("written");
        assert_eq!(read_exact(&app, 1), b"b", "connection {number}");
        drop((app, supervisor));
    }
}

// covers: D2c (F-RV04)
#[test]
fn an_answer_arrives_whole_although_its_reader_says_more_than_anybody_wants() {
    let answer = pattern(MEBIBYTE);
    let (guest, mut host) = Guest::started(true);
    // The host has ended its side in good order and is gone; the app still talks.
    let (mut app, supervisor) = guest.egress(&mut host);
    app.write_all(b"ask").expect("written");
    assert_eq!(read_exact(&supervisor, 6), data(b"ask"));
    let wire = records(&answer);
    let sent = std::thread::spawn(move || {
        let mut supervisor = supervisor;
        supervisor.write_all(&wire).expect("written");
    });
    assert!(read_slowly_and_talk(&mut app) == answer, "out of the guest");
    sent.join().expect("no panic");

    // The same the other way round: the app has answered and is gone. What had not left its own kernel by then would be lost, so
    // the answer is one for which there is room on the way.
    let answer = pattern(ROOM);
    let (mut supervisor, app) = guest.ingress();
    supervisor.write_all(&data(b"ask")).expect("written");
    assert_eq!(read_exact(&app, 3), b"ask");
    let body = answer.clone();
    let sent = std::thread::spawn(move || {
        let mut app = app;
        app.write_all(&body).expect("written");
        app.shutdown(Shutdown::Write).expect("half closed");
        while !has_sent_all(&app) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Until the other side's words come, which nobody reads.
        let mut one = [0];
        let _ = app.peek(&mut one);
    });
    let half = read_exact(&supervisor, 3);
    supervisor.write_all(&data(b"more")).expect("written");
    std::thread::sleep(Duration::from_millis(50));
    let first = read_exact(&supervisor, usize::from(u16::from_be_bytes([half[1], half[2]])));
    let rest = read_records(&supervisor);
    assert!([first, rest].concat() == answer, "into the guest");
    sent.join().expect("no panic");
}

/// Whether the other kernel has all of what a stream said, and its end: in the state FIN-WAIT-2.
fn has_sent_all(stream: &TcpStream) -> bool {
    let port = format!(":{:04X}", stream.local_addr().expect("bound").port());
    let sockets = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's list");
    sockets.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some("05")
    })
}

fn read_slowly_and_talk(app: &mut TcpStream) -> Vec<u8> {
    let (mut body, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        match app.read(&mut buffer).expect("no reset") {
            0 => return body,
            read => body.extend_from_slice(&buffer[..read]),
        }
        // Fails once the relay has let go.
        let _ = app.write(b"x");
        std::thread::sleep(Duration::from_millis(5));
    }
}

// covers: D2c (F-RV05)
#[test]
fn the_tail_of_an_upload_arrives_although_its_sender_is_gone_and_its_reader_slow() {
    let body = pattern(4 * MEBIBYTE);
    let (guest, mut host) = Guest::started(true);
    let (mut app, supervisor) = guest.egress(&mut host);
    let sent = body.clone();
    let sender = std::thread::spawn(move || {
        app.write_all(&sent).expect("written");
        drop(app);
    });
    let mut slow = Slow(&supervisor);
    let mut received = Vec::new();
    loop {
        let head = read_exact(&mut slow, 3);
        if head == FIN {
            break;
        }
        assert_eq!(head[0], 0);
        received.extend(read_exact(&mut slow, usize::from(u16::from_be_bytes([head[1], head[2]]))));
    }
    assert!(received == body, "{} of {} bytes", received.len(), body.len());
    sender.join().expect("no panic");
}

/// Takes little at a time.
struct Slow<'a>(&'a UnixStream);

impl Read for Slow<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        std::thread::sleep(Duration::from_millis(1));
        let wanted = buf.len().min(16 * 1024);
        self.0.read(&mut buf[..wanted])
    }
}

// covers: D2c (F-RV06)
#[test]
fn what_the_app_says_at_once_comes_right_behind_the_status() {
    let (guest, _host) = Guest::started(false);
    let server = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut app, _) = guest.app.accept().expect("accepted");
            app.write_all(b"220 hi\r\n").expect("written");
            app
        });
        let (status, supervisor) = guest.dial_target(Kind::Tcp, &guest.app_port().to_string(), TOKEN);
        assert_eq!(status, 0);
        assert_eq!(read_exact(&supervisor, 8), b"220 hi\r\n");
        supervisor
    });
    drop(server);
}
