//! Parent proxies: what goes through them, what they are told, and what the app sees when they say no. Judged by what the proxy
//! and the destination received.

mod data;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use data::secure::{Host, Leaf, dns, speaks};
use data::{Link, Node, PATIENCE, Plan, RULES, Shared, Upstream, X, is, issue, read_answer, until};
use nova_supervisor::identity::DevCa;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use serde_json::Value;

const LOGIN: &str = "Proxy-Authorization: Basic dXNlcjpzM2NyZXQtcGFyZW50";

/// A proxy that notes every head, and answers as its script says; with 200 it carries bytes to the address in `to`.
struct Parent {
    upstream: Upstream,
    heads: Shared<Vec<String>>,
    script: Shared<Vec<u8>>,
}

const CARRY: &[u8] = b"HTTP/1.1 200 Connection established\r\nVia: 1.1 corp\r\n\r\n";

impl Parent {
    fn start(address: &str, to: &str) -> Self {
        let (heads, script): (Shared<Vec<String>>, Shared<Vec<u8>>) = Default::default();
        *script.lock().expect("no panic") = CARRY.to_vec();
        let (seen, says, to) = (Arc::clone(&heads), Arc::clone(&script), to.to_owned());
        let upstream = Upstream::start(address, move |mut stream| {
            let Ok(head) = data::read_head(&mut stream) else { return };
            seen.lock().expect("no panic").push(head);
            let answer = says.lock().expect("no panic").clone();
            let _ = stream.write_all(&answer);
            if answer == CARRY {
                carry(stream, &to);
            } else if answer.is_empty() || !answer.ends_with(b"\r\n\r\n") {
                // Says no more, and stays.
                let _ = stream.read(&mut [0; 1]);
            }
        });
        Self { upstream, heads, script }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("no panic").clone()
    }

    fn says(&self, answer: &[u8]) {
        *self.script.lock().expect("no panic") = answer.to_vec();
    }
}

fn carry(mut near: TcpStream, to: &str) {
    let Ok(mut far) = TcpStream::connect(to) else { return };
    let (mut far_read, mut near_write) =
        (far.try_clone().expect("a descriptor"), near.try_clone().expect("a descriptor"));
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut far_read, &mut near_write);
        let _ = near_write.shutdown(std::net::Shutdown::Both);
    });
    let _ = std::io::copy(&mut near, &mut far);
    let _ = far.shutdown(std::net::Shutdown::Write);
}

fn plan(more: &str) -> Plan {
    Plan {
        rules: RULES.replace("port: 9443, ca: web-ca, addresses: [NET.80/32]}", "port: 9443, ca: web-ca, via: corp}"),
        sections: format!(
            "[[proxies]]\nname = \"corp\"\nurl = \"http://NET.60:3128\"\ncredential = \"corp.login\"\n{more}"
        ),
        prepare: |dir, _| put_login(&dir.join("corp.login"), "user:s3cret-parent\n"),
        // With a parent nobody here needs to know the name.
        hosts: vec![("api.test".to_owned(), "NET.250".to_owned())],
        ..Plan::default()
    }
}

fn put_login(path: &std::path::Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).expect("written");
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).expect("set");
    fs::rename(beside, path).expect("renamed");
}

fn ask(link: &mut Link, request: &str) -> data::Answer {
    link.send(request);
    read_answer(link).expect("an answer")
}

const API: &str = "GET http://api.test:9443/v1/a HTTP/1.1\r\nHost: api.test:9443\r\n\r\n";

fn record(node: &Node, answer: &data::Answer) -> Value {
    let id = answer.decision_id();
    node.audited_once(|line| is(line, &[("direction", "egress"), ("kind", "request"), ("decision_id", &id)]))
}

// covers: D11a
// covers: D11e
#[test]
fn a_rule_with_a_parent_goes_through_it_by_name_with_its_login() {
    let node = Node::with(plan(""));
    let address = format!("{}:9443", node.ip(80));
    let host = Host::polite(&address, speaks(&issue(&node.web, "spiffe://web/api", "api.test"), &["h2", "http/1.1"]));
    let parent = Parent::start(&format!("{}:3128", node.ip(60)), &address);
    let mut link = node.proxy(X);
    for _ in 0..3 {
        assert_eq!(ask(&mut link, API).status, 200);
    }
    assert_eq!(parent.heads(), [format!("CONNECT api.test:9443 HTTP/1.1\r\nHost: api.test:9443\r\n{LOGIN}\r\n\r\n")]);
    assert_eq!(parent.upstream.peers.lock().expect("no panic").clone(), [node.ip(11)], "from the workload's address");
    let seen = host.log.all();
    assert_eq!((seen.len(), host.upstream.accepted()), (3, 1), "one tunnel carries them all");
    assert!(seen.iter().all(|seen| seen.alpn == "h2" && !seen.head.contains("proxy-")), "{seen:#?}");
    let line = node.audited(3, |line| is(line, &[("kind", "request"), ("rule", "x-to-api")])).remove(0);
    assert_eq!(line["dest_addr"], format!("{}:3128", node.ip(60)));
    assert_eq!(line["input"]["can"], serde_json::json!(["via"]), "{line}");
    // Others of the same node go out directly.
    let plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    let direct = ask(&mut link, "GET http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test:8080\r\n\r\n");
    assert_eq!((direct.status, plain.accepted(), parent.upstream.accepted()), (200, 1, 1));
    for secret in ["s3cret-parent", "dXNlcjpzM2NyZXQtcGFyZW50"] {
        assert!(!node.log().contains(secret) && !node.audit().iter().any(|line| line.to_string().contains(secret)));
    }
}

// covers: D11c
#[test]
fn what_a_parent_answers_is_a_failed_upstream_and_never_a_refusal_of_ours() {
    let node = Node::with(plan(""));
    let address = format!("{}:9443", node.ip(80));
    let host = Host::polite(&address, speaks(&issue(&node.web, "spiffe://web/api", "api.test"), &[]));
    let gone = ask(&mut node.proxy(X), API);
    assert_eq!(gone.status, 502, "{gone:?}");
    assert!(is(&record(&node, &gone), &[("reason", "upstream_proxy"), ("detail", "proxy_unreachable")]));
    let parent = Parent::start(&format!("{}:3128", node.ip(60)), &address);
    let login = b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"corp\"\r\n\
        Content-Length: 3\r\n\r\nno!\r\n\r\n";
    let long = format!("HTTP/1.1 200 OK\r\n{}", "x: y\r\n".repeat(4000));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(100));
    for (answer, detail) in [
        (&login[..], "proxy_login"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "proxy_forbidden"),
        (b"HTTP/1.0 503 Service Unavailable\r\n\r\n", "proxy_status"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://login.corp/\r\n\r\n", "proxy_status"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "proxy_malformed"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "proxy_malformed"),
        (b"<html>\r\n\r\n", "proxy_malformed"),
        (long.as_bytes(), "proxy_malformed"),
        (many.as_bytes(), "proxy_malformed"),
    ] {
        parent.says(answer);
        let got = ask(&mut node.proxy(X), API);
        assert_eq!(got.status, 502, "{detail}: {got:?}");
        assert!(!got.head.to_ascii_lowercase().contains("proxy-auth"), "{got:?}");
        let line = record(&node, &got);
        let fields = [("verdict", "error"), ("reason", "upstream_proxy"), ("detail", detail)];
        assert!(is(&line, &fields), "{}: {line}", String::from_utf8_lossy(&answer[..answer.len().min(40)]));
    }
    assert!(host.log.all().is_empty());
    assert_eq!(host.upstream.accepted(), 0);
}

// covers: D11c
#[test]
fn a_parent_that_says_nothing_is_given_up() {
    let node = Node::with(plan(""));
    let parent = Parent::start(&format!("{}:3128", node.ip(60)), "127.0.0.1:1");
    parent.says(b"");
    let mut link = node.proxy(X);
    link.stream.set_read_timeout(Some(PATIENCE * 3)).expect("set");
    let answer = ask(&mut link, API);
    assert_eq!(answer.status, 504, "{answer:?}");
    assert!(is(&record(&node, &answer), &[("reason", "upstream_timeout"), ("detail", "proxy_timeout")]));
}

// covers: D11d
#[test]
fn a_parent_on_the_loopback_is_not_dialled_outside_of_a_lab() {
    let node = Node::with(Plan { lab: false, ..plan("[egress]\nproxy = \"corp\"\n") });
    let parent = Parent::start(&format!("{}:3128", node.ip(60)), &format!("{}:8080", node.ip(80)));
    let answer = ask(&mut node.proxy(X), "GET http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test:8080\r\n\r\n");
    assert_eq!((answer.status, parent.upstream.accepted()), (502, 0), "{answer:?}");
    assert!(is(&record(&node, &answer), &[("reason", "upstream_proxy"), ("detail", "proxy_forbidden_address")]));
}

// covers: D11b
// covers: D11d
#[test]
fn names_go_to_the_nodes_parent_unresolved_and_literals_pass_the_guard() {
    let rules =
        format!("{RULES}  - {{id: to-range, tenant: t, from: {{workload: x}}, to: {{cidr: NET.0/24, port: 8443}}}}\n");
    let more = "[egress]\nproxy = \"corp\"\ndirect = [\"dep.test\"]\n";
    // `unknown.test` has no address here at all.
    let rules = rules.replace("plain.test", "unknown.test");
    let node = Node::with(Plan { rules, ..plan(more) });
    let plain = Upstream::http(&format!("{}:8080", node.ip(80)));
    let parent = Parent::start(&format!("{}:3128", node.ip(60)), &format!("{}:8080", node.ip(80)));
    let mut link = node.proxy(X);
    let answer = ask(&mut link, "GET http://unknown.test:8080/a HTTP/1.1\r\nHost: unknown.test:8080\r\n\r\n");
    assert_eq!((answer.status, plain.accepted()), (200, 1), "{answer:?}");
    assert!(parent.heads()[0].starts_with("CONNECT unknown.test:8080 HTTP/1.1\r\n"), "{:?}", parent.heads());
    // An own listener is no more a literal's with a parent than without.
    let own = format!("CONNECT {}:8443 HTTP/1.1\r\nHost: x\r\n\r\n", node.ip(21));
    let answer = ask(&mut node.proxy(X), &own);
    assert_eq!(answer.status, 403, "{answer:?}");
    assert!(is(&record(&node, &answer), &[("reason", "address_forbidden")]));
    // A workload is never behind it, and neither is what is listed.
    let answer =
        ask(&mut link, "GET http://service-a.t.nova:8443/v1/orders/1 HTTP/1.1\r\nHost: service-a.t.nova:8443\r\n\r\n");
    assert_eq!(answer.status, 200, "{answer:?}");
    let dep = Upstream::start(&format!("{}:5432", node.ip(80)), |mut stream| {
        let _ = stream.write_all(b"direct");
    });
    let mut tunnel = node.guest(X).dial(2, data::token(X), "dep.test:5432");
    let mut word = [0; 6];
    tunnel.read_exact(&mut word).expect("the server speaks first");
    assert_eq!((&word, dep.accepted(), parent.upstream.accepted()), (b"direct", 1, 1));
    // A tunnel of bytes goes through it as well; what comes right behind the proxy's head is not lost.
    parent.says(b"HTTP/1.1 200 OK\r\n\r\nhello from the server\n");
    let mut tunnel = node.proxy(X);
    tunnel.send("CONNECT tcp.test:5432 HTTP/1.1\r\nHost: tcp.test:5432\r\n\r\n");
    assert!(data::read_head(&mut tunnel).expect("an answer").starts_with("HTTP/1.1 200"));
    let mut word = [0; 22];
    tunnel.read_exact(&mut word).expect("what followed the head");
    assert_eq!(&word, b"hello from the server\n");
    assert!(parent.heads().last().is_some_and(|head| head.starts_with("CONNECT tcp.test:5432 ")));
}

// covers: D11f
#[test]
fn a_parent_in_tls_is_believed_by_its_own_ca_only() {
    let node = Node::with(Plan {
        prepare: |dir, ca| {
            put_login(&dir.join("corp.login"), "user:s3cret-parent");
            fs::write(dir.join("corp-ca.pem"), ca.certificate_pem()).expect("written");
        },
        hosts: vec![("proxy.test".to_owned(), "NET.60".to_owned())],
        sections: "[[proxies]]\nname = \"corp\"\nurl = \"https://proxy.test:3129\"\nca = \"corp-ca.pem\"\n\
                   credential = \"corp.login\"\n"
            .to_owned(),
        ..plan("")
    });
    let address = format!("{}:9443", node.ip(80));
    let host = Host::polite(&address, speaks(&issue(&node.web, "spiffe://web/api", "api.test"), &["h2"]));
    let heads: Shared<Vec<String>> = Arc::default();
    let stranger = DevCa::generate().expect("a CA");
    let named = |ca: &DevCa, name| Leaf::of(ca, |params| params.subject_alt_names = dns(&[name])).speaks(&[]);
    let proxy = Host::start(&format!("{}:3129", node.ip(60)), named(&stranger, "proxy.test"), {
        let (heads, address) = (Arc::clone(&heads), address.clone());
        move |_, mut tls| {
            let Ok(head) = data::read_head(&mut tls) else { return };
            heads.lock().expect("no panic").push(head);
            let _ = tls.write_all(CARRY);
            pump(tls, &address);
        }
    });
    for config in [named(&stranger, "proxy.test"), named(&node.ca, "other.test")] {
        proxy.configure(config);
        let answer = ask(&mut node.proxy(X), API);
        assert_eq!(answer.status, 502, "{answer:?}");
        assert!(is(&record(&node, &answer), &[("reason", "upstream_proxy"), ("detail", "proxy_identity")]));
    }
    assert!(heads.lock().expect("no panic").is_empty(), "the login went to nobody else");
    proxy.configure(named(&node.ca, "proxy.test"));
    let answer = ask(&mut node.proxy(X), API);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(heads.lock().expect("no panic")[0].contains(LOGIN));
    assert_eq!(host.log.all().remove(0).alpn, "h2", "TLS to the host, inside of TLS to the proxy");
}

/// Carries bytes between TLS and an address, one way at a time, which is enough for requests and answers.
fn pump(mut near: StreamOwned<ServerConnection, TcpStream>, to: &str) {
    let Ok(mut far) = TcpStream::connect(to) else { return };
    let pause = Some(Duration::from_millis(20));
    near.sock.set_read_timeout(pause).expect("set");
    far.set_read_timeout(pause).expect("set");
    let mut buffer = [0; 16 * 1024];
    loop {
        for turn in 0..2 {
            let read = if turn == 0 { near.read(&mut buffer) } else { far.read(&mut buffer) };
            match read {
                Ok(0) => return,
                Ok(read) => {
                    let bytes = &buffer[..read];
                    let written = if turn == 0 { far.write_all(bytes) } else { near.write_all(bytes) };
                    if written.is_err() {
                        return;
                    }
                }
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                }
                Err(_) => return,
            }
        }
    }
}

// covers: D11e
// covers: D5f
#[test]
fn a_changed_login_is_used_from_the_next_call_on_and_an_exposed_one_is_not() {
    let node = Node::with(plan(""));
    let address = format!("{}:9443", node.ip(80));
    let _host = Host::polite(&address, speaks(&issue(&node.web, "spiffe://web/api", "api.test"), &["h2"]));
    let parent = Parent::start(&format!("{}:3128", node.ip(60)), &address);
    assert_eq!(ask(&mut node.proxy(X), API).status, 200);
    put_login(&node.dir.path().join("corp.login"), "user:other");
    until("the new login is in use", || {
        assert_eq!(ask(&mut node.proxy(X), API).status, 200);
        parent.heads().last().is_some_and(|head| head.contains("Basic dXNlcjpvdGhlcg=="))
    });
    // Nobody but the owner may have access: what was read before stays, and the operator is told.
    let path = node.dir.path().join("corp.login");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
    fs::write(&path, "user:exposed").expect("written");
    until("the operator is warned", || node.warnings().contains("corp"));
    node.publish(&plan("").rules);
    assert_eq!(ask(&mut node.proxy(X), API).status, 200);
    assert!(parent.heads().last().is_some_and(|head| head.contains("Basic dXNlcjpvdGhlcg==")));
}

// covers: D11a
#[test]
fn a_rule_with_a_parent_that_the_node_does_not_have_goes_nowhere() {
    // No proxy at all: the policy denies, for this supervisor cannot do what the rule needs.
    let rules = plan("").rules;
    let node = Node::with(Plan { rules: rules.clone(), ..Plan::default() });
    let host = Upstream::http(&format!("{}:9443", node.ip(80)));
    let answer = ask(&mut node.proxy(X), API);
    assert_eq!(answer.status, 403, "{answer:?}");
    // Another proxy: the rule does not take what it is given.
    let node =
        Node::with(Plan { rules: rules.replace("via: corp", "via: other"), ..plan("[egress]\nproxy = \"corp\"\n") });
    let parent = Parent::start(&format!("{}:3128", node.ip(60)), &format!("{}:9443", node.ip(80)));
    let answer = ask(&mut node.proxy(X), API);
    assert_eq!(answer.status, 502, "{answer:?}");
    assert!(is(&record(&node, &answer), &[("reason", "upstream_proxy"), ("detail", "proxy_unknown")]));
    assert_eq!((host.accepted(), parent.upstream.accepted()), (0, 0));
}

/// TLS of an app, through what it was given of a tunnel.
fn app_tls(link: Link, name: &str) -> std::io::Result<StreamOwned<ClientConnection, Link>> {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let client = ClientConnection::new(data::config(None), name).expect("a client");
    let mut tls = StreamOwned::new(client, link);
    while tls.conn.is_handshaking() {
        tls.conn.complete_io(&mut tls.sock)?;
    }
    Ok(tls)
}

/// A tunnel to `tls.test` by CONNECT, and one by SOCKS5; each with its reply's code.
fn tunnels(node: &Node) -> [(String, Link); 2] {
    let mut connect = node.proxy(X);
    connect.send("CONNECT tls.test:9443 HTTP/1.1\r\nHost: tls.test:9443\r\n\r\n");
    let head = data::read_head(&mut connect).expect("an answer");
    let mut socks = node.proxy(X);
    socks.send([5, 1, 0]);
    socks.send([&[5, 1, 0, 3, 8][..], b"tls.test", &9443_u16.to_be_bytes()].concat());
    let mut reply = [0; 12];
    socks.read_exact(&mut reply).expect("a choice and a reply");
    [(head[9..12].to_owned(), connect), (reply[3].to_string(), socks)]
}

// covers: D11a, D5d (F-EC11)
#[test]
fn tls_of_an_app_goes_through_a_rules_parent_untouched_by_connect_and_by_socks() {
    let through = "  - {id: through, tenant: t, from: {workload: x}, to: {external: tls.test, port: 9443, via: corp}, tls: passthrough}\n";
    let base = plan("");
    let node = Node::with(Plan { rules: format!("{}{through}", base.rules), ..base });
    let address = format!("{}:9443", node.ip(80));
    let host = Host::polite(&address, speaks(&issue(&node.web, "spiffe://web/tls", "tls.test"), &[]));
    let parent = Parent::start(&format!("{}:3128", node.ip(60)), &address);
    // A hello for somebody else goes nowhere, by either way.
    for (said, link) in tunnels(&node) {
        assert!(said == "200" || said == "0", "{said}");
        assert!(app_tls(link, "other.test").is_err());
    }
    node.audited(2, |line| is(line, &[("kind", "close"), ("rule", "through"), ("reason", "sni_mismatch")]));
    assert_eq!((host.log.all().len(), host.payload.load(Ordering::SeqCst)), (0, 0));
    for (said, link) in tunnels(&node) {
        assert!(said == "200" || said == "0", "{said}");
        let mut tls = app_tls(link, "tls.test").expect("the host answers");
        tls.write_all(b"GET /v1/a HTTP/1.1\r\nHost: tls.test\r\n\r\n").expect("sent");
        assert_eq!(read_answer(&mut tls).expect("an answer").status, 200);
        tls.conn.send_close_notify();
        tls.flush().expect("sent");
        tls.sock.finish();
        assert!(tls.sock.rest().is_ok(), "an end in good order");
    }
    assert_eq!(host.log.all().len(), 2);
    let heads = parent.heads();
    let wanted = format!("CONNECT tls.test:9443 HTTP/1.1\r\nHost: tls.test:9443\r\n{LOGIN}\r\n\r\n");
    assert!(!heads.is_empty() && heads.iter().all(|head| *head == wanted), "{heads:#?}");
    let closes = node.audited(2, |line| is(line, &[("kind", "close"), ("rule", "through"), ("close", "done")]));
    for line in closes {
        assert!(is(&line, &[("dest_host", "tls.test"), ("dest_addr", &format!("{}:3128", node.ip(60)))]), "{line}");
    }
    // What the parent refuses is told as the failure of an upstream.
    parent.says(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(tunnels(&node).map(|(said, _)| said), ["502", "1"]);
    node.audited(2, |line| is(line, &[("dest_host", "tls.test"), ("reason", "upstream_proxy")]));
}
