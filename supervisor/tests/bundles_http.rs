//! Bundles from a server: what is refused, that what was active stays, and when the server is asked again.

mod bundles_support;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use bundles_support::{ALSO_B, HOUR, NODE, Node, ONLY_A, X_READS_A, X_READS_B, impatient, signed};
use nova_policy::bundle::{KeyPair, SigningKey};
use nova_supervisor::bundles::BundleFeed;
use nova_supervisor::config::{BundleSource, BundleUrl, HttpSource, Reach};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

type Handler = Box<dyn FnMut(&str, UnixStream) + Send>;

/// A server that answers as the test wants, and remembers what it was asked.
struct Server {
    node: Node,
    feed: Arc<BundleFeed>,
    asked: Arc<Mutex<Vec<(Instant, String)>>>,
    handler: Arc<Mutex<Handler>>,
    _runtime: tokio::runtime::Runtime,
}

fn head(stream: &mut UnixStream) -> String {
    let mut text = Vec::new();
    let mut byte = [0; 1];
    while !text.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
        text.push(byte[0]);
    }
    String::from_utf8_lossy(&text).to_ascii_lowercase()
}

impl Server {
    fn start(handler: impl FnMut(&str, UnixStream) + Send + 'static) -> Self {
        let mut node = Node::at(SystemTime::now());
        let socket = node.dir.path().join("server.sock");
        let url = BundleUrl {
            reach: Reach::Unix(socket.clone()),
            authority: "localhost".to_owned(),
            path: "/bundles/node-1".to_owned(),
        };
        node.config.source = BundleSource::Http(HttpSource { url, ca: None, poll_wait: Duration::from_secs(2) });
        let listener = UnixListener::bind(&socket).expect("bound");
        let asked = Arc::<Mutex<Vec<(Instant, String)>>>::default();
        let handler: Arc<Mutex<Handler>> = Arc::new(Mutex::new(Box::new(handler)));
        let (log, answer) = (Arc::clone(&asked), Arc::clone(&handler));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let head = head(&mut stream);
                log.lock().expect("no panic").push((Instant::now(), head.clone()));
                (answer.lock().expect("no panic"))(&head, stream);
            }
        });
        let feed = Arc::new(node.feed().with_timing(impatient()));
        feed.start(SystemTime::now());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        runtime.spawn(Arc::clone(&feed).watch());
        Self { node, feed, asked, handler, _runtime: runtime }
    }

    fn answer(&self, handler: impl FnMut(&str, UnixStream) + Send + 'static) {
        *self.handler.lock().expect("no panic") = Box::new(handler);
    }

    fn until(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.feed.status(SystemTime::now()));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn until_active(&self, serial: u64) {
        self.until("the bundle is active", |server| server.node.active() == Some(serial));
    }

    fn until_refused(&self, reason: &str) {
        self.until(reason, |server| server.failures(reason) > 0);
        assert_eq!(self.node.active(), Some(5), "the old one must stay");
        assert!(self.node.allows(X_READS_A) && !self.node.allows(X_READS_B));
    }

    fn failures(&self, reason: &str) -> u64 {
        self.feed.status(SystemTime::now()).failures.get(reason).copied().unwrap_or(0)
    }
}

fn send(mut stream: UnixStream, status: &str, fields: &str, body: &[u8]) {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{fields}\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

/// Serves the bundle under a tag, and 304 to whoever has it.
fn serve(bytes: Vec<u8>, tag: &'static str) -> impl FnMut(&str, UnixStream) + Send + 'static {
    move |head, stream| {
        let kind = "Content-Type: application/vnd.openpolicyagent.bundles\r\n";
        if head.contains(&format!("if-none-match: \"{tag}\"")) {
            send(stream, "304 Not Modified", kind, b"");
        } else {
            send(stream, "200 OK", &format!("{kind}ETag: \"{tag}\"\r\n"), &bytes);
        }
    }
}

/// A server whose serial 5 is active.
fn with_5() -> Server {
    let server = Server::start(|_, stream| drop(stream));
    let five = server.node.bundle(5, ONLY_A);
    server.answer(serve(five, "five"));
    server.until_active(5);
    server
}

// covers: B7a
#[test]
fn a_bundle_is_fetched_with_a_long_poll_and_only_once() {
    let server = with_5();
    server.until("it is asked with the tag", |server| {
        server
            .asked
            .lock()
            .expect("no panic")
            .iter()
            .filter(|(_, head)| head.contains("if-none-match: \"five\""))
            .count()
            >= 3
    });
    let asked = server.asked.lock().expect("no panic").clone();
    assert!(asked.iter().all(|(_, head)| head.starts_with("get /bundles/node-1 ")), "{asked:?}");
    assert!(asked.iter().all(|(_, head)| head.contains("prefer: modes=snapshot;wait=2\r\n")), "{asked:?}");
    assert_eq!(server.feed.status(SystemTime::now()).last_error, None);
    assert_eq!(server.node.told.lock().expect("no panic").len(), 1, "activated once");
    let six = server.node.bundle(6, ALSO_B);
    server.answer(serve(six, "six"));
    server.until_active(6);
    assert!(server.node.allows(X_READS_B));
}

// covers: B7a
#[test]
fn truncated_and_wrongly_signed_bundles_are_refused_and_the_old_one_stays() {
    let server = with_5();
    let six = server.node.bundle(6, ALSO_B);
    let half = six[..six.len() / 2].to_vec();
    server.answer(serve(half, "half"));
    server.until_refused("bad_archive");
    // The connection ends before the body does.
    let cut = six.clone();
    server.answer(move |_, mut stream| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", cut.len());
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&cut[..cut.len() / 2]));
    });
    server.until_refused("server_unreachable");
    let other = KeyPair::es256().expect("a key");
    let other = SigningKey::from_pem(other.private_pem.as_bytes()).expect("a signing key");
    let forged = signed(&other, NODE, 6, ALSO_B, 1_000_000 * HOUR);
    server.answer(serve(forged, "forged"));
    server.until_refused("bad_signature");
    server.answer(serve(six, "six"));
    server.until_active(6);
}

// covers: B7a
#[test]
fn errors_redirects_and_huge_bodies_are_refused_and_asked_again_later() {
    let server = with_5();
    server.answer(|_, stream| send(stream, "500 Internal Server Error", "", b"no"));
    server.until("it backs off", |server| server.failures("server_status") >= 6);
    server.until_refused("server_status");
    let asked = server.asked.lock().expect("no panic").clone();
    let last: Vec<_> = asked.windows(2).map(|two| two[1].0 - two[0].0).rev().take(2).collect();
    assert!(last.iter().all(|gap| *gap >= Duration::from_millis(80)), "the gaps grow: {last:?}");
    server.answer(|_, stream| send(stream, "302 Found", "Location: http://127.0.0.1/other\r\n", b""));
    server.until_refused("server_redirect");
    server.answer(|_, mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n");
    });
    server.until_refused("too_large");
    server.answer(|_, mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let chunk = format!("100000\r\n{}\r\n", "x".repeat(0x10_0000));
        while stream.write_all(chunk.as_bytes()).is_ok() {}
    });
    let before = server.failures("too_large");
    server.until("a body without a length is cut", |server| server.failures("too_large") > before);
    let six = server.node.bundle(6, ALSO_B);
    server.answer(serve(six, "six"));
    server.until_active(6);
}

// covers: B7a
#[test]
fn not_modified_is_no_answer_to_whoever_has_no_tag() {
    let server = Server::start(|_, stream| send(stream, "304 Not Modified", "", b""));
    server.until("it is noticed", |server| server.failures("server_status") >= 2);
    assert_eq!(server.node.active(), None);
    assert!(server.feed.status(SystemTime::now()).last_error.is_some(), "the operator is told");
    let five = server.node.bundle(5, ONLY_A);
    server.answer(serve(five, "five"));
    server.until_active(5);
    // What was refused has left no tag, so a cache that says 304 does not hide why.
    server.answer(serve(b"no bundle".to_vec(), "bad"));
    server.until_refused("bad_archive");
    let before = server.failures("server_status");
    server.answer(|_, stream| send(stream, "304 Not Modified", "", b""));
    server.until("it is noticed again", |server| server.failures("server_status") > before);
    assert!(server.feed.status(SystemTime::now()).last_error.is_some(), "and still told");
}

// covers: B7a
#[test]
fn a_server_that_is_slow_or_away_changes_nothing() {
    let server = with_5();
    let held = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&held);
    server.answer(move |_, stream| keep.lock().expect("no panic").push(stream));
    server.until_refused("server_timeout");
    held.lock().expect("no panic").clear();
    std::fs::remove_file(server.node.dir.path().join("server.sock")).expect("away");
    server.until_refused("server_unreachable");
}
