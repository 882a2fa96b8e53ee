//! The node that the clients call: real supervisor, real relay, and how a client gets there.

use std::fs;

use nova_supervisor::identity::DevCa;

use crate::app::App;
use crate::data::{Node, Plan};
use crate::guest;

pub(crate) const NAME: &str = "service-a.t.nova";
/// Mutual TLS.
pub(crate) const MTLS: u16 = 8443;
/// A server certificate, TLS 1.2 as well.
pub(crate) const EDGE: u16 = 9443;
/// No TLS.
pub(crate) const PLAIN: u16 = 8080;

const HTTP_RULES: &str = "rules:
  - {id: x-to-mtls, tenant: t, from: {workload: x}, to: {workload: service-a, port: mtls}, http: {methods: [GET, HEAD, POST], paths: ['/v1/orders/**']}}
  - {id: outside-to-edge, tenant: t, from: {cidr: 127.0.0.1/32}, to: {workload: service-a, port: edge}, http: {methods: [GET, HEAD, POST], paths: ['/v1/orders/**']}}
  - {id: outside-to-plain, tenant: t, from: {cidr: 127.0.0.1/32}, to: {workload: service-a, port: plain}, http: {methods: [GET, HEAD, POST], paths: ['/v1/orders/**']}}
";

/// A node whose service-a is an HTTP/1.1 app.
pub(crate) fn http() -> (Node, App) {
    let app = App::start();
    let node = node("http", app.port, HTTP_RULES);
    (node, app)
}

/// A node whose service-a listens on the guest's port `target`, for three ports of this protocol.
pub(crate) fn node(protocol: &str, target: u16, rules: &str) -> Node {
    let plan = Plan::default();
    let ports = [("mtls", MTLS, "mtls", ""), ("edge", EDGE, "tls", ", tls12: true"), ("plain", PLAIN, "tcp", "")];
    let row = |(name, port, mode, more)| {
        format!(
            "      - {{name: {name}, port: {port}, target_port: {target}, mode: {mode}, protocol: {protocol}{more}}}\n"
        )
    };
    let ports = ports.map(row).concat();
    let node = Node::with(Plan {
        endpoints: with_ports(&plan.endpoints, &ports),
        rules: rules.to_owned(),
        half_close: false,
        prepare: |dir, _: &DevCa| guest::stand_in(dir),
        ..plan
    });
    let x = node.svid("x");
    for (file, text) in
        [("ca.pem", node.ca.certificate_pem()), ("x.crt", x.chain_pem()), ("x.key", x.key_pem().to_string())]
    {
        fs::write(node.dir.path().join(file), text).expect("written");
    }
    fs::write(node.dir.path().join("hosts"), format!("{} {NAME}\n", node.ip(21))).expect("written");
    node
}

/// Other ports for service-a.
fn with_ports(endpoints: &str, ports: &str) -> String {
    let row = endpoints.find("workload_id: service-a\n").expect("a row");
    let start = row + endpoints[row..].find("    ports:\n").expect("ports") + "    ports:\n".len();
    let end = start + endpoints[start..].find("    state:").expect("the next key");
    format!("{}{ports}{}", &endpoints[..start], &endpoints[end..])
}

/// Where a client goes, and as whom.
#[derive(Clone, Copy)]
pub(crate) struct Way<'a> {
    pub(crate) node: &'a Node,
    pub(crate) port: u16,
    /// `h1` or `h2`.
    pub(crate) protocol: &'static str,
}

impl Way<'_> {
    pub(crate) fn url(&self) -> String {
        let scheme = if self.port == PLAIN { "http" } else { "https" };
        format!("{scheme}://{NAME}:{}", self.port)
    }

    pub(crate) fn address(&self) -> String {
        self.node.ip(21)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.node.dir.path().join(name).display().to_string()
    }

    /// What all our clients understand.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut pairs = vec![("url", self.url()), ("connect", self.address()), ("protocol", self.protocol.to_owned())];
        if self.port != PLAIN {
            pairs.push(("ca", self.file("ca.pem")));
        }
        if self.port == MTLS {
            pairs.extend([("cert", self.file("x.crt")), ("key", self.file("x.key"))]);
        }
        pairs.into_iter().flat_map(|(name, value)| [format!("--{name}"), value]).collect()
    }
}
