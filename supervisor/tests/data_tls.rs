//! Ports of mode `tls`, and what each kind of port offers to whoever asks. Refusals first.

#![allow(clippy::panic, reason = "a test that cannot go on fails")]

mod data;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use data::{A, HTTPS, Node, Plan, Tls, dial, is, issue, until};
use nova_supervisor::identity::{DevCa, Issued};
use rustls::HandshakeKind;

const EDGE: u16 = 9443;
const OWN: u16 = 9444;
const BYTES: u16 = 9445;
const OLD: u16 = 9446;
const ORDER: &str = "GET /v1/orders/42 HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n";
const PORTS: &str = "      - {name: edge, port: 9443, target_port: 18080, mode: tls, protocol: http, certificate: edge}
      - {name: own, port: 9444, target_port: 18080, mode: tls, protocol: http, tls12: true, strip_token: true}
      - {name: bytes, port: 9445, target_port: 18080, mode: tls, protocol: tcp}
      - {name: old, port: 9446, target_port: 18080, mode: mtls, protocol: http, tls12: true}
";
const RULES: &str = "
  - {id: outside-to-edge, tenant: t, from: {cidr: NET.96/28}, to: {workload: service-a, port: edge}, http: {methods: [GET], paths: ['/v1/**']}}
  - {id: outside-to-own, tenant: t, from: {cidr: NET.96/28}, to: {workload: service-a, port: own}, http: {methods: [GET], paths: ['/v1/**']}}
  - {id: outside-to-bytes, tenant: t, from: {cidr: NET.96/28}, to: {workload: service-a, port: bytes}}
  - {id: x-to-old, tenant: t, from: {workload: x}, to: {workload: service-a, port: old}, http: {methods: [GET], paths: ['/v1/**']}}
";
const CERTIFICATE: &str = "[[certificates]]\nname = \"edge\"\nchain = \"edge/tls.crt\"\nkey = \"edge/tls.key\"\n";

fn plan() -> Plan {
    let plan = Plan::default();
    let port = "      - {name: wrapped,";
    Plan {
        endpoints: plan.endpoints.replacen(port, &format!("{PORTS}{port}"), 1),
        rules: format!("{}{RULES}", plan.rules),
        sections: CERTIFICATE.to_owned(),
        prepare: |dir, ca| {
            // As Kubernetes mounts a secret: the files are links through one link that is swapped.
            fs::create_dir(dir.join("edge")).expect("made");
            write_pair(&dir.join("edge/v1"), &edge(ca), 0o400);
            symlink("v1", dir.join("edge/..data")).expect("linked");
            for name in ["tls.crt", "tls.key"] {
                symlink(Path::new("..data").join(name), dir.join("edge").join(name)).expect("linked");
            }
        },
        ..plan
    }
}

/// The dev CA stands for an internal one.
fn edge(ca: &DevCa) -> Issued {
    issue(ca, "spiffe://dev.invalid/edge", "edge.test")
}

fn write_pair(dir: &Path, pair: &Issued, mode: u32) {
    fs::create_dir_all(dir).expect("made");
    fs::write(dir.join("tls.crt"), pair.chain_pem()).expect("written");
    write_key(&dir.join("tls.key"), pair, mode);
}

fn write_key(path: &Path, pair: &Issued, mode: u32) {
    let _ = fs::remove_file(path);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path).expect("made");
    file.write_all(pair.key_pem().as_bytes()).expect("written");
}

/// Swaps the mounted secret in one step.
fn swap(node: &Node, version: &str) {
    let dir = node.dir.path().join("edge");
    symlink(version, dir.join("..tmp")).expect("linked");
    fs::rename(dir.join("..tmp"), dir.join("..data")).expect("swapped");
}

fn presented(node: &Node) -> Vec<u8> {
    node.call(None, EDGE).expect("a handshake").server_certificate().to_vec()
}

// covers: C1a
#[test]
fn a_caller_from_elsewhere_is_refused_on_a_tls_port_before_anything_is_parsed() {
    let node = Node::with(plan());
    let to = format!("{}:{EDGE}", node.ip(21));
    // A certificate of a workload that may call other ports counts for nothing here.
    for who in [None, Some(node.svid("x"))] {
        let mut tls = Tls::connect(&node.ip(50), &to, who.as_ref()).expect("the handshake is for everybody");
        let _ = tls.write_all(b"this is not even HTTP\r\n\r\n");
        assert!(tls.answer().is_err());
    }
    let refused = node.audited(2, |line| is(line, &[("direction", "ingress"), ("verdict", "deny")]));
    assert!(refused.iter().all(|line| is(line, &[("kind", "connection"), ("reason", "no_grant")])), "{refused:#?}");
    assert!(refused.iter().all(|line| line["peer"].is_null() && line["input"]["peer"].is_null()), "{refused:#?}");
    assert!(node.guest(A).app.seen().is_empty());
}

// covers: C1a
#[test]
fn a_caller_on_a_tls_port_is_known_by_its_address_alone() {
    let node = Node::with(plan());
    let x = node.svid("x");
    let mut tls = node.call(Some(&x), EDGE).expect("connected");
    let spoofed = ORDER.replace("\r\n\r\n", "\r\nX-Forwarded-Client-Cert: URI=spiffe://dev.invalid/t/t/w/x\r\n\r\n");
    assert_eq!(tls.ask(spoofed).status, 200);
    assert_eq!(tls.ask(ORDER.replace("GET", "POST")).status, 403);
    assert_eq!(tls.conn().alpn_protocol(), None, "none was offered");
    drop(tls);
    let seen = node.guest(A).app.seen();
    assert_eq!(seen.len(), 1);
    assert!(!seen[0].to_ascii_lowercase().contains("x-forwarded-client-cert"), "{}", seen[0]);
    assert!(seen[0].to_ascii_lowercase().contains(&format!("x-forwarded-for: {}", node.ip(99))), "{}", seen[0]);
    let allowed = node.audited_once(|line| is(line, &[("kind", "request"), ("verdict", "allow")]));
    assert!(is(&allowed, &[("rule", "outside-to-edge")]) && allowed["peer"].is_null(), "{allowed}");

    let mut bytes = node.call(None, BYTES).expect("connected");
    assert_eq!(bytes.ask(ORDER).status, 200);
}

// covers: C6h
#[test]
fn the_app_sees_the_bearer_token_unless_its_port_strips_it() {
    let node = Node::with(plan());
    let with_token = ORDER.replace("\r\n\r\n", "\r\nAuthorization: Bearer of-the-caller\r\nX-Fine: fine\r\n\r\n");
    assert_eq!(node.call(None, OWN).expect("connected").ask(&with_token).status, 200);
    assert_eq!(node.call(None, EDGE).expect("connected").ask(&with_token).status, 200);
    let seen = node.guest(A).app.seen();
    assert!(!seen[0].contains("of-the-caller") && seen[0].contains("fine"), "{}", seen[0]);
    assert!(seen[1].contains("of-the-caller"), "{}", seen[1]);
}

// covers: C1b
#[test]
fn a_tls_port_presents_the_certificate_that_it_names_or_else_the_workloads_svid() {
    let node = Node::with(plan());
    let named = rustls_pem(&fs::read(node.dir.path().join("edge/tls.crt")).expect("there"));
    assert_eq!(presented(&node), named);
    let own = node.call(None, OWN).expect("connected").server_certificate();
    let mutual = node.call(Some(&node.svid("x")), HTTPS).expect("connected").server_certificate();
    assert_eq!(own, mutual, "the SVID");
    assert_ne!(own.to_vec(), named);
}

// covers: C1b (attack T40)
#[test]
fn half_a_pair_an_exposed_key_and_a_strangers_key_leave_the_old_pair_in_force() {
    let node = Node::with(plan());
    let (first, dir) = (presented(&node), node.dir.path().join("edge"));
    let new = edge(&node.ca);
    // The certificate is there, its key is not yet.
    fs::create_dir(dir.join("v2")).expect("made");
    fs::write(dir.join("v2/tls.crt"), new.chain_pem()).expect("written");
    swap(&node, "v2");
    until("the missing key is noticed", || node.warnings().contains("tls.key"));
    assert_eq!(presented(&node), first);
    // A key that others may read, though the right one.
    write_key(&dir.join("v2/tls.key"), &new, 0o644);
    until("the exposed key is noticed", || node.warnings().contains("0644"));
    assert_eq!(presented(&node), first);
    // Somebody else's key.
    write_key(&dir.join("v2/tls.key"), &edge(&node.ca), 0o400);
    until("the wrong key is noticed", || node.warnings().contains("do not match"));
    assert_eq!(presented(&node), first);
    write_key(&dir.join("v2/tls.key"), &new, 0o600);
    until("the new pair is in force", || presented(&node) == new.chain[0].to_vec());
    assert!(!node.warnings().contains("certificate edge"), "{}", node.warnings());
}

// covers: C1b
#[test]
fn a_swapped_mount_takes_effect_without_a_restart_and_leaves_connections_alone() {
    let node = Node::with(plan());
    let mut before = node.call(None, EDGE).expect("connected");
    assert_eq!(before.ask(ORDER).status, 200);
    let new = edge(&node.ca);
    write_pair(&node.dir.path().join("edge/v2"), &new, 0o400);
    swap(&node, "v2");
    until("the new pair is in force", || presented(&node) == new.chain[0].to_vec());
    assert_eq!(before.ask(ORDER).status, 200, "an open connection keeps what it began with");
}

// covers: C1b
#[test]
fn a_port_that_names_a_certificate_that_does_not_exist_is_not_opened() {
    let node = Node::with(plan());
    node.edit_endpoint("service-a", "certificate: edge", "certificate: gone");
    until("the mistake is told", || node.endpoint("service-a").is_some_and(|row| row.to_string().contains("gone")));
    let row = node.endpoint("service-a").expect("a row");
    assert_eq!(row["reason"], "bind_failed", "{row}");
}

// covers: C1c
#[test]
fn each_port_speaks_the_versions_and_suites_that_it_says_and_no_other() {
    let node = Node::with(plan());
    let ask = |port: u16, versions: &[u16], suites: &[u16]| offer(&node, port, versions, suites);
    let protocol_version = Answer::Alert(70);
    let handshake_failure = Answer::Alert(40);
    for port in [EDGE, HTTPS, BYTES] {
        assert_eq!(ask(port, &[0x0303], &[0xc02b, 0xc02c, 0xcca9]), protocol_version, "1.2 on {port}");
        assert_eq!(ask(port, &[0x0302, 0x0301], &[0xc02b, 0xc00a]), protocol_version, "1.1 on {port}");
    }
    for port in [OWN, OLD] {
        assert_eq!(ask(port, &[0x0302], &[0xc00a, 0xc009]), protocol_version, "1.1 on {port}");
        assert_eq!(ask(port, &[0x0301], &[0xc00a, 0xc009]), protocol_version, "1.0 on {port}");
        // CBC, static RSA, DHE, 3DES, RC4, NULL, anonymous, export, CCM.
        for suite in
            [0xc009, 0xc00a, 0xc023, 0xc024, 0x009c, 0x002f, 0x009e, 0x000a, 0x0005, 0xc006, 0xc018, 0x0003, 0xc0ac]
        {
            assert_eq!(ask(port, &[0x0303], &[suite]), handshake_failure, "{suite:04x} on {port}");
        }
        for suite in [0xc02b, 0xc02c, 0xcca9] {
            assert_eq!(ask(port, &[0x0303], &[suite]), Answer::Hello { version: 0x0303, suite }, "on {port}");
        }
        let best = ask(port, &[0x0304, 0x0303], &[0xc02b, 0x1301]);
        assert_eq!(best, Answer::Hello { version: 0x0304, suite: 0x1301 }, "1.3 where both speak it");
    }
    for port in [EDGE, OWN, HTTPS, BYTES] {
        assert_eq!(ask(port, &[0x0304], &[0x1304, 0x1305]), handshake_failure, "CCM on {port}");
        for suite in [0x1301, 0x1302, 0x1303] {
            assert_eq!(ask(port, &[0x0304], &[suite]), Answer::Hello { version: 0x0304, suite }, "on {port}");
        }
    }
}

// covers: C1c
// covers: C2e (F-IT01, F-IT02)
#[test]
fn no_port_resumes_a_session_in_any_version() {
    let node = Node::with(plan());
    for (port, version) in
        [(EDGE, &rustls::version::TLS13), (OWN, &rustls::version::TLS12), (OWN, &rustls::version::TLS13)]
    {
        // One configuration for both calls: it keeps whatever lets it resume.
        let config = data::config_of(None, &[version]);
        for _ in 0..2 {
            let tcp = dial(&node.ip(99), &format!("{}:{port}", node.ip(21))).expect("connected");
            let mut tls = Tls::over(tcp, Arc::clone(&config), "service-a.t.nova").expect("a handshake");
            assert_eq!(tls.ask(ORDER).status, 200);
            assert_eq!(tls.conn().handshake_kind(), Some(HandshakeKind::Full), "{port} {version:?}");
            assert_eq!(tls.conn().tls13_tickets_received(), 0, "{port} {version:?}");
        }
    }
}

// covers: C1c
#[test]
fn http_ports_agree_on_http_1_1_and_byte_ports_on_nothing() {
    let node = Node::with(plan());
    let alpn = |port: u16, offered: &[&str]| {
        let mut config = rustls::ClientConfig::clone(&data::config(None));
        config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
        let tcp = dial(&node.ip(99), &format!("{}:{port}", node.ip(21))).expect("connected");
        let tls = Tls::over(tcp, Arc::new(config), "service-a.t.nova").ok()?;
        tls.conn().alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned())
    };
    assert_eq!(alpn(EDGE, &["http/1.1"]).as_deref(), Some("http/1.1"));
    assert_eq!(alpn(EDGE, &["smtp", "ftp"]), None);
    assert_eq!(alpn(BYTES, &["http/1.1"]), None);
}

// covers: C1c (F-IT04)
#[test]
fn a_client_without_a_certificate_is_refused_on_an_mtls_port_in_either_version() {
    let node = Node::with(plan());
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let over = |who: Option<&Issued>| {
            let tcp = dial(&node.ip(99), &format!("{}:{OLD}", node.ip(21))).expect("connected");
            Tls::over(tcp, data::config_of(who, &[version]), "service-a.t.nova")
        };
        let refused = over(None).and_then(|mut tls| {
            let _ = tls.write_all(ORDER.as_bytes());
            tls.answer()
        });
        assert!(refused.is_err(), "{version:?}: {refused:?}");
        let stranger = issue(&DevCa::generate().expect("a CA"), "spiffe://dev.invalid/t/t/w/x", "x.t.nova");
        let refused = over(Some(&stranger)).and_then(|mut tls| {
            let _ = tls.write_all(ORDER.as_bytes());
            tls.answer()
        });
        assert!(refused.is_err(), "{version:?}: {refused:?}");
        assert_eq!(over(Some(&node.svid("x"))).expect("a handshake").ask(ORDER).status, 200, "{version:?}");
    }
    node.audited(2, |line| is(line, &[("verdict", "deny"), ("reason", "no_client_cert")]));
    node.audited(2, |line| is(line, &[("verdict", "deny"), ("reason", "peer_untrusted")]));
    assert_eq!(node.guest(A).app.seen().len(), 2);
}

/// What a server says to a ClientHello that was written by hand.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Hello { version: u16, suite: u16 },
    Alert(u8),
    Nothing,
}

fn offer(node: &Node, port: u16, versions: &[u16], suites: &[u16]) -> Answer {
    let mut tcp = dial(&node.ip(99), &format!("{}:{port}", node.ip(21))).expect("connected");
    tcp.write_all(&client_hello(versions, suites)).expect("sent");
    let mut head = [0; 5];
    if tcp.read_exact(&mut head).is_err() {
        return Answer::Nothing;
    }
    let mut record = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
    tcp.read_exact(&mut record).expect("a whole record");
    match head[0] {
        21 => Answer::Alert(record[1]),
        22 => server_hello(&record),
        other => panic!("record of type {other}"),
    }
}

fn client_hello(versions: &[u16], suites: &[u16]) -> Vec<u8> {
    let list = |items: &[u16]| items.iter().flat_map(|item| item.to_be_bytes()).collect::<Vec<u8>>();
    let extension = |kind: u16, body: Vec<u8>| [list(&[kind]), wide(body)].concat();
    let mut extensions = vec![
        extension(10, wide(list(&[0x001d, 0x0017]))),
        extension(11, vec![1, 0]),
        extension(13, wide(list(&[0x0403, 0x0503, 0x0804, 0x0807]))),
        extension(35, Vec::new()),
        extension(0xff01, vec![0]),
        extension(45, vec![1, 1]),
    ];
    if versions.contains(&0x0304) {
        let offered = list(versions);
        extensions.push(extension(43, [vec![u8::try_from(offered.len()).expect("few")], offered].concat()));
        // The base point of X25519 is a public key like any other.
        let mut point = vec![0; 32];
        point[0] = 9;
        extensions.push(extension(51, wide([list(&[0x001d]), wide(point)].concat())));
    }
    let legacy = versions.iter().copied().max().expect("a version").min(0x0303);
    let body =
        [list(&[legacy]), vec![0x42; 32], vec![0], wide(list(suites)), vec![1, 0], wide(extensions.concat())].concat();
    let length = u32::try_from(body.len()).expect("short").to_be_bytes();
    let handshake = [vec![1], length[1..].to_vec(), body].concat();
    [vec![22, 3, 1], wide(handshake)].concat()
}

/// With its length in two bytes in front.
fn wide(body: Vec<u8>) -> Vec<u8> {
    let length = u16::try_from(body.len()).expect("short").to_be_bytes();
    [length.to_vec(), body].concat()
}

fn server_hello(record: &[u8]) -> Answer {
    assert_eq!(record[0], 2, "ServerHello");
    let body = &record[4..];
    let legacy = u16::from_be_bytes([body[0], body[1]]);
    let session = usize::from(body[34]);
    let at = 35 + session;
    let suite = u16::from_be_bytes([body[at], body[at + 1]]);
    let end = u32::from_be_bytes([0, record[1], record[2], record[3]]) as usize;
    let mut rest = body.get(at + 5..end).unwrap_or_default();
    let mut version = legacy;
    while let [k1, k2, l1, l2, tail @ ..] = rest {
        let (kind, length) = (u16::from_be_bytes([*k1, *k2]), usize::from(u16::from_be_bytes([*l1, *l2])));
        assert_ne!(kind, 35, "a session ticket is offered");
        if kind == 43 {
            version = u16::from_be_bytes([tail[0], tail[1]]);
        }
        rest = &tail[length..];
    }
    if version == 0x0303 {
        assert_eq!(session, 0, "a session id to come back with");
    }
    Answer::Hello { version, suite }
}

fn rustls_pem(text: &[u8]) -> Vec<u8> {
    use rustls::pki_types::pem::PemObject;
    rustls::pki_types::CertificateDer::from_pem_slice(text).expect("a certificate").to_vec()
}
