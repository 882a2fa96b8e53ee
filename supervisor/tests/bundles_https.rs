//! Bundles from a server on the network: plain on loopback, and over TLS under the CA that the operator names.

mod bundles_support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use bundles_support::{Node, ONLY_A, impatient, put};
use nova_proto::ids::SpiffeId;
use nova_supervisor::bundles::BundleFeed;
use nova_supervisor::config::{BundleSource, BundleUrl, HttpSource, Reach};
use nova_supervisor::identity::{DevCa, Issued};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

trait Line: Read + Write {}
impl<T: Read + Write> Line for T {}

/// A server that gives the same answer to every question, and counts them.
struct Server {
    port: u16,
    answer: Arc<Mutex<Vec<u8>>>,
    asked: Arc<AtomicUsize>,
}

impl Server {
    /// `who`: with TLS, as this one. `pause`: how long it rests after each piece of 64 bytes.
    fn start(who: Option<&Issued>, pause: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let (answer, asked) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::<AtomicUsize>::default());
        let config = who.map(server_config);
        let (bytes, count) = (Arc::clone(&answer), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let bytes = bytes.lock().expect("no panic").clone();
                let _ = stream.set_read_timeout(Some(PATIENCE));
                let mut line = line(stream, config.as_ref());
                if has_asked(line.as_mut()) {
                    count.fetch_add(1, Ordering::SeqCst);
                    give(line.as_mut(), &bytes, pause);
                }
            }
        });
        Self { port, answer, asked }
    }

    fn publish(&self, bundle: &[u8]) {
        let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", bundle.len()).into_bytes();
        answer.extend_from_slice(bundle);
        *self.answer.lock().expect("no panic") = answer;
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn plain(&self) -> (Reach, String) {
        (Reach::Plain { host: "127.0.0.1".to_owned(), port: self.port }, format!("127.0.0.1:{}", self.port))
    }

    fn tls(&self) -> (Reach, String) {
        (Reach::Tls { host: "localhost".to_owned(), port: self.port }, format!("localhost:{}", self.port))
    }
}

fn server_config(who: &Issued) -> Arc<ServerConfig> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(who.key_der().to_vec()));
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(who.chain.clone(), key);
    Arc::new(config.expect("a usable key"))
}

fn line(stream: TcpStream, config: Option<&Arc<ServerConfig>>) -> Box<dyn Line> {
    match config {
        None => Box::new(stream),
        Some(config) => {
            let server = ServerConnection::new(Arc::clone(config)).expect("a connection");
            Box::new(StreamOwned::new(server, stream))
        }
    }
}

/// Whether a whole question came; over TLS, one whose sender believed us.
fn has_asked(line: &mut dyn Line) -> bool {
    let (mut head, mut byte) = (Vec::new(), [0; 1]);
    while !head.ends_with(b"\r\n\r\n") {
        match line.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return false,
        }
    }
    head.starts_with(b"GET /bundles/node-1 HTTP/1.1\r\n")
}

fn give(line: &mut dyn Line, bytes: &[u8], pause: Duration) {
    for piece in bytes.chunks(if pause.is_zero() { bytes.len().max(1) } else { 64 }) {
        if line.write_all(piece).and_then(|()| line.flush()).is_err() {
            return;
        }
        std::thread::sleep(pause);
    }
}

/// A node that asks a server for its bundles.
struct Asking {
    node: Node,
    feed: Arc<BundleFeed>,
    _runtime: tokio::runtime::Runtime,
}

impl Asking {
    /// `ca`: what the operator wrote into the file that `policy.ca` names.
    fn start((reach, authority): (Reach, String), ca: Option<&str>) -> Self {
        let mut node = Node::at(SystemTime::now());
        let ca = ca.map(|pem| {
            let path = node.dir.path().join("ca.pem");
            put(&path, pem.as_bytes());
            path
        });
        let url = BundleUrl { reach, authority, path: "/bundles/node-1".to_owned() };
        node.config.source = BundleSource::Http(HttpSource { url, ca, poll_wait: Duration::from_secs(1) });
        let feed = Arc::new(node.feed().with_timing(impatient()));
        feed.start(SystemTime::now());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        runtime.spawn(Arc::clone(&feed).watch());
        Self { node, feed, _runtime: runtime }
    }

    fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.feed.status(SystemTime::now()));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn until_refused(&self, reason: &str) {
        let failures = |asking: &Self| asking.feed.status(SystemTime::now()).failures.get(reason).copied();
        self.until(reason, |asking| failures(asking).unwrap_or(0) >= 2);
        assert_eq!(self.node.active(), None);
    }
}

fn named(ca: &DevCa, dns: &str) -> Issued {
    let id = SpiffeId::new("spiffe://dev.invalid/bundles").expect("an ID");
    ca.issue(&id, dns, Duration::from_secs(3600)).expect("issued")
}

// covers: B7a
#[test]
fn over_https_only_a_server_that_the_named_ca_vouches_for_is_asked() {
    let (ca, stranger) = (DevCa::generate().expect("a CA"), DevCa::generate().expect("a CA"));
    let server = Server::start(Some(&named(&ca, "localhost")), Duration::ZERO);
    let other_name = Server::start(Some(&named(&ca, "elsewhere")), Duration::ZERO);

    Asking::start(server.tls(), Some(&stranger.certificate_pem())).until_refused("server_unreachable");
    Asking::start(server.tls(), None).until_refused("server_unreachable");
    Asking::start(server.tls(), Some("no certificate")).until_refused("server_ca");
    Asking::start(other_name.tls(), Some(&ca.certificate_pem())).until_refused("server_unreachable");
    assert_eq!((server.asked(), other_name.asked()), (0, 0), "nothing is said to a server that nobody vouches for");

    let asking = Asking::start(server.tls(), Some(&ca.certificate_pem()));
    server.publish(&asking.node.bundle(5, ONLY_A));
    asking.until("the bundle is active", |asking| asking.node.active() == Some(5));
}

// covers: B7a
#[test]
fn a_bundle_comes_over_plain_http_on_loopback() {
    let server = Server::start(None, Duration::ZERO);
    let asking = Asking::start(server.plain(), None);
    server.publish(&asking.node.bundle(5, ONLY_A));
    asking.until("the bundle is active", |asking| asking.node.active() == Some(5));
}

// covers: B7a
#[test]
fn a_bundle_that_drips_is_given_up_at_its_deadline() {
    let server = Server::start(None, Duration::from_millis(100));
    let asking = Asking::start(server.plain(), None);
    let bundle = asking.node.bundle(5, ONLY_A);
    assert!(bundle.len() > 64 * 50, "it would take longer than anybody waits");
    server.publish(&bundle);
    asking.until_refused("server_timeout");
}
