//! A node with a port without TLS on which HTTP is spoken.

use std::net::TcpStream;

use crate::data::h2::{H2, head};
use crate::data::{App, HTTPS, Link, Node, Plan, RULES, Tls, dial, read_request};

/// A port without TLS on which HTTP is spoken.
const PLAIN: u16 = 8080;

pub(crate) fn plan() -> Plan {
    let plan = Plan::default();
    let https = "      - {name: https, port: 8443, target_port: 18080, mode: mtls, protocol: http}\n      - {name: raw";
    let plain = "      - {name: plain, port: 8080, target_port: 18080, mode: tcp, protocol: http}\n";
    Plan {
        endpoints: plan.endpoints.replacen(https, &format!("{plain}{https}"), 1),
        rules: format!(
            "{RULES}  - id: outside-to-a-plain
    tenant: t
    from: {{cidr: NET.96/28}}
    to: {{workload: service-a, port: plain}}
    http: {{methods: [GET, POST], paths: ['/v1/orders/**']}}
"
        ),
        ..plan
    }
}

pub(crate) fn plain(node: &Node) -> TcpStream {
    dial(&node.ip(99), &format!("{}:{PLAIN}", node.ip(21))).expect("connected")
}

pub(crate) fn as_x(node: &Node) -> H2<Tls> {
    node.call_h2(&node.svid("x"), HTTPS)
}

pub(crate) fn with<'a>(method: &'a str, path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields = head(method, path);
    fields.extend(more);
    fields
}

/// Answers `/endless` with a head and one piece, anything else at once.
pub(crate) fn endless(mut link: Link, app: &App) {
    while let Ok(request) = read_request(&mut link) {
        app.saw(&request);
        if request.contains("/endless") {
            link.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\npiece\r\n");
        } else {
            link.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    }
}
