//! HTTP libraries of Python that are installed besides it, in an app of the guest: what nova-init says in the environment is all
//! they know.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::data::{Upstream, is};
use crate::programs::{python_with, run_with, script};
use crate::stage::{AWAY, PLAIN, SECURE, Stage};

/// What a library does, and what its user gets: a status, or an exception whose text has a part like this.
struct Call {
    call: Value,
    wanted: Result<Value, &'static str>,
}

fn gets(url: &str, status: u16) -> Call {
    does("get", url, Ok(json!(status)))
}

fn does(how: &str, url: &str, wanted: Result<Value, &'static str>) -> Call {
    Call { call: json!({"how": how, "url": url}), wanted }
}

/// Gets it through a proxy that the code names.
fn through(proxy: String, url: &str, wanted: Result<u16, &'static str>) -> Call {
    Call { call: json!({"how": "get", "url": url, "proxy": proxy}), wanted: wanted.map(|status| json!(status)) }
}

/// What every library does; then `more`.
fn judge(library: &str, agent: &str, more: impl Fn(&Stage) -> Vec<Call>) -> Option<Stage> {
    let python = python_with(library)?;
    let stage = Stage::start(vec![(AWAY, Vec::new())]);
    let own = Upstream::http("127.0.0.1:0");
    let (plain, secure) = (format!("{PLAIN}/files/hello"), format!("{SECURE}/files/hello"));
    let login = format!("http://user:hunter2@{}", stage.proxy);
    let mut calls = vec![
        // Refusals first: a request, one after a redirect, a tunnel, and an address in the spelling of the library.
        gets(&format!("{PLAIN}/secret"), 403),
        gets(&format!("{PLAIN}{AWAY}"), 403),
        does("get", "https://evil.test/", Err("403")),
        does("get", "https://[::1]:9443/", Err("40")),
        gets(&plain, 200),
        gets(&secure, 200),
        does("post", &plain, Ok(json!(200))),
        does("together", &plain, Ok(json!(vec![200; 20]))),
        through(login.clone(), &plain, Ok(200)),
        through(login, &secure, Ok(200)),
        gets(&format!("http://{}/", own.address), 200),
    ];
    calls.extend(more(&stage));
    let mut command = script(&python, &format!("python/{library}_calls.py"));
    let list: Vec<&Value> = calls.iter().map(|call| &call.call).collect();
    command.arg(json!(list).to_string()).env_clear().envs(stage.environment()).env("PYTHONDONTWRITEBYTECODE", "1");
    let said = run_with(Stdio::null(), stage.node.dir.path(), &mut command).lines();
    assert_eq!(said.len(), calls.len(), "{said:#?}");
    for (Call { call, wanted }, said) in calls.iter().zip(&said) {
        let fits = match wanted {
            Ok(status) => said["status"] == *status,
            Err(part) => said["error"].as_str().is_some_and(|error| error.contains(part)),
        };
        assert!(fits, "{call}: wanted {wanted:?}, got {said}");
    }
    let seen = stage.seen();
    assert!(stage.saw("/files/hello", agent), "{seen:#?}");
    assert!(!seen.iter().any(|request| request.to_ascii_lowercase().contains("proxy-")), "{seen:#?}");
    // What is not for the proxy went to nobody else.
    assert_eq!(own.seen().len(), 1);
    let log = format!("{:?}", stage.node.audit());
    assert!(!log.contains("hunter2") && !log.contains("dXNlcjpodW50ZXIy"), "{log}");
    Some(stage)
}

// covers: D1k (F-EC03, F-EC04, F-EH06, F-SO04)
#[test]
fn requests_calls_as_the_environment_says_and_over_socks() {
    let socks = |stage: &Stage| {
        let (by_name, by_address) = (format!("socks5h://{}", stage.proxy), format!("socks5://{}", stage.proxy));
        let address = format!("http://{}:8080/files/hello", stage.node.ip(80));
        vec![
            through(by_name.clone(), &format!("{PLAIN}/files/hello"), Ok(200)),
            through(by_name.clone(), &format!("{SECURE}/files/hello"), Ok(200)),
            through(by_name, "https://evil.test/", Err("0x02: Connection not allowed by ruleset")),
            through(by_address, &address, Err("0x02: Connection not allowed by ruleset")),
        ]
    };
    let Some(stage) = judge("requests", "python-requests/", socks) else { return };
    let line = stage.node.audited_once(|line| line["detail"] == "ip_target_no_cidr_rule" && line["method"] == "SOCKS5");
    assert!(is(&line, &[("verdict", "deny"), ("reason", "no_grant")]), "{line}");
}

// covers: D1k (F-EC03, F-EC04, F-EC05, F-EH06)
#[test]
fn httpx_calls_as_the_environment_says() {
    judge("httpx", "python-httpx/", |_| Vec::new());
}

// covers: D1k (F-EC03, F-EC04, F-EH06, F-EH09)
#[test]
fn aiohttp_calls_as_the_environment_says_and_opens_sockets() {
    let chat = |scheme: &str, url: &str| format!("{scheme}{}", url.split_once(':').expect("a scheme").1);
    let Some(stage) = judge("aiohttp", "Python/", |_| {
        vec![
            // It looks for the host by itself, where nobody is.
            does("untold", &format!("{PLAIN}/files/hello"), Err("Cannot connect to host plain.test:8080")),
            does("socket", &format!("{}/files/hello", chat("ws:", PLAIN)), Err("403")),
            does("socket", &format!("{}/chat", chat("ws:", PLAIN)), Ok(json!(["welcome", "to you"]))),
            does("socket", &format!("{}/chat", chat("wss:", SECURE)), Ok(json!(["welcome", "to you"]))),
        ]
    }) else {
        return;
    };
    let line = stage.node.audited_once(|line| is(line, &[("kind", "close"), ("rule", "chat")]));
    assert_eq!(line["close"], "done", "{line}");
}
