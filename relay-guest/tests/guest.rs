//! What an app finds in a guest that nova-init made: fixed dependencies, egress sockets, pings. The test is the host.

#![allow(clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use common::{Host, PATIENCE, free_port};
use nova_proto::hello::{Hello, Kind};
use nova_proto::icmp::{Echo, LEN, Message};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tempfile::TempDir;

const WORKLOAD: Ipv4Addr = Ipv4Addr::new(10, 64, 3, 11);
/// Nobody has it; the test answers for it.
const FAR: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const PAYLOAD_MAX: usize = 1472;
/// Set in the copy of a test that runs in its guest.
const APP: &str = "NOVA_TEST_APP";

struct Guest {
    dir: TempDir,
    config: Value,
}

impl Guest {
    fn new(command: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let path = |name: &str| dir.path().join(name);
        let config = json!({
            "workload": "x", "workload_ip": WORKLOAD, "boot_token": "a5".repeat(16),
            "link": {"unix": {"dir": dir.path()}}, "host_ports": [15001], "guest_port": 15080, "framed": false,
            "proxy_port": free_port(), "hosts_file": path("hosts"), "egress_dir": path("egress"),
            "relay": env!("CARGO_BIN_EXE_nova-relay"), "command": command, "env": {"DIR": dir.path()},
            "dependencies": [
                {"host": "db.t.nova", "port": 443, "guest_ip": "127.0.1.1"},
                {"host": "other.t.nova", "port": 443, "guest_ip": "127.0.1.2"},
                {"host": "mail.t.nova", "port": 25, "guest_ip": "127.0.1.3", "socket": "mail.sock"},
            ],
        });
        Self { dir, config }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self) -> Output {
        fs::write(self.path("guest.json"), self.config.to_string()).expect("written");
        fs::set_permissions(self.path("guest.json"), fs::Permissions::from_mode(0o600)).expect("chmod");
        Command::new("unshare")
            .args(["-Urn", env!("CARGO_BIN_EXE_nova-init"), "--config"])
            .arg(self.path("guest.json"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output()
            .expect("unshare must start")
    }
}

/// Answers each connection's first line with what its hello said, and tells of the hello and the line.
fn answer_lines(mut host: Host) -> mpsc::Receiver<(Hello, String)> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        loop {
            let (hello, stream) = host.accept();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).expect("a line");
            let body = format!("you reached {}\n", hello.target);
            let answer = match line.starts_with("GET ") {
                true => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len()),
                false => body,
            };
            (&stream).write_all(answer.as_bytes()).expect("written");
            if tell.send((hello, line)).is_err() {
                return;
            }
        }
    });
    told
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

// covers: D2a, D2b
#[test]
fn dependencies_on_one_port_and_below_1024_each_reach_their_own_host() {
    let script = r#"
        for to in db.t.nova:443 other.t.nova:443 mail.t.nova:25; do
            ip=$(awk -v host="${to%:*}" '$2 == host { print $1 }' "$DIR/hosts")
            exec 3<>"/dev/tcp/$ip/${to#*:}" || exit 1
            echo "to $to" >&3; read -r answer <&3; echo "$answer"; exec 3>&-
        done"#;
    let guest = Guest::new(&["/bin/bash", "-c", script]);
    let told = answer_lines(Host::at(&guest.path("host_15001")));
    let output = guest.run();
    assert!(output.status.success(), "{output:?}");
    for target in ["db.t.nova:443", "other.t.nova:443", "mail.t.nova:25"] {
        let (hello, line) = told.recv_timeout(PATIENCE).expect("a connection");
        assert_eq!((hello.kind, hello.target.as_str()), (Kind::Dependency, target));
        assert_eq!(line, format!("to {target}\n"));
        assert!(said(&output).0.contains(&format!("you reached {target}\n")), "{output:?}");
    }
}

// covers: D3b, D3c
#[test]
fn egress_sockets_are_open_to_the_app_and_their_folder_is_not() {
    let script = r#"
        stat -c '%n %a %F' "$DIR/egress" "$DIR/egress"/*; echo "$NOVA_EGRESS_SOCKET"
        for name in egress.sock db.t.nova_443.sock other.t.nova_443.sock mail.sock; do
            curl -sS --noproxy '*' --max-time 20 --unix-socket "$DIR/egress/$name" "http://localhost/$name" || exit 1
        done"#;
    let guest = Guest::new(&["/bin/sh", "-c", script]);
    let told = answer_lines(Host::at(&guest.path("host_15001")));
    let output = guest.run();
    assert!(output.status.success(), "{output:?}");
    let (seen, _) = said(&output);
    let folder = guest.path("egress").display().to_string();
    assert!(seen.contains(&format!("{folder} 755 directory\n")), "{seen}");
    assert!(seen.contains(&format!("\n{folder}/egress.sock\n")), "NOVA_EGRESS_SOCKET: {seen}");
    for (name, kind, target) in [
        ("egress.sock", Kind::Unix, "egress.sock"),
        ("db.t.nova_443.sock", Kind::Dependency, "db.t.nova:443"),
        ("other.t.nova_443.sock", Kind::Dependency, "other.t.nova:443"),
        ("mail.sock", Kind::Dependency, "mail.t.nova:25"),
    ] {
        assert!(seen.contains(&format!("{folder}/{name} 666 socket\n")), "{seen}");
        let (hello, line) = told.recv_timeout(PATIENCE).expect("a connection");
        assert_eq!((hello.kind, hello.target.as_str()), (kind, target));
        assert_eq!(line, format!("GET /{name} HTTP/1.1\r\n"));
    }
}

/// Whether a guest can have the device of pings here.
fn has_tun(test: &str) -> bool {
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    if let Err(error) = &opened {
        assert!(std::env::var_os("NOVA_CI").is_none(), "/dev/net/tun: {error}");
        println!("SKIPPED: {test}: /dev/net/tun: {error}");
    }
    opened.is_ok()
}

fn pinging(command: &[&str]) -> Guest {
    let mut guest = Guest::new(command);
    guest.config["icmp"] = true.into();
    guest
}

/// Answers every ping, twice, and tells of each.
fn answer_pings(mut host: Host) -> mpsc::Receiver<Echo> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let (hello, mut stream) = host.accept();
        assert_eq!((hello.kind, hello.target.as_str()), (Kind::Icmp, ""));
        let mut bytes = [0; LEN];
        while stream.read_exact(&mut bytes).is_ok() {
            let Ok(Message::Request(echo)) = Message::parse(bytes) else { panic!("no request: {bytes:?}") };
            let reply = Message::Reply(echo).encode();
            // Also one that nobody waits for.
            let other = Message::Reply(Echo { id: !echo.id, ..echo }).encode();
            let _ = stream.write_all(&[other, reply, reply].concat());
            let _ = tell.send(echo);
        }
    });
    told
}

// covers: D10a, D10b, D10d (T24, F-IC02)
#[test]
fn an_app_without_privileges_pings_and_gets_its_own_bytes_back() {
    if std::env::var_os(APP).is_some() {
        return play_the_app();
    }
    let test = "an_app_without_privileges_pings_and_gets_its_own_bytes_back";
    if !has_tun(test) {
        return;
    }
    let myself = std::env::current_exe().expect("the test binary").display().to_string();
    let mut guest = pinging(&[&myself, "--exact", test, "--nocapture"]);
    guest.config["env"][APP] = "1".into();
    let told = answer_pings(Host::at(&guest.path("host_15001")));
    let output = guest.run();
    let (seen, errors) = said(&output);
    assert!(output.status.success() && seen.contains("the app saw all of it"), "{seen}\n{errors}");
    let echoes: Vec<Echo> = told.try_iter().collect();
    let sequences: Vec<u16> = echoes.iter().map(|echo| echo.sequence).collect();
    assert_eq!(sequences, [1, 2, 3, 4, 5], "{echoes:?}");
    assert!(echoes.iter().all(|echo| echo.destination == FAR), "{echoes:?}");
    assert!(errors.contains("fragment="), "what is dropped is counted: {errors}");
}

/// The app of the test above: everything that it does goes on in the guest.
fn play_the_app() {
    let ping = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::ICMPV4)).expect("a ping socket");
    ping.set_read_timeout(Some(PATIENCE)).expect("set");
    for (sequence, size) in (1..).zip([56, 0, 1, 1400, PAYLOAD_MAX]) {
        let payload: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
        send(&ping, FAR, 8, sequence, &payload);
        assert_eq!(receive(&ping), (FAR, sequence, payload), "{size} bytes");
    }
    ping.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
    // The kernel makes two packets of it, and the relay takes neither.
    send(&ping, FAR, 8, 6, &[0; PAYLOAD_MAX + 1]);
    let mut nothing = [MaybeUninit::uninit(); 64];
    ping.recv(&mut nothing).expect_err("an answer to fragments, or a second one");
    send(&ping, WORKLOAD, 8, 7, b"myself");
    assert_eq!(receive(&ping), (WORKLOAD, 7, b"myself".to_vec()), "the guest's own kernel answers");
    ping.send_to(&[13, 0, 0, 0, 0, 0, 0, 0], &to(FAR, 0)).expect_err("another type than echo");

    Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).expect_err("a raw socket");
    TcpStream::connect_timeout(&(FAR, 80).into(), PATIENCE).expect_err("TCP has no way out");
    let udp = UdpSocket::bind("0.0.0.0:0").expect("bound");
    udp.send_to(b"x", (FAR, 53)).expect_err("UDP has no way out");
    udp.connect((FAR, 1025)).expect("ping of iputils looks for its source like this");
    assert_eq!(udp.local_addr().expect("an address").ip(), WORKLOAD);
    udp.send(b"x").expect("taken by the relay, which drops it");
    println!("the app saw all of it");
}

fn to(address: Ipv4Addr, port: u16) -> SockAddr {
    SockAddr::from(SocketAddr::from((address, port)))
}

fn send(ping: &Socket, address: Ipv4Addr, kind: u8, sequence: u16, payload: &[u8]) {
    let [high, low] = sequence.to_be_bytes();
    ping.send_to(&[&[kind, 0, 0, 0, 0, 0, high, low], payload].concat(), &to(address, 0)).expect("sent");
}

fn receive(mut ping: &Socket) -> (Ipv4Addr, u16, Vec<u8>) {
    let peer = ping.peek_sender().expect("an answer").as_socket().expect("an address").ip();
    let IpAddr::V4(peer) = peer else { panic!("{peer}") };
    let mut message = vec![0; 2048];
    let length = ping.read(&mut message).expect("an answer");
    assert_eq!(message[..2], [0, 0], "an echo reply");
    (peer, u16::from_be_bytes([message[6], message[7]]), message[8..length].to_vec())
}

// covers: D10a
#[test]
fn the_ping_program_of_this_machine_works_in_a_guest() {
    let test = "the_ping_program_of_this_machine_works_in_a_guest";
    let installed = Command::new("ping").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if installed.is_err() {
        assert!(std::env::var_os("NOVA_CI").is_none(), "ping is not installed");
        println!("SKIPPED: {test}: ping is not installed");
        return;
    }
    if !has_tun(test) {
        return;
    }
    // A copy has no file capabilities, with which no program starts in a guest.
    let script = "cp \"$(command -v ping)\" \"$DIR\" && exec \"$DIR/ping\" -c 3 -i 0.2 -W 20 -s 1400 198.51.100.7";
    let guest = pinging(&["/bin/sh", "-c", script]);
    let told = answer_pings(Host::at(&guest.path("host_15001")));
    let output = guest.run();
    let (seen, errors) = said(&output);
    assert!(output.status.success() && seen.contains("3 received"), "{seen}\n{errors}");
    assert_eq!(told.try_iter().count(), 3);
}

// covers: D10a
#[test]
fn a_guest_without_tun_devices_says_what_it_needs() {
    let guest = pinging(&["/bin/true"]);
    fs::write(guest.path("guest.json"), guest.config.to_string()).expect("written");
    fs::set_permissions(guest.path("guest.json"), fs::Permissions::from_mode(0o600)).expect("chmod");
    let hide = "mount -t tmpfs none /dev/net && exec \"$0\" --config \"$1\"";
    let output = Command::new("unshare")
        .args(["-Urnm", "sh", "-c", hide, env!("CARGO_BIN_EXE_nova-init")])
        .arg(guest.path("guest.json"))
        .output()
        .expect("unshare must start");
    let (_, errors) = said(&output);
    assert_eq!(output.status.code(), Some(78), "{errors}");
    assert!(errors.contains("CONFIG_TUN") && errors.contains("icmp to false"), "{errors}");
}
