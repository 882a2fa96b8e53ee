//! Calls to a workload: HAProxy and the supervisor's ingress.
//!
//! ```text
//! callers (64, TLS 1.3, client certificates) --+-- HAProxy ----------- Unix socket or TCP --+
//!                                              +-- nova-supervisor --- guest link ----------+-- upstream
//!                                              +-- nova-supervisor --- muxer, nova-relay ---+
//! ```

mod callers;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use rustls_pki_types::ServerName;
use serde_json::json;
use tokio_rustls::TlsConnector;

use self::callers::{CALLEE, CALLEE_BEHIND_RELAY, Callers};
use super::call::{Call, Link};
use super::case::{Case, Pattern, Refused, Row};
use super::stand::{Idle, Proxy, Stand, TOKEN, WORKERS, first_line, free_address, text};
use super::upstream::Upstream;
use crate::lab::files::write_secret;
use crate::lab::spawn::run;

const HAPROXY: usize = 0;
const NOVA: usize = 1;

/// What a case asks for.
struct Plan {
    id: &'static str,
    title: &'static str,
    callers: usize,
    pattern: Pattern,
    path: &'static str,
    headers: &'static str,
}

const PLANS: [Plan; 3] = [
    Plan {
        id: "keep-alive",
        title: "keep-alive",
        callers: 64,
        pattern: Pattern::Keep,
        path: "/v1/orders/42",
        headers: "",
    },
    Plan {
        id: "new-connection",
        title: "new connection per request",
        callers: 64,
        pattern: Pattern::Once,
        path: "/v1/orders/42",
        headers: "connection: close\r\n",
    },
    Plan { id: "megabyte", title: "1 MiB answers", callers: 16, pattern: Pattern::Keep, path: "/large", headers: "" },
];

/// One way in.
struct Way {
    name: &'static str,
    proxy: usize,
    relayed: bool,
    addr: SocketAddr,
    callee: &'static str,
}

/// Starts upstream and proxies.
pub(super) fn start(bins: &Path) -> anyhow::Result<Stand> {
    let callers = Callers::new()?;
    let mut stand = Stand::new()?;
    let path = stand.dir().to_owned();
    for folder in ["guests/pod-x", "guests/pod-y", "guests/pod-a", "guests/pod-b"] {
        fs::create_dir_all(path.join(folder))?;
    }
    let unix = path.join("app.sock");
    let mut upstream = Upstream::bind()?;
    upstream.unix(&unix)?;
    upstream.hybrid(&path.join("guests/pod-a/v.sock"))?;
    let app = upstream.addr()?;
    upstream.serve()?;
    let (over_unix, over_tcp) = start_haproxy(&mut stand, &callers, &unix, app)?;
    let relay = json!({"proxy_port": free_address("127.0.0.1")?.port(), "ingress": [{"tcp": app.port()}]});
    let relay_pids = stand.start_guest(bins, "pod-b", &relay)?;
    let (direct, relayed) = (free_address("127.0.1.21")?, free_address("127.0.1.31")?);
    let endpoints = endpoints(direct, relayed, app.port());
    let nova = stand.start_nova(bins, &callers.ca, (&endpoints, RULES), "")?;
    stand.proxies.push(Proxy { pids: vec![nova], relay_pids });
    let ways = [
        Way { name: "HAProxy, Unix socket", proxy: HAPROXY, relayed: false, addr: over_unix, callee: CALLEE },
        Way { name: "HAProxy, TCP", proxy: HAPROXY, relayed: false, addr: over_tcp, callee: CALLEE },
        Way { name: "nova, guest link", proxy: NOVA, relayed: false, addr: direct, callee: CALLEE },
        Way {
            name: "nova, framed, through nova-relay",
            proxy: NOVA,
            relayed: true,
            addr: relayed,
            callee: CALLEE_BEHIND_RELAY,
        },
    ];
    for way in &ways {
        stand.wait_for_port(way.name, way.addr)?;
    }
    stand.cases = PLANS.iter().map(|plan| case(plan, &ways, &callers)).collect::<anyhow::Result<_>>()?;
    stand.idle = [&ways[0], &ways[2]]
        .into_iter()
        .map(|way| Ok(Idle { name: way.name, proxy: way.proxy, call: call(&PLANS[0], way, &callers.x)? }))
        .collect::<anyhow::Result<_>>()?;
    Ok(stand)
}

fn case(plan: &Plan, ways: &[Way], callers: &Callers) -> anyhow::Result<Case> {
    let rows = ways.iter().map(|way| {
        let refused = vec![
            (call(plan, way, &callers.y)?, Refused::Somehow),
            (call(plan, way, &callers.stranger)?, Refused::Unconnected),
        ];
        let audited = (way.proxy == NOVA).then_some("request");
        let call = call(plan, way, &callers.x)?;
        Ok(Row { name: way.name, proxy: way.proxy, relayed: way.relayed, call, refused, audited })
    });
    let rows = rows.collect::<anyhow::Result<_>>()?;
    Ok(Case { id: plan.id, title: plan.title, callers: plan.callers, pattern: plan.pattern, rows })
}

fn call(plan: &Plan, way: &Way, connector: &TlsConnector) -> anyhow::Result<Call> {
    let Plan { path, headers, .. } = plan;
    let host = way.callee;
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: nova-lab\r\naccept: */*\r\n{headers}\r\n");
    let tls = Some((ServerName::try_from(host)?, connector.clone()));
    Ok(Call { link: Link::Tcp(way.addr), tunnel: None, tls, request: request.into() })
}

fn start_haproxy(
    stand: &mut Stand,
    callers: &Callers,
    unix: &Path,
    app: SocketAddr,
) -> anyhow::Result<(SocketAddr, SocketAddr)> {
    let dir = stand.dir().to_owned();
    fs::write(dir.join("ca.pem"), callers.ca.certificate())?;
    write_secret(&dir.join("server.pem"), &callers.ca.leaf_named(CALLEE, None, Some(CALLEE))?)?;
    let (over_unix, over_tcp) = (free_address("127.0.0.1")?, free_address("127.0.0.1")?);
    let mut config = format!(
        "global\n  nbthread {WORKERS}\n  maxconn 4000\n  ssl-default-bind-options ssl-min-ver TLSv1.3 no-tls-tickets\n  \
         tune.ssl.cachesize 0\ndefaults\n  mode http\n  timeout client 60s\n  timeout server 60s\n  \
         timeout connect 5s\n  http-reuse always\n"
    );
    for (name, listen, server) in
        [("unix", over_unix, format!("unix@{}", unix.display())), ("tcp", over_tcp, app.to_string())]
    {
        config.push_str(&format!(
            "frontend in_{name}\n  bind {listen} ssl crt {0}/server.pem ca-file {0}/ca.pem verify required alpn \
             http/1.1\n  acl x ssl_c_s_dn(cn) -m str client-x\n  acl get method GET\n  \
             http-request deny unless x get\n  default_backend to_{name}\nbackend to_{name}\n  server a {server}\n",
            dir.display()
        ));
    }
    let file = dir.join("haproxy.cfg");
    fs::write(&file, config)?;
    stand.versions.push(first_line(&run(Command::new("haproxy").arg("-v"))?.stdout));
    let pid = stand.start("haproxy", &["haproxy".into(), "-db".into(), "-f".into(), text(&file)])?;
    stand.proxies.push(Proxy { pids: vec![pid], relay_pids: Vec::new() });
    Ok((over_unix, over_tcp))
}

const RULES: &str = "rules:
  - id: x-to-a
    tenant: t
    from: { workload: x }
    to: { workload: service-a, port: https }
    http: { methods: [GET], paths: [\"/v1/orders/**\", /large] }
  - id: x-to-b
    tenant: t
    from: { workload: x }
    to: { workload: service-b, port: https }
    http: { methods: [GET], paths: [\"/v1/orders/**\", /large] }
";

fn endpoints(direct: SocketAddr, relayed: SocketAddr, app_port: u16) -> String {
    let token = hex::encode(TOKEN);
    let caller = |id: &str, ip: &str| {
        format!(
            "  - workload_id: {id}\n    tenant: t\n    pod_uid: pod-{id}\n    generation: 1\n    workload_ip: {ip}\n    \
             backend: {{ hybrid: {{ file: v.sock, half_close: false }} }}\n    ports: []\n    state: ready\n    \
             boot_token: {token}\n"
        )
    };
    let callee = |letter: &str, addr: SocketAddr, half_close: bool| {
        format!(
            "  - workload_id: service-{letter}\n    tenant: t\n    pod_uid: pod-{letter}\n    generation: 1\n    \
             workload_ip: {}\n    backend: {{ hybrid: {{ file: v.sock, half_close: {half_close} }} }}\n    ports:\n      \
             - {{ name: https, port: {}, target_port: {app_port}, mode: mtls, protocol: http }}\n    state: ready\n    \
             boot_token: {token}\n    limits: {{ max_connections: 4000 }}\n",
            addr.ip(),
            addr.port()
        )
    };
    ["endpoints:\n".to_owned(), caller("x", "127.0.1.11"), caller("y", "127.0.1.12"), callee("a", direct, true)]
        .concat()
        + &callee("b", relayed, false)
}

/// Said of the whole section.
pub(super) const ABOUT: &str = "\
64 callers (16 for 1 MiB answers) with TLS 1.3 and P-256 client certificates, no resumption; callers, proxy and app share \
the same cores, so requests/s are context and CPU per request is the figure. Every proxy has two threads, was seen to serve \
the caller that its rule names, and to refuse another caller and a certificate of another CA.

- HAProxy: client certificate required, ACL on its CN and on the method, no log, no header added.
- nova: the caller's SPIFFE ID, the request gate, canonical path, one decision per request (signed bundle, Rego), identity \
headers replaced, one audit line per request in a file; the bench fails when a line is missing.
- CPU is user and system time of the proxy's process, all threads. *guest link*: the app itself answers the link's hello, \
so there is one hop as with HAProxy. *through nova-relay*: an emulated muxer and the real relay in between, with framing; \
their CPU comes on top and is given behind the plus.
- ratio: CPU per request divided by that of HAProxy over a Unix socket in the same round; the median, and the range.
- RSS: one process serves both nova rows, one both HAProxy rows.
";
