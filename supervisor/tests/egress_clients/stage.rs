//! The node, its guest's relay, and the hosts outside.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use rustls::{ServerConnection, StreamOwned};
use serde_json::json;

use crate::data::{self, Node, Plan, Shared, Upstream, X, issue, read_request};
use crate::relay::Relay;
use crate::sockets;

/// Granted request by request.
pub(crate) const PLAIN: &str = "http://plain.test:8080";
/// Granted call by call.
pub(crate) const GRPC: &str = "http://grpc.test:50051";
/// Granted as a connection: TLS of the app's own.
pub(crate) const SECURE: &str = "https://tls.test:9443";

/// Granted, and leads to what is not.
pub(crate) const AWAY: &str = "/files/away";

const RULES: &str = "
rules:
  - {id: plain, tenant: t, from: {workload: x}, to: {external: plain.test, port: 8080, addresses: [NET.80/32]}, http: {methods: [GET, HEAD, POST], paths: ['/files/**']}, tls: none}
  - {id: chat, tenant: t, from: {workload: x}, to: {external: plain.test, port: 8080, addresses: [NET.80/32]}, http: {methods: [GET], paths: [/chat]}, tls: none, upgrade: [websocket]}
  - {id: scoped, tenant: t, from: {workload: x}, to: {external: plain.test, port: 8080, addresses: [NET.80/32]}, http: {methods: [GET], paths: ['/npm/**'], encoded_slash: true}, tls: none}
  - {id: calls, tenant: t, from: {workload: x}, to: {external: grpc.test, port: 50051, addresses: [NET.80/32]}, tls: none, grpc: {services: [grpc.testing.TestService], methods: [EmptyCall, UnaryCall, StreamingInputCall, StreamingOutputCall, FullDuplexCall]}}
  - {id: secure, tenant: t, from: {workload: x}, to: {external: tls.test, port: 9443, addresses: [NET.80/32]}}
";

/// What the hosts outside have.
pub(crate) type Files = Vec<(&'static str, Vec<u8>)>;

pub(crate) struct Stage {
    pub(crate) node: Node,
    /// `127.0.0.1:port` of the guest's proxy.
    pub(crate) proxy: String,
    relay: Relay,
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
        let web = node.dir.path().join("web.pem");
        let roots = json!({"SSL_CERT_FILE": web, "REQUESTS_CA_BUNDLE": web});
        let relay = Relay::start(node.dir.path(), X, &json!({"env": roots}));
        Self { proxy: relay.proxy(), node, relay, seen, hosts: [plain, secure] }
    }

    /// What the guest's app has in its environment, in an image with the CA of the hosts.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        self.relay.environment()
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
        if sockets::asks_for_one(&request) {
            sockets::talk(stream, &request);
            return seen.lock().expect("no panic").push(request);
        }
        let found = files.iter().find(|(name, _)| *name == path);
        let (status, body) = found.map_or(("404 Not Found", &b"none"[..]), |(_, body)| ("200 OK", body));
        let kind = match path.rsplit_once('.') {
            Some((_, "json")) => "application/json",
            _ if path.ends_with('/') => "text/html",
            _ => "application/octet-stream",
        };
        let (status, location) =
            if path == AWAY { ("302 Found", format!("Location: {PLAIN}/secret\r\n")) } else { (status, String::new()) };
        let head =
            format!("HTTP/1.1 {status}\r\n{location}Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
        let is_head = method == "HEAD";
        seen.lock().expect("no panic").push(request);
        let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(if is_head { b"" } else { body }));
        if sent.and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}
