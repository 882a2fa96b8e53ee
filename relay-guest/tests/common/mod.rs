//! A real nova-relay over the Unix link, with the test as its host and as its app. Everything blocks with a time-out.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nova_proto::hello::{HEAD_LEN, Hello, Kind, parse_head};
use nova_proto::ids::BootToken;
use nova_relay::config::{Dependency, Ingress, Link};
use nova_relay::handover::Handed;
use nova_relay::relay::config::RelayConfig;
use tempfile::TempDir;

pub(crate) const TOKEN: [u8; 16] = [0xa5; 16];
/// Nothing in these tests takes longer, except on a machine that is stuck.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const FIN: &[u8] = &[1, 0, 0];
pub(crate) const RST: &[u8] = &[2, 0, 0];

pub(crate) fn data(bytes: &[u8]) -> Vec<u8> {
    let len = u16::try_from(bytes.len()).expect("short").to_be_bytes();
    [&[0, len[0], len[1]], bytes].concat()
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind").local_addr().expect("address").port()
}

/// The host's end of one instance.
pub(crate) struct Host {
    listener: UnixListener,
    presences: Vec<UnixStream>,
}

impl Host {
    /// The host's end of a guest that somebody else starts.
    pub(crate) fn at(path: &Path) -> Self {
        Self { listener: UnixListener::bind(path).expect("bind"), presences: Vec::new() }
    }

    /// The next connection that is not a presence, after its hello.
    pub(crate) fn accept(&mut self) -> (Hello, UnixStream) {
        loop {
            let (mut stream, _) = self.listener.accept().expect("accept");
            stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
            let hello = read_hello(&mut stream);
            if hello.kind != Kind::Presence {
                return (hello, stream);
            }
            self.presences.push(stream);
        }
    }

    /// The next connection, whatever it is, as bytes.
    pub(crate) fn accept_bytes(&mut self, len: usize) -> (Vec<u8>, UnixStream) {
        let (mut stream, _) = self.listener.accept().expect("accept");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let mut bytes = vec![0; len];
        stream.read_exact(&mut bytes).expect("hello");
        (bytes, stream)
    }

    pub(crate) fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

fn read_hello(stream: &mut UnixStream) -> Hello {
    let mut head = [0; HEAD_LEN];
    stream.read_exact(&mut head).expect("head");
    let head = parse_head(&head).expect("valid head");
    let mut target = vec![0; head.target_len];
    stream.read_exact(&mut target).expect("target");
    head.with_target(&target).expect("valid target")
}

pub(crate) struct Guest {
    pub(crate) config: RelayConfig,
    /// What nova-init would have made.
    pub(crate) handed: Handed,
    /// The app's listener, declared as ingress.
    pub(crate) app: TcpListener,
    dir: TempDir,
    relay: Option<Child>,
}

impl Guest {
    /// Nothing runs yet. `change` may alter the configuration.
    pub(crate) fn new(framed: bool, change: impl FnOnce(&mut RelayConfig)) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let app = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let app_port = app.local_addr().expect("address").port();
        let mut config = RelayConfig {
            boot_token: BootToken(TOKEN),
            link: Link::Unix { dir: dir.path().to_owned() },
            host_ports: vec![15001],
            guest_port: 15080,
            framed,
            proxy_port: free_port(),
            ingress: vec![Ingress::Tcp(app_port), Ingress::Socket("app.sock".into())],
            socket_dir: dir.path().to_owned(),
            dependencies: vec![Dependency {
                host: "db.t.nova".into(),
                port: free_port(),
                guest_ip: Ipv4Addr::new(127, 0, 1, 1),
                socket: None,
            }],
            max_connections: 900,
            egress_sockets: Vec::new(),
            ping_from: None,
        };
        change(&mut config);
        Self { config, handed: Handed::default(), app, dir, relay: None }
    }

    pub(crate) fn host(&self, port: u32) -> Host {
        Host::at(&self.path(&format!("host_{port}")))
    }

    /// Starts the relay and waits until it says that it is ready.
    pub(crate) fn start(&mut self) {
        let mut relay = self.spawn(Stdio::inherit());
        let mut line = String::new();
        BufReader::new(relay.stdout.take().expect("pipe")).read_line(&mut line).expect("ready");
        self.relay = Some(relay);
        assert_eq!(line, "ready\n");
    }

    /// Runs a relay that does not start to its end.
    pub(crate) fn fail(&self) -> Output {
        self.spawn(Stdio::piped()).wait_with_output().expect("output")
    }

    fn spawn(&self, errors: Stdio) -> Child {
        let (ours, its) = UnixStream::pair().expect("a pair");
        let relay = Command::new(env!("CARGO_BIN_EXE_nova-relay"))
            .stdin(OwnedFd::from(its))
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("the relay must start");
        let text = serde_json::to_vec(&self.config).expect("json");
        self.handed.send(ours, &text).expect("configuration");
        relay
    }

    pub(crate) fn started(framed: bool) -> (Self, Host) {
        let mut guest = Self::new(framed, |_| ());
        let host = guest.host(15001);
        guest.start();
        (guest, host)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn dial_proxy(&self) -> TcpStream {
        self.dial_app_side(Ipv4Addr::LOCALHOST, self.config.proxy_port)
    }

    pub(crate) fn dial_app_side(&self, ip: Ipv4Addr, port: u16) -> TcpStream {
        let stream = TcpStream::connect((ip, port)).expect("the relay listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream
    }

    /// The host dials the guest.
    pub(crate) fn dial(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path("guest_15080")).expect("the relay listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream
    }

    /// The host dials a target and gets a status.
    pub(crate) fn dial_target(&self, kind: Kind, target: &str, token: [u8; 16]) -> (u8, UnixStream) {
        let mut stream = self.dial();
        let hello = Hello { kind, framed: self.config.framed, token, target: target.into() };
        stream.write_all(&hello.encode().expect("valid")).expect("hello");
        let mut status = [0];
        stream.read_exact(&mut status).expect("status");
        (status[0], stream)
    }

    pub(crate) fn app_port(&self) -> u16 {
        self.app.local_addr().expect("address").port()
    }

    /// A whole connection host to app: both ends.
    pub(crate) fn ingress(&self) -> (UnixStream, TcpStream) {
        let (status, host) = self.dial_target(Kind::Tcp, &self.app_port().to_string(), TOKEN);
        assert_eq!(status, 0);
        let (app, _) = self.app.accept().expect("accept");
        app.set_read_timeout(Some(PATIENCE)).expect("timeout");
        (host, app)
    }

    /// A whole connection app to host: both ends.
    pub(crate) fn egress(&self, host: &mut Host) -> (TcpStream, UnixStream) {
        let app = self.dial_proxy();
        (app, host.accept().1)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(relay) = &mut self.relay {
            let _ = relay.kill();
            let _ = relay.wait();
        }
    }
}

pub(crate) fn read_to_end(mut stream: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an end");
    bytes
}

pub(crate) fn read_exact(mut stream: impl Read, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).expect("bytes");
    bytes
}

/// Polls until `probe` gives a value.
pub(crate) fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
