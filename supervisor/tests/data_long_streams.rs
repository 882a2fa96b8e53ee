//! Long streams through opaque tunnels, which go another way inside of the supervisor than short ones.

mod data;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use data::{Link, Node, Plan, Upstream, X, is};

/// More than sockets and pipes of both sides can hold, and no multiple of anything.
const LONG: usize = 24 * 1024 * 1024 + 4321;

/// What stands at this place of every stream here; no two pieces of it are alike.
fn bytes_at(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|place| (place.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn send_long(stream: &mut impl Write) -> std::io::Result<()> {
    let mut at = 0;
    while at < LONG {
        let len = (LONG - at).min(200_000);
        stream.write_all(&bytes_at(at, len))?;
        at += len;
    }
    Ok(())
}

/// Reads to the end in pieces of changing lengths, with a rest now and then so that everything in between fills up.
fn read_long(link: &mut Link) -> usize {
    let mut buffer = vec![0; 300_000];
    let mut at = 0;
    for round in 0.. {
        let most = [1, 77, 4096, 65_536, 300_000][round % 5];
        let read = link.read(&mut buffer[..most]).expect("no reset");
        if read == 0 {
            break;
        }
        assert_eq!(buffer[..read], bytes_at(at, read), "at {at}");
        at += read;
        if round % 200 == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    at
}

fn tunnel(node: &Node) -> Link {
    let mut link = node.proxy(X);
    link.send("CONNECT tcp.test:5432 HTTP/1.1\r\nHost: tcp.test:5432\r\n\r\n");
    assert!(data::read_head(&mut link).expect("an answer").starts_with("HTTP/1.1 200"));
    link
}

// covers: A7c
#[test]
fn a_long_answer_arrives_byte_for_byte_while_the_app_still_speaks() {
    for half_close in [true, false] {
        let node = Node::with(Plan { half_close, ..Plan::default() });
        let _upstream = Upstream::start(&format!("{}:5432", node.ip(80)), |mut stream: TcpStream| {
            let mut asked = [0; 4];
            if stream.read_exact(&mut asked).is_ok() && send_long(&mut stream).is_ok() {
                // The other direction is as it was.
                let mut rest = Vec::new();
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = stream.read_to_end(&mut rest);
                assert_eq!(rest, b"thanks");
            }
        });
        let mut link = tunnel(&node);
        link.send("long");
        assert_eq!(read_long(&mut link), LONG);
        link.send("thanks");
        link.finish();
        let close = node.audited_once(|line| is(line, &[("kind", "close"), ("close", "done")]));
        assert_eq!(close["bytes_out"].as_u64(), Some(LONG as u64), "{close}");
        assert_eq!(close["bytes_in"].as_u64(), Some(10), "{close}");
    }
}

// covers: A7c
#[test]
fn a_long_answer_that_breaks_off_ends_in_a_reset() {
    for half_close in [true, false] {
        let node = Node::with(Plan { half_close, ..Plan::default() });
        let _upstream = Upstream::start(&format!("{}:5432", node.ip(80)), |mut stream: TcpStream| {
            let mut asked = [0; 4];
            if stream.read_exact(&mut asked).is_ok() && send_long(&mut stream).is_ok() {
                socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("set");
            }
        });
        let mut link = tunnel(&node);
        link.send("long");
        // What was on its way when it broke may be lost; an end in good order would pass for all of it.
        let mut got = Vec::new();
        let ended = link.read_to_end(&mut got);
        assert!(got.iter().eq(&bytes_at(0, got.len())), "{} bytes", got.len());
        assert!(ended.is_err() || half_close, "a framed link says that it broke");
        node.audited_once(|line| is(line, &[("kind", "close"), ("close", "reset")]));
    }
}

// covers: A7c
#[test]
fn a_long_answer_that_nobody_reads_holds_up_no_other_tunnel() {
    let node = Node::start();
    let _upstream = Upstream::start(&format!("{}:5432", node.ip(80)), |mut stream: TcpStream| {
        let mut asked = [0; 4];
        if stream.read_exact(&mut asked).is_ok() {
            let _ = if &asked == b"long" { send_long(&mut stream) } else { stream.write_all(b"short") };
        }
    });
    let mut unread: Vec<Link> = (0..70).map(|_| tunnel(&node)).collect();
    for link in &mut unread {
        link.send("long");
    }
    let mut link = tunnel(&node);
    link.send("talk");
    link.finish();
    assert_eq!(link.rest().expect("a good end"), b"short");
    // More than have a pipe: each is served all the same.
    assert_eq!(read_long(&mut unread.remove(0)), LONG);
    assert_eq!(read_long(&mut unread.pop().expect("many")), LONG);
}
