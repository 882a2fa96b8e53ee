//! A host outside that is a server of Go: which version it is spoken to in is its own choice.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::data::{Link, Node, X, issue, read_answer, read_head};
use crate::programs::{Running, go_clients};

const HOST: &str = "api.test:9443";

/// The server at the address of `api.test`. `http2` is Go's own switch.
fn start(node: &Node, program: &std::path::Path, http2: bool) -> Running {
    let (cert, key) = (node.dir.path().join("api.crt"), node.dir.path().join("api.key"));
    let who = issue(&node.web, "spiffe://web/api", "api.test");
    fs::write(&cert, who.chain_pem()).expect("written");
    fs::write(&key, who.key_pem().as_bytes()).expect("written");
    let mut command = Command::new(program);
    command.arg("https-app").arg("--cert").arg(cert).arg("--key").arg(key);
    command.arg("--address").arg(format!("{}:9443", node.ip(80))).stdin(Stdio::null()).stdout(Stdio::piped());
    if !http2 {
        command.env("GODEBUG", "http2server=0");
    }
    let mut process = Running(command.spawn().expect("the server starts"));
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "listening\n");
    process
}

fn get(link: &mut Link, target: &str) -> Value {
    link.send(format!("GET http://{HOST}{target} HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
    let answer = read_answer(link).expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    serde_json::from_slice(&answer.body).expect("JSON")
}

// covers: D5d
#[test]
fn a_server_of_go_is_spoken_to_in_the_version_that_it_picks() {
    let Some(program) = go_clients() else { return };
    for (http2, protocol, most) in [(true, "HTTP/2.0", 2), (false, "HTTP/1.1", 16)] {
        let node = Node::start();
        let _server = start(&node, &program, http2);
        let mut links: Vec<_> = (0..16).map(|_| node.proxy(X)).collect();
        let request = format!("GET http://{HOST}/v1/a%20b?c=d HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
        links.iter_mut().for_each(|link| link.send(&request));
        let answers = links.iter_mut().map(|link| read_answer(link).expect("an answer").body);
        let told: Vec<Value> = answers.map(|body| serde_json::from_slice(&body).expect("JSON")).collect();
        for line in &told {
            let fields = ["protocol", "host", "target", "forwarded"].map(|name| line[name].as_str().expect("text"));
            assert_eq!(fields, [protocol, HOST, "/v1/a%20b?c=d", ""], "{line}");
        }
        let connections: BTreeSet<_> = told.iter().map(|line| line["from"].to_string()).collect();
        assert!(connections.len() <= most, "{connections:?}");
        assert_eq!(get(&mut links[0], "/v1/b")["protocol"], protocol);
        upload(&mut links[1]);
    }
}

/// A long body of no announced length, with trailers both ways.
fn upload(link: &mut Link) {
    link.send(format!(
        "POST http://{HOST}/v1/c HTTP/1.1\r\nHost: {HOST}\r\nTE: trailers\r\nTrailer: x-end\r\nTransfer-Encoding: chunked\r\n\r\n"
    ));
    let piece = "0123456789abcdef".repeat(4096);
    for _ in 0..32 {
        link.send(format!("{:x}\r\n{piece}\r\n", piece.len()));
    }
    link.send("0\r\nx-end: yes\r\n\r\n");
    let head = read_head(link).expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200") && head.to_ascii_lowercase().contains("trailer: x-sum"), "{head}");
    let mut rest = Vec::new();
    while !rest.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        link.read_exact(&mut byte).expect("more");
        rest.push(byte[0]);
    }
    let rest = String::from_utf8_lossy(&rest).to_ascii_lowercase();
    assert!(rest.contains("\"length\":2097152") && rest.contains("\"end\":\"yes\""), "{rest}");
    assert!(rest.contains("x-sum: 2097152"), "{rest}");
}
