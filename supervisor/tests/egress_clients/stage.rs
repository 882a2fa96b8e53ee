//! The node, its guest's relay, and the hosts outside.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};

use nova_proto::ids::BootToken;
use nova_relay::config::Link;
use nova_relay::handover::Handed;
use nova_relay::relay::Relay;
use nova_relay::relay::config::RelayConfig;
use rustls::{ServerConnection, StreamOwned};

use crate::data::{self, Node, Plan, Shared, Upstream, X, issue, read_request, token};

/// Granted request by request.
pub(crate) const PLAIN: &str = "http://plain.test:8080";
/// Granted call by call.
pub(crate) const GRPC: &str = "http://grpc.test:50051";
/// Granted as a connection: TLS of the app's own.
pub(crate) const SECURE: &str = "https://tls.test:9443";

const RULES: &str = "
rules:
  - {id: plain, tenant: t, from: {workload: x}, to: {external: plain.test, port: 8080, addresses: [NET.80/32]}, http: {methods: [GET, HEAD, POST], paths: ['/files/**']}, tls: none}
  - {id: calls, tenant: t, from: {workload: x}, to: {external: grpc.test, port: 50051, addresses: [NET.80/32]}, tls: none, grpc: {services: [grpc.testing.TestService], methods: [EmptyCall, UnaryCall, StreamingInputCall, StreamingOutputCall, FullDuplexCall]}}
  - {id: secure, tenant: t, from: {workload: x}, to: {external: tls.test, port: 9443, addresses: [NET.80/32]}}
";

/// What the hosts outside have.
pub(crate) type Files = Vec<(&'static str, Vec<u8>)>;

pub(crate) struct Stage {
    pub(crate) node: Node,
    /// `127.0.0.1:port` of the guest's proxy.
    pub(crate) proxy: String,
    seen: Shared<Vec<String>>,
    #[allow(dead_code, reason = "they serve while they live")]
    hosts: [Upstream; 2],
}

impl Stage {
    /// Whose hosts have these files, and `/files/hello` besides.
    pub(crate) fn start(mut files: Files) -> Self {
        files.push(("/files/hello", b"hello".to_vec()));
        let node = Node::with(Plan {
            rules: RULES.to_owned(),
            hosts: ["tls.test", "grpc.test"].map(|name| (name.to_owned(), "NET.80".to_owned())).to_vec(),
            half_close: false,
            ..Plan::default()
        });
        fs::write(node.dir.path().join("web.pem"), node.web.certificate_pem()).expect("written");
        let (files, seen) = (Arc::new(files), Shared::<Vec<String>>::default());
        let (had, note) = (Arc::clone(&files), Arc::clone(&seen));
        let plain = Upstream::start(&format!("{}:8080", node.ip(80)), move |stream| serve(stream, &had, &note));
        let config = data::server_config(&issue(&node.web, "spiffe://web/tls", "tls.test"));
        let note = Arc::clone(&seen);
        let secure = Upstream::start(&format!("{}:9443", node.ip(80)), move |stream| {
            let server = ServerConnection::new(Arc::clone(&config)).expect("a server");
            serve(StreamOwned::new(server, stream), &files, &note);
        });
        let proxy = relay(node.dir.path());
        Self { node, proxy, seen, hosts: [plain, secure] }
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.node.dir.path().join(name).display().to_string()
    }

    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("no panic").clone()
    }

    /// Whether a host outside was asked for `path` by a program that calls itself `agent`.
    pub(crate) fn saw(&self, path: &str, agent: &str) -> bool {
        let agent = format!("user-agent: {agent}").to_ascii_lowercase();
        self.seen().iter().any(|request| {
            request.split(' ').nth(1).is_some_and(|target| target.starts_with(path))
                && request.to_ascii_lowercase().contains(&agent)
        })
    }
}

fn serve(mut stream: impl Read + Write, files: &Files, seen: &Mutex<Vec<String>>) {
    while let Ok(request) = read_request(&mut stream) {
        let mut words = request.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let path = target.split('?').next().unwrap_or_default();
        let found = files.iter().find(|(name, _)| *name == path);
        let (status, body) = found.map_or(("404 Not Found", &b"none"[..]), |(_, body)| ("200 OK", body));
        let kind = match path.rsplit_once('.') {
            Some((_, "json")) => "application/json",
            _ if path.ends_with('/') => "text/html",
            _ => "application/octet-stream",
        };
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
        let is_head = method == "HEAD";
        seen.lock().expect("no panic").push(request);
        let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(if is_head { b"" } else { body }));
        if sent.and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

/// Starts the relay of pod X; gives the address of its proxy. It serves until the test's process ends.
fn relay(dir: &Path) -> String {
    let pod = dir.join("guests").join(X);
    let link = pod.join("relay");
    fs::create_dir(&link).expect("a folder");
    symlink(pod.join("v.sock_15001"), link.join("host_15001")).expect("linked");
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
    let config = RelayConfig {
        boot_token: BootToken(token(X)),
        link: Link::Unix { dir: link.clone() },
        host_ports: vec![15001],
        guest_port: 15080,
        framed: true,
        proxy_port: free.port(),
        ingress: Vec::new(),
        socket_dir: link,
        dependencies: Vec::new(),
        max_connections: 900,
        egress_sockets: Vec::new(),
        ping_from: None,
    };
    let (ready, wait) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let relay = Relay::start(config, Handed::default()).expect("the relay starts");
            ready.send(()).expect("somebody waits");
            relay.serve().await;
        });
    });
    wait.recv().expect("the relay is ready");
    format!("127.0.0.1:{}", free.port())
}
