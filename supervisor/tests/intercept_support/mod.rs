//! A node whose rules intercept, and the app's side of a tunnel in which that happens.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of it")]

use std::io::{self, Read, Write};
use std::sync::Arc;

use nova_supervisor::identity::DevCa;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};

use crate::data::{self, Answer, Link, Node, Plan, Upstream, X, issue, read_answer, token};

pub const LOOK: &str = "look.test";
pub const OPAQUE: &str = "opaque.test";
pub const PORT: u16 = 9443;
pub const RULES: &str = "
external_cas: [{name: web-ca, pem_file: web-ca.pem}]
rules:
  - {id: look, tenant: t, from: {workload: x}, to: {external: look.test, port: 9443, ca: web-ca, addresses: [NET.80/32]}, http: {methods: [GET, POST], paths: ['/v1/**']}, tls: intercept}
  - {id: look-dep, tenant: t, from: {workload: x}, to: {external: dep.test, port: 5432, ca: web-ca, addresses: [NET.80/32]}, http: {methods: [GET], paths: ['/v1/**']}, tls: intercept}
  - {id: look-a, tenant: t, from: {workload: x}, to: {workload: service-a, port: https}, http: {methods: [GET], paths: ['/v1/**']}, tls: intercept}
  - {id: no-look, tenant: t, from: {workload: x}, to: {external: api.test, port: 9443, ca: web-ca, addresses: [NET.80/32]}, http: {methods: [GET], paths: ['/v1/**']}}
  - {id: opaque, tenant: t, from: {workload: x}, to: {external: opaque.test, port: 9443, addresses: [NET.80/32]}}
  - {id: b-plain, tenant: t, from: {workload: b}, to: {external: plain.test, port: 8080, addresses: [NET.80/32]}, http: {methods: [GET], paths: ['/**']}, tls: none}
";
pub const LATER: &str = "  - {id: later, tenant: t, from: {workload: x}, to: {external: later.test, port: 9443, ca: web-ca, addresses: [NET.80/32]}, http: {methods: [GET], paths: ['/v1/**']}, tls: intercept}\n";

pub fn plan() -> Plan {
    let hosts = [LOOK, OPAQUE, "later.test"].map(|name| (name.to_owned(), "NET.80".to_owned())).to_vec();
    Plan { rules: RULES.to_owned(), hosts, ..Plan::default() }
}

/// What a guest is told to trust that asks once.
pub fn trust(node: &Node, pod: &str) -> Option<String> {
    told(&mut listen(node, pod))
}

/// A guest that asks and goes on listening.
pub fn listen(node: &Node, pod: &str) -> Link {
    node.guest(pod).dial(6, token(pod), "")
}

/// The next that it is told.
pub fn told(link: &mut Link) -> Option<String> {
    let mut head = [0; 4];
    link.read_exact(&mut head).ok()?;
    let mut pem = vec![0; usize::try_from(u32::from_be_bytes(head)).expect("short")];
    link.read_exact(&mut pem).ok()?;
    Some(String::from_utf8(pem).expect("text"))
}

/// As [`told`], and it says that it has installed that.
pub fn installed(link: &mut Link) -> String {
    let pem = told(link).expect("an answer");
    link.send([1]);
    pem
}

pub fn roots(pem: &str) -> Arc<ClientConfig> {
    roots_of(pem, rustls::DEFAULT_VERSIONS)
}

pub fn roots_of(pem: &str, versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        store.add(certificate.expect("a certificate")).expect("a root");
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).expect("versions");
    let mut config = builder.with_root_certificates(store).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

pub fn client(config: &Arc<ClientConfig>, name: &str) -> ClientConnection {
    ClientConnection::new(Arc::clone(config), ServerName::try_from(name.to_owned()).expect("a name")).expect("a client")
}

/// A tunnel of x, after the 200.
pub fn tunnel(node: &Node, host: &str, port: u16) -> Link {
    tunnel_of(node, X, host, port)
}

pub fn tunnel_of(node: &Node, pod: &str, host: &str, port: u16) -> Link {
    let mut link = node.proxy(pod);
    link.send(format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"));
    assert_eq!(data::read_answer_to(&mut link, true).expect("an answer").status, 200);
    link
}

pub type Inside = StreamOwned<ClientConnection, Link>;

pub fn handshake(mut link: Link, config: &Arc<ClientConfig>, name: &str) -> io::Result<Inside> {
    let mut client = client(config, name);
    while client.is_handshaking() {
        if let Err(error) = client.complete_io(&mut link) {
            // The alert must not be overtaken by the end of the link.
            while client.wants_write() && client.write_tls(&mut link).is_ok() {}
            let _ = link.rest();
            return Err(error);
        }
    }
    Ok(StreamOwned::new(client, link))
}

pub fn ask(inside: &mut Inside, method: &str, path: &str, host: &str) -> Answer {
    write!(inside, "{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").expect("sent");
    read_answer(inside).expect("an answer")
}

pub fn host(node: &Node, name: &str) -> Upstream {
    Upstream::https(&format!("{}:{PORT}", node.ip(80)), &issue(&node.web, "spiffe://web/host", name))
}

pub fn hello(config: &Arc<ClientConfig>, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    client(config, name).write_tls(&mut bytes).expect("writes to memory");
    bytes
}

/// A root that is nowhere on the node, and the files of an intermediate below it.
pub fn two_tiers(dir: &std::path::Path, _: &DevCa) {
    use std::os::unix::fs::PermissionsExt;

    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
    let params = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
    };
    let (root_key, key) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
    let root = params("offline root").self_signed(&root_key).expect("signed");
    let issuer = Issuer::new(params("offline root"), root_key);
    let intermediate = params("intermediate of node-1").signed_by(&key, &issuer).expect("signed");
    std::fs::write(dir.join("above.pem"), format!("{}{}", intermediate.pem(), root.pem())).expect("written");
    std::fs::write(dir.join("above.key"), key.serialize_pem()).expect("written");
    std::fs::set_permissions(dir.join("above.key"), std::fs::Permissions::from_mode(0o400)).expect("changed");
}
