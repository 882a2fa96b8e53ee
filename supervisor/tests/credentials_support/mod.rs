//! A node with one credential of each form, and a destination for each.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of it")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::data::{self, Answer, Link, Node, Plan, Upstream, X, is, read_answer};
use serde_json::Value;

/// Values that are nowhere else in any test, so that finding one means that it leaked.
pub const BEARER: &str = "bearer-value-7f3a9c";
pub const HEADER: &str = "header-value-51bd02";
pub const BASIC: &str = "robot:basic-value-88e1aa";
pub const QUERY: &str = "query-value-c0ffee&=";
pub const AWS: &str = "aws-value-wJalrXUtnFEMI-41";
pub const SESSION: &str = "session-value-99ab17";
pub const FILLED: &str = "filled-\"value\"-2b6d90";

/// Name of a credential, what its file holds, and its form in the rules.
pub const ALL: [(&str, &str, &str); 7] = [
    ("bearer", BEARER, "form: bearer"),
    ("header", HEADER, "form: header, header: x-api-key"),
    ("basic", BASIC, "form: basic"),
    ("query", QUERY, "form: query, parameter: key"),
    ("aws", "", "form: sigv4, region: eu-west-1, service: s3"),
    ("db", "", "form: sigv4, region: eu-west-1, service: dynamodb"),
    ("filled", FILLED, "form: placeholder, header: authorization, parameter: key, body: [json]"),
];

/// `<credential>.test` is at `NET.81` and following.
pub fn address(node: &Node, name: &str) -> String {
    let at = ALL.iter().position(|(known, ..)| *known == name).expect("a credential");
    format!("{}:9443", node.ip(81 + u8::try_from(at).expect("few")))
}

/// Rules for all of them, and `more` rows. `echo.test` is granted without a credential, `audit.test` only audits.
pub fn rules(more: &str) -> String {
    let mut text = "external_cas: [{name: web-ca, pem_file: web-ca.pem}]\ncredentials:\n".to_owned();
    for (name, _, form) in ALL {
        text += &format!("- {{name: {name}, {form}, hosts: [{name}.test], owner: security}}\n");
    }
    text += "rules:\n";
    let to = |host: &str| format!("to: {{external: {host}, port: 9443, ca: web-ca, addresses: [NET.0/24]}}");
    for (name, ..) in ALL {
        let http = "http: {methods: [GET, POST, PUT], paths: ['/v1/**']}";
        text += &format!(
            "- {{id: to-{name}, tenant: t, from: {{workload: x}}, {}, {http}, credential: {name}}}\n",
            to(&format!("{name}.test"))
        );
    }
    let http = "http: {methods: [GET, POST], paths: ['/**']}";
    text += &format!("- {{id: to-echo, tenant: t, from: {{workload: x}}, {}, {http}}}\n", to("echo.test"));
    text += &format!(
        "- {{id: to-audit, tenant: t, from: {{workload: x}}, {}, http: {{methods: [PUT]}}, audit: true}}\n",
        to("audit.test")
    );
    text += "- {id: x-to-a, tenant: t, from: {workload: x}, to: {workload: service-a, port: https}, http: {methods: [GET]}}\n";
    text + more
}

/// x may use all of them.
pub fn plan() -> Plan {
    let mut hosts: Vec<(String, String)> =
        ALL.iter().zip(81..).map(|((name, ..), n)| (format!("{name}.test"), format!("NET.{n}"))).collect();
    hosts.extend([("echo.test".to_owned(), "NET.91".to_owned()), ("audit.test".to_owned(), "NET.92".to_owned())]);
    let names = ALL.map(|(name, ..)| name).join(", ");
    let token = "boot_token: 00000000000000000000000000000011\n";
    let endpoints = Plan::default().endpoints.replace(token, &format!("{token}    credentials: [{names}]\n"));
    let dependencies = "dependencies: [{host: bearer.test, port: 9443, guest_ip: 127.0.1.3}, ";
    Plan {
        rules: rules(""),
        endpoints: endpoints.replace("dependencies: [", dependencies),
        hosts,
        sections: "[credentials]\ndir = \"secrets\"\n".to_owned(),
        prepare: |dir, _| {
            fs::create_dir(dir.join("secrets")).expect("made");
            for (name, value, _) in ALL {
                if !value.is_empty() {
                    put(dir, name, value);
                }
            }
            let keys = format!("{{\"access_key_id\": \"AKIDEXAMPLE\", \"secret_access_key\": \"{AWS}\"}}");
            put(dir, "aws", &keys);
            put(dir, "db", &keys.replace('}', &format!(", \"session_token\": \"{SESSION}\"}}")));
        },
        ..Plan::default()
    }
}

/// Writes a value in one step.
pub fn put(dir: &Path, name: &str, value: &str) {
    let (beside, file) = (dir.join("secrets/.new"), dir.join("secrets").join(name));
    fs::write(&beside, value).expect("written");
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o400)).expect("allowed");
    fs::rename(beside, file).expect("renamed");
}

/// The destination of a credential, with a good certificate.
pub fn upstream(node: &Node, name: &str) -> Upstream {
    let host = format!("{name}.test");
    let who = data::issue(&node.web, &format!("spiffe://web/{name}"), &host);
    let address = match name {
        "echo" => format!("{}:9443", node.ip(91)),
        "audit" => format!("{}:9443", node.ip(92)),
        name => address(node, name),
    };
    Upstream::https(&address, &who)
}

pub fn get(host: &str, target: &str, fields: &str) -> String {
    format!("GET http://{host}:9443{target} HTTP/1.1\r\nHost: {host}:9443\r\n{fields}\r\n")
}

pub fn post(host: &str, fields: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST http://{host}:9443/v1/x HTTP/1.1\r\nHost: {host}:9443\r\nContent-Length: {length}\r\n{fields}\r\n{body}"
    )
}

pub fn ask(node: &Node, request: &str) -> Answer {
    answer(&mut node.proxy(X), request)
}

pub fn answer(link: &mut Link, request: &str) -> Answer {
    link.send(request);
    read_answer(link).expect("an answer")
}

pub fn requests(line: &Value) -> bool {
    is(line, &[("direction", "egress"), ("kind", "request")])
}

/// What is told of a refusal, without what may differ.
pub fn bare(answer: &Answer, asked: &str) -> String {
    // The length is that of the caller's own words.
    let differs =
        |line: &str| ["date:", "content-length:"].iter().any(|name| line.to_ascii_lowercase().starts_with(name));
    let head: String = answer.head.lines().filter(|line| !differs(line)).collect();
    format!("{head}{}", answer.text()).replace(&answer.decision_id(), "ID").replace(asked, "CALL")
}
