//! What the tests of names have in common.

use std::io::{Read, Write};
use std::net::Shutdown;

use serde_json::Value;

use crate::data::{Answer, Link, Node, Plan, RULES, Upstream, X, is, read_answer, until};
use crate::dns::{Asked, Dns};

/// Opaque tunnels to everything below `dns.test`, wherever on this machine it is.
pub(crate) const WILDCARD: &str = "
  - id: x-to-wildcard
    tenant: t
    from: {workload: x}
    to: {external: '*.dns.test', port: 8080, addresses: [NET.0/24]}
  - id: b-to-wildcard
    tenant: t
    from: {workload: b}
    to: {external: '*.dns.test', port: 8080, addresses: [NET.0/24]}
";

pub(crate) fn plan() -> Plan {
    Plan {
        rules: format!("{RULES}{WILDCARD}"),
        resolver: "servers = [\"NET.53:5353\"]\ntimeout = \"2s\"",
        ..Plan::default()
    }
}

/// The server that the node asks.
pub(crate) fn dns_of(node: &Node, answer: impl Fn(&Asked) -> Vec<Vec<u8>> + Send + Sync + 'static) -> Dns {
    Dns::start(&format!("{}:5353", node.ip(53)), answer)
}

/// Sends back what comes.
pub(crate) fn echo(address: &str) -> Upstream {
    Upstream::start(address, |mut stream| {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..read]).is_err() {
                return;
            }
        }
        let _ = stream.shutdown(Shutdown::Write);
    })
}

/// Waits until `count` connections have come; more fail the test.
pub(crate) fn came(upstream: &Upstream, count: usize) {
    until(&format!("{count} connections have come"), || upstream.accepted() >= count);
    assert_eq!(upstream.accepted(), count);
}

/// The answer to a CONNECT by `pod`; 200 stands for a tunnel.
pub(crate) fn connect_as(node: &Node, pod: &str, authority: &str) -> (u16, Link) {
    let mut link = node.proxy(pod);
    link.send(format!("CONNECT {authority} HTTP/1.1\r\nHost: x\r\n\r\n"));
    let status = status(&mut link);
    (status, link)
}

pub(crate) fn connect(node: &Node, authority: &str) -> u16 {
    connect_as(node, X, authority).0
}

/// The status of the next answer; of a refusal its body is read as well.
pub(crate) fn status(link: &mut Link) -> u16 {
    let head = crate::data::read_head(link).expect("an answer");
    head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status")
}

pub(crate) fn get(node: &Node, url: &str) -> Answer {
    let mut link = node.proxy(X);
    link.send(format!("GET {url} HTTP/1.1\r\nHost: x\r\n\r\n"));
    read_answer(&mut link).expect("an answer")
}

/// SOCKS5 CONNECT to a name; the reply code, `None` when the connection ends without one.
pub(crate) fn socks(node: &Node, host: &[u8], port: u16) -> Option<u8> {
    let mut request = vec![5, 1, 0, 3, u8::try_from(host.len()).expect("short")];
    request.extend(host);
    request.extend(port.to_be_bytes());
    socks_with(node, &request)
}

pub(crate) fn socks_with(node: &Node, request: &[u8]) -> Option<u8> {
    let mut link = node.proxy(X);
    link.send([5, 1, 0]);
    link.read_exact(&mut [0; 2]).expect("a choice");
    link.send(request);
    let mut reply = [0; 10];
    link.read_exact(&mut reply).ok().map(|()| reply[1])
}

/// The line of a request by x that was refused or failed.
pub(crate) fn ended(line: &Value) -> bool {
    is(line, &[("direction", "egress"), ("kind", "request")])
}
