//! The node of these tests and the destinations that its guest calls.

use std::io::Read;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustls::{ServerConnection, StreamOwned};
use serde_json::Value;

use crate::data::h2::{Event, H2, find};
use crate::data::{self, A, HTTPS, Node, Plan, Shared, Upstream, X, read_request, token, until};

/// What decides on requests to every target. `/v1/files/**` is granted to nobody.
const HTTP: &str = "http: {methods: [GET, HEAD, POST, PUT], paths: ['/v1/orders/**']}";

/// One more of all targets but the first.
const SLASH: &str = "http: {methods: [GET], paths: ['/*'], encoded_slash: true}";

/// Fields that no app must see of its destination, in every answer.
const HOP: &str = "Alt-Svc: h3=\":443\"\r\nX-Nova-Decision-Id: evil\r\nX-Kept: 1\r\n";

/// A destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// A host outside, without TLS.
    Plain,
    /// A host outside, to which the supervisor adds TLS.
    Originate,
    /// A host outside, to which the supervisor adds TLS, and before which it answers TLS of the app's own.
    Intercept,
    /// A workload of the same node.
    Workload,
}

impl Target {
    /// Every one of them: a new one that is not given its place here does not compile.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        std::iter::successors(Some(Self::Plain), |target| match target {
            Self::Plain => Some(Self::Originate),
            Self::Originate => Some(Self::Intercept),
            Self::Intercept => Some(Self::Workload),
            Self::Workload => None,
        })
    }

    pub(crate) fn host(self) -> &'static str {
        match self {
            Self::Plain => "plain.test",
            Self::Originate => "api.test",
            Self::Intercept => "look.test",
            Self::Workload => "service-a.t.nova",
        }
    }

    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Plain => 8080,
            Self::Originate => 9443,
            Self::Intercept => 9444,
            Self::Workload => HTTPS,
        }
    }

    /// Whether a rule accepts an escaped slash in paths.
    pub(crate) fn accepts_slash(self) -> bool {
        self != Self::Plain
    }

    pub(crate) fn authority(self) -> String {
        format!("{}:{}", self.host(), self.port())
    }
}

/// A node whose guest may call every target, and what these saw.
pub(crate) struct World {
    pub(crate) node: Node,
    seen: Shared<Vec<String>>,
    upstreams: [Upstream; 3],
    /// What the guest is told to trust.
    pub(crate) trust: String,
    refused_by_gate: AtomicUsize,
}

impl World {
    pub(crate) fn start() -> Self {
        Self::with("", &[])
    }

    /// The same with more rules, and more names.
    pub(crate) fn with(more: &str, hosts: &[(&str, &str)]) -> Self {
        let plan = Plan::default();
        let dependencies = Target::all().map(|target| {
            format!("{{host: {}, port: {}, guest_ip: 127.0.1.{}}}", target.host(), target.port(), 10 + target as u8)
        });
        let own = plan.endpoints.find("dependencies: [").expect("a list");
        let end = own + plan.endpoints[own..].find(']').expect("its end");
        let list = dependencies.collect::<Vec<_>>().join(", ");
        let endpoints = format!("{}dependencies: [{list}{}", &plan.endpoints[..own], &plan.endpoints[end..]);
        let hosts = hosts
            .iter()
            .chain(&[("look.test", "NET.80")])
            .map(|(name, address)| ((*name).to_owned(), (*address).to_owned()))
            .collect();
        let node = Node::with(Plan { rules: format!("{}{more}", rules()), endpoints, hosts, ..plan });
        let seen: Shared<Vec<String>> = Arc::default();
        let over_tls = |target| with_tls(&node, target, &seen);
        let upstreams = [plain(&node, &seen), over_tls(Target::Originate), over_tls(Target::Intercept)];
        let trust = trust(&node);
        let note = Arc::clone(&seen);
        node.guest(A).serve(move |link, _| answer_http1(link, &note));
        Self { node, seen, upstreams, trust, refused_by_gate: AtomicUsize::new(0) }
    }

    /// Every request that reached a target, head and body; of HTTP/2 in the form of HTTP/1.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("no panic").clone()
    }

    /// The line of bytes that a gate refused just now: no decision is about them, so the caller has no id.
    pub(crate) fn next_refusal_of_a_gate(&self, what: &str) -> Value {
        let fits = |line: &Value| line["kind"] == "request" && line["detail"].is_string() && line["method"].is_null();
        let known = self.refused_by_gate.fetch_add(1, Ordering::Relaxed);
        until(what, || self.node.audit().iter().filter(|line| fits(line)).count() > known);
        self.node.audit().into_iter().filter(fits).nth(known).expect("a line")
    }

    /// Connections that the hosts outside accepted.
    pub(crate) fn accepted(&self) -> usize {
        self.upstreams.iter().map(Upstream::accepted).sum()
    }
}

fn rules() -> String {
    format!(
        "
external_cas: [{{name: web-ca, pem_file: web-ca.pem}}]
rules:
  - {{id: to-plain, tenant: t, from: {{workload: x}}, to: {{external: plain.test, port: 8080, addresses: [NET.80/32]}}, {HTTP}, tls: none}}
  - {{id: to-api, tenant: t, from: {{workload: x}}, to: {{external: api.test, port: 9443, ca: web-ca, addresses: [NET.80/32]}}, {HTTP}}}
  - {{id: slash-api, tenant: t, from: {{workload: x}}, to: {{external: api.test, port: 9443, ca: web-ca, addresses: [NET.80/32]}}, {SLASH}}}
  - {{id: to-look, tenant: t, from: {{workload: x}}, to: {{external: look.test, port: 9444, ca: web-ca, addresses: [NET.80/32]}}, {HTTP}, tls: intercept}}
  - {{id: slash-look, tenant: t, from: {{workload: x}}, to: {{external: look.test, port: 9444, ca: web-ca, addresses: [NET.80/32]}}, {SLASH}, tls: intercept}}
  - {{id: to-a, tenant: t, from: {{workload: x}}, to: {{workload: service-a, port: https}}, {HTTP}}}
  - {{id: slash-a, tenant: t, from: {{workload: x}}, to: {{workload: service-a, port: https}}, {SLASH}}}
  - {{id: to-tcp, tenant: t, from: {{workload: x}}, to: {{external: tcp.test, port: 5432, addresses: [NET.80/32]}}}}
  - {{id: b-to-a, tenant: t, from: {{workload: x}}, to: {{workload: b, port: https}}, {HTTP}}}
"
    )
}

fn plain(node: &Node, seen: &Shared<Vec<String>>) -> Upstream {
    let seen = Arc::clone(seen);
    Upstream::start(&format!("{}:8080", node.ip(80)), move |stream| {
        if is_http2(&stream) { answer_http2(stream, &seen) } else { answer_http1(stream, &seen) }
    })
}

fn with_tls(node: &Node, target: Target, seen: &Shared<Vec<String>>) -> Upstream {
    let config = data::server_config(&data::issue(&node.web, "spiffe://web/host", target.host()));
    let seen = Arc::clone(seen);
    Upstream::start(&format!("{}:{}", node.ip(80), target.port()), move |stream| {
        let server = ServerConnection::new(Arc::clone(&config)).expect("a server");
        answer_http1(StreamOwned::new(server, stream), &seen);
    })
}

/// Asks as the guest does when it starts.
fn trust(node: &Node) -> String {
    let mut link = node.guest(X).dial(6, token(X), "");
    let mut head = [0; 4];
    link.read_exact(&mut head).expect("a length");
    let mut pem = vec![0; usize::try_from(u32::from_be_bytes(head)).expect("short")];
    link.read_exact(&mut pem).expect("a bundle");
    String::from_utf8(pem).expect("text")
}

fn is_http2(stream: &TcpStream) -> bool {
    let mut first = [0; 4];
    while let Ok(read @ 1..) = stream.peek(&mut first) {
        if !b"PRI ".starts_with(&first[..read]) {
            return false;
        }
        if read == first.len() {
            return true;
        }
    }
    false
}

/// Answers each request with its first line.
fn answer_http1(mut stream: impl std::io::Read + std::io::Write, seen: &Mutex<Vec<String>>) {
    while let Ok(request) = read_request(&mut stream) {
        let line = request.lines().next().unwrap_or_default().to_owned();
        let body = if line.starts_with("HEAD ") { "" } else { &line };
        let answer = format!("HTTP/1.1 200 OK\r\n{HOP}Content-Length: {}\r\n\r\n{body}", line.len());
        seen.lock().expect("no panic").push(request);
        if stream.write_all(answer.as_bytes()).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

/// The same in HTTP/2.
fn answer_http2(stream: TcpStream, seen: &Mutex<Vec<String>>) {
    let Ok(mut h2) = H2::server(stream) else { return };
    let mut open: Vec<(u32, String)> = Vec::new();
    while let Ok(event) = h2.event() {
        let (stream, end) = match event {
            Event::Headers { stream, fields, end } => {
                let get = |name| find(&fields, name).unwrap_or("?");
                let mut request =
                    format!("{} {} HTTP/2\r\nHost: {}\r\n", get(":method"), get(":path"), get(":authority"));
                for (name, value) in fields.iter().filter(|(name, _)| !name.starts_with(':')) {
                    request.push_str(&format!("{name}: {value}\r\n"));
                }
                open.push((stream, request + "\r\n"));
                (stream, end)
            }
            Event::Data { stream, bytes, end } => {
                let (_, request) = open.iter_mut().find(|(id, _)| *id == stream).expect("an open stream");
                request.push_str(&String::from_utf8_lossy(&bytes));
                (stream, end)
            }
            Event::Reset { .. } => continue,
            Event::GoAway { .. } => return,
        };
        if end {
            let at = open.iter().position(|(id, _)| *id == stream).expect("an open stream");
            let request = open.remove(at).1;
            let line = request.lines().next().unwrap_or_default().to_owned();
            let is_head = line.starts_with("HEAD ");
            seen.lock().expect("no panic").push(request);
            h2.headers(
                stream,
                &[(":status", "200"), ("alt-svc", "h3=\":443\""), ("x-nova-decision-id", "evil"), ("x-kept", "1")],
                is_head,
            );
            if !is_head {
                h2.data(stream, line.as_bytes(), true);
            }
        }
    }
}
