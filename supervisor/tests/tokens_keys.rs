//! Keys of issuers behind a URL: whom the supervisor asks, how often, and what it does while nobody answers.

mod tokens_support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use jsonwebtoken::Algorithm;
use nova_supervisor::config::{BundleUrl, KeySource, Reach, TokenConfig};
use nova_supervisor::net::guard::AddressGuard;
use nova_supervisor::tokens::{Fault, Issuers, Timing};
use serde_json::json;
use tokens_support::{ISSUER, Key, now, service_a, sign};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
const SHORTEST: Duration = Duration::from_millis(200);

type Handler = Box<dyn FnMut(TcpStream) + Send>;

/// A server of keys that answers as the test wants, and notes when it was asked.
struct Server {
    port: u16,
    asked: Arc<Mutex<Vec<Instant>>>,
    handler: Arc<Mutex<Handler>>,
}

impl Server {
    fn start(handler: impl FnMut(TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let port = listener.local_addr().expect("bound").port();
        let asked = Arc::<Mutex<Vec<Instant>>>::default();
        let handler: Arc<Mutex<Handler>> = Arc::new(Mutex::new(Box::new(handler)));
        let (log, answer) = (Arc::clone(&asked), Arc::clone(&handler));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                log.lock().expect("no panic").push(Instant::now());
                (answer.lock().expect("no panic"))(stream);
            }
        });
        Self { port, asked, handler }
    }

    fn answer(&self, handler: impl FnMut(TcpStream) + Send + 'static) {
        *self.handler.lock().expect("no panic") = Box::new(handler);
    }

    fn asked(&self) -> usize {
        self.asked.lock().expect("no panic").len()
    }
}

fn send(mut stream: TcpStream, status: &str, fields: &str, body: &str) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
        head.push(byte[0]);
    }
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{fields}\r\n{body}", body.len());
    let _ = stream.write_all(answer.as_bytes());
}

/// A server's answer: these keys.
fn keys(all: &[&Key]) -> impl FnMut(TcpStream) + Send + 'static {
    let body = json!({"keys": all.iter().map(|key| key.jwk()).collect::<Vec<_>>()}).to_string();
    move |stream| send(stream, "200 OK", "", &body)
}

/// The issuer whose keys are at `host`:`port`, followed.
struct Followed {
    issuers: Arc<Issuers>,
    _runtime: tokio::runtime::Runtime,
}

impl Followed {
    fn over_tls(port: u16, ca: &std::path::Path) -> Self {
        let reach = Reach::Tls { host: "127.0.0.1".to_owned(), port };
        let url = BundleUrl { reach, authority: format!("127.0.0.1:{port}"), path: "/keys".to_owned() };
        let keys = KeySource::Url { url, ca: Some(ca.to_owned()) };
        Self::of(keys, &lab(), Duration::from_millis(250), PATIENCE)
    }

    fn start(host: &str, port: u16, guard: &AddressGuard) -> Self {
        Self::with(host, port, guard, Duration::from_secs(300), Duration::from_secs(3600))
    }

    fn with(host: &str, port: u16, guard: &AddressGuard, refresh: Duration, max_age: Duration) -> Self {
        let reach = Reach::Plain { host: host.to_owned(), port };
        let url = BundleUrl { reach, authority: format!("{host}:{port}"), path: "/keys".to_owned() };
        Self::of(KeySource::Url { url, ca: None }, guard, refresh, max_age)
    }

    fn of(keys: KeySource, guard: &AddressGuard, refresh: Duration, max_age: Duration) -> Self {
        let config = TokenConfig {
            issuer: ISSUER.to_owned(),
            audiences: vec!["orders".to_owned()],
            keys,
            algorithms: vec![Algorithm::ES256],
            leeway: Duration::from_secs(5),
            refresh,
            max_age,
        };
        let issuers = Arc::new(Issuers::open(&[config], guard).expect("nothing is read yet"));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let timing = Timing {
            shortest: SHORTEST,
            retry: Duration::from_millis(50),
            patience: Duration::from_millis(500),
            poll: Duration::from_millis(50),
        };
        runtime.spawn(Arc::clone(&issuers).follow(timing));
        Self { issuers, _runtime: runtime }
    }

    fn verify(&self, key: &Key) -> Option<Fault> {
        let claims = json!({"iss": ISSUER, "sub": "alice", "aud": "orders", "exp": now() + 600});
        self.issuers.verify(&sign(&key.header(), &claims, key), &service_a()).err()
    }

    fn warning(&self) -> String {
        self.issuers.warnings(SystemTime::now()).join(" ")
    }
}

fn lab() -> AddressGuard {
    AddressGuard::new(vec!["127.0.0.0/8".parse().expect("a network")], Vec::new())
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

// covers: C6d (T30)
#[test]
fn a_url_that_leads_to_the_machine_itself_or_to_a_metadata_service_is_never_asked() {
    let key = Key::ec("k1");
    let server = Server::start(keys(&[&key]));
    for host in ["127.0.0.1", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "localhost"] {
        let followed = Followed::start(host, server.port, &AddressGuard::default());
        until(host, || followed.warning().contains("may not be asked"));
        assert_eq!(followed.verify(&key), Some(Fault::KeysUnavailable), "{host}");
    }
    assert_eq!(server.asked(), 0);
}

// covers: C6d
#[test]
fn a_redirect_is_not_followed() {
    let key = Key::ec("k1");
    let elsewhere = Server::start(keys(&[&key]));
    let location = format!("Location: http://127.0.0.1:{}/keys\r\n", elsewhere.port);
    let server = Server::start(move |stream| send(stream, "302 Found", &location, ""));
    let followed = Followed::start("127.0.0.1", server.port, &lab());
    until("it is told", || followed.warning().contains("redirects are not followed"));
    assert_eq!((followed.verify(&key), elsewhere.asked()), (Some(Fault::KeysUnavailable), 0));
}

// covers: C6d
#[test]
fn an_answer_that_is_too_long_too_slow_or_no_set_of_keys_changes_nothing() {
    let key = Key::ec("k1");
    let huge = format!("{{\"keys\":[],\"padding\":\"{}\"}}", "x".repeat(300 * 1024));
    let server = Server::start(move |stream| send(stream, "200 OK", "", &huge));
    let second = Duration::from_millis(300);
    let followed = Followed::with("127.0.0.1", server.port, &lab(), second, PATIENCE);
    until("too long", || followed.warning().contains("more than 262144 bytes"));
    server.answer(std::mem::forget);
    until("too slow", || followed.warning().contains("no whole answer in time"));
    server.answer(|stream| send(stream, "200 OK", "", "<html>"));
    until("no set", || followed.warning().contains("no JSON Web Key Set"));
    assert_eq!(followed.verify(&key), Some(Fault::KeysUnavailable));
    server.answer(keys(&[&key]));
    until("good at last", || followed.verify(&key).is_none());
    assert_eq!(followed.warning(), "");
}

// covers: C6d
#[test]
fn tokens_with_unknown_keys_ask_for_keys_once_per_interval_however_many_there_are() {
    let (key, unknown) = (Key::ec("k1"), Key::ec("k2"));
    let server = Server::start(keys(&[&key]));
    let followed = Followed::start("127.0.0.1", server.port, &lab());
    until("the keys are there", || followed.verify(&key).is_none());
    let mut tokens = 0;
    until("it was asked again and again", || {
        tokens += 1;
        assert_eq!(followed.verify(&unknown), Some(Fault::UnknownKey));
        server.asked() >= 4
    });
    let asked = server.asked.lock().expect("no panic").clone();
    let gaps: Vec<_> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // The clock of the test starts when the question arrives, the interval when its answer was read.
    assert!(gaps.iter().all(|gap| *gap >= SHORTEST / 2), "{gaps:?} for {tokens} tokens");
    assert!(tokens > asked.len(), "{tokens} tokens, {} questions", asked.len());
}

// covers: C6d
#[test]
fn a_new_key_is_found_when_a_token_names_it_and_a_withdrawn_one_ends() {
    let (old, new) = (Key::ec("k1"), Key::ec("k2"));
    let server = Server::start(keys(&[&old]));
    let followed = Followed::start("127.0.0.1", server.port, &lab());
    until("the keys are there", || followed.verify(&old).is_none());
    server.answer(keys(&[&new]));
    until("the new key is known", || followed.verify(&new).is_none());
    assert_eq!(followed.verify(&old), Some(Fault::UnknownKey));
}

// covers: C6d
#[test]
fn old_keys_are_used_while_nobody_answers_and_not_for_ever() {
    let key = Key::ec("k1");
    let server = Server::start(keys(&[&key]));
    let (refresh, max_age) = (Duration::from_millis(250), Duration::from_secs(3));
    let followed = Followed::with("127.0.0.1", server.port, &lab(), refresh, max_age);
    until("the keys are there", || followed.verify(&key).is_none());
    server.answer(|stream| send(stream, "500 Internal Server Error", "", "sorry"));
    until("the failure is told", || followed.warning().contains("the old ones are still used"));
    assert_eq!(followed.verify(&key), None);
    until("they are too old", || followed.verify(&key) == Some(Fault::KeysUnavailable));
    assert!(followed.warning().contains("too old, and its tokens are refused"), "{}", followed.warning());
    server.answer(keys(&[&key]));
    until("it answers again", || followed.verify(&key).is_none());
}

// covers: C6d
#[test]
fn a_server_of_keys_must_prove_its_name_to_the_configured_ca() {
    let key = Key::ec("k1");
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
    let ca = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().expect("a key")).expect("a CA");
    let leaf_key = rcgen::KeyPair::generate().expect("a key");
    let mut leaf = rcgen::CertificateParams::default();
    leaf.subject_alt_names = vec![rcgen::SanType::IpAddress([127, 0, 0, 1].into())];
    let leaf = leaf.signed_by(&leaf_key, &ca).expect("signed");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let secret = rustls::pki_types::PrivatePkcs8KeyDer::from(leaf_key.serialize_der());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![leaf.into()], secret.into())
        .expect("a pair");
    let (config, body) = (Arc::new(config), json!({"keys": [key.jwk()]}).to_string());
    let server = Server::start(move |stream| {
        let connection = rustls::ServerConnection::new(Arc::clone(&config)).expect("a configuration");
        let mut tls = rustls::StreamOwned::new(connection, stream);
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && matches!(tls.read(&mut byte), Ok(1)) {
            head.push(byte[0]);
        }
        let _ = write!(tls, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    });
    let dir = tempfile::tempdir().expect("a folder");
    let (right, wrong) = (dir.path().join("ca.pem"), dir.path().join("other.pem"));
    std::fs::write(&right, ca.pem()).expect("written");
    let other = nova_supervisor::identity::DevCa::generate().expect("a CA");
    std::fs::write(&wrong, other.certificate_pem()).expect("written");
    let deceived = Followed::over_tls(server.port, &wrong);
    until("the stranger is refused", || deceived.warning().contains("invalid peer certificate"));
    assert_eq!(deceived.verify(&key), Some(Fault::KeysUnavailable));
    let followed = Followed::over_tls(server.port, &right);
    until("the keys are there", || followed.verify(&key).is_none());
}
