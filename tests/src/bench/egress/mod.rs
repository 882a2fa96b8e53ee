//! Calls of a workload: Envoy as a forward proxy and the supervisor's egress.
//!
//! ```text
//! callers --+-- Envoy ------------- Unix socket or TCP --+
//!           +-- nova-supervisor --- guest link ----------+-- upstream, plain or TLS
//!           +-- nova-relay, muxer, nova-supervisor ------+
//! ```

mod envoy;
mod trust;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::ensure;
use rustls_pki_types::ServerName;
use serde_json::json;
use tokio_rustls::TlsConnector;

use super::call::{Call, Link, Tunnel};
use super::caller::Caller;
use super::case::{Case, Pattern, Refused, Row};
use super::load::block_on;
use super::stand::{Idle, Proxy, Stand, TOKEN, free_address, text};
use super::upstream::{KEY, Upstream};
use crate::lab::files::write_secret;
use crate::lab::pki::Ca;
use crate::lab::spawn::run;

const ENVOY: usize = 0;
const NOVA: usize = 1;

const PATH: &str = "/v1/orders/";
const KEPT: &str = "/large";
const LOCKED: &str = "/v1/locked";

/// The upstream's names and ports. Every name is the same host; which one is called says which rule is meant.
struct Hosts {
    plain: u16,
    tls: u16,
}

impl Hosts {
    fn plain(&self) -> String {
        format!("plain.bench.test:{}", self.plain)
    }

    fn raw(&self) -> String {
        format!("raw.bench.test:{}", self.plain)
    }

    fn secured(&self) -> String {
        format!("tls.bench.test:{}", self.tls)
    }

    fn keyed(&self) -> String {
        format!("key.bench.test:{}", self.tls)
    }

    fn looked(&self) -> String {
        format!("look.bench.test:{}", self.tls)
    }
}

/// The ways out, and whom an app inside of TLS believes.
struct Ways {
    dir: std::path::PathBuf,
    envoy_tcp: SocketAddr,
    relay: SocketAddr,
    hosts: Hosts,
    by_web_ca: TlsConnector,
    by_pod_ca: TlsConnector,
    by_relayed_pod_ca: TlsConnector,
}

/// Starts upstream and proxies.
pub(super) fn start(bins: &Path, envoy: &Path) -> anyhow::Result<Stand> {
    let mut stand = Stand::new()?;
    let dir = stand.dir().to_owned();
    for folder in ["guests/pod-x", "guests/pod-y", "credentials"] {
        fs::create_dir_all(dir.join(folder))?;
    }
    let (ca, web) = (Ca::new("bench CA", Some("spiffe://dev.invalid"))?, Ca::new("web CA", None)?);
    let identity = web.leaf(None, Some("*.bench.test"))?;
    fs::write(dir.join("web-ca.pem"), web.certificate())?;
    write_secret(&dir.join("web.pem"), &identity)?;
    write_secret(&dir.join("credentials/key"), KEY)?;
    let mut upstream = Upstream::bind()?;
    let hosts = Hosts { plain: upstream.addr()?.port(), tls: upstream.tls(&identity)?.port() };
    upstream.serve()?;
    let dns = start_dns(&mut stand, bins)?;
    let envoy_tcp = free_address("127.0.0.1")?;
    stand.versions.push(version(envoy)?);
    envoy::start(&mut stand, envoy, &hosts, dns, envoy_tcp)?;
    let relay = start_nova(&mut stand, bins, &ca, &hosts, dns)?;
    let by_web_ca = trust::connector(web.certificate())?;
    let by_pod_ca = trust::connector(&trust::of_guest(&guest(&dir, "pod-x"))?)?;
    let by_relayed_pod_ca = trust::connector(&trust::of_guest(&guest(&dir, "pod-y"))?)?;
    let ways = Ways { dir, envoy_tcp, relay, hosts, by_web_ca, by_pod_ca, by_relayed_pod_ca };
    stand.cases = ways.cases()?;
    stand.idle = ways.idle();
    Ok(stand)
}

fn start_dns(stand: &mut Stand, bins: &Path) -> anyhow::Result<SocketAddr> {
    let addr = free_address("127.0.0.1")?;
    let mut argv = vec![text(&bins.join("nova-lab")), "dns".into(), "--listen".into(), addr.to_string()];
    for name in ["plain", "raw", "tls", "key", "look"] {
        argv.extend(["--record".into(), format!("{name}.bench.test=127.0.0.1")]);
    }
    stand.start("dns", &argv)?;
    // It answers TCP as well.
    stand.wait_for_port("dns", addr)?;
    Ok(addr)
}

/// Gives the proxy port of the guest behind the relay.
fn start_nova(stand: &mut Stand, bins: &Path, ca: &Ca, hosts: &Hosts, dns: SocketAddr) -> anyhow::Result<SocketAddr> {
    let dir = stand.dir().to_owned();
    let more = format!(
        "\n[resolver]\nservers = [\"{dns}\"]\n\n[lab]\nallow_destinations = [\"127.0.0.0/8\"]\n\n[credentials]\ndir = \"{}\"\n",
        dir.join("credentials").display()
    );
    let nova = stand.start_nova(bins, ca, (&endpoints(), &rules(hosts)), &more)?;
    for pod in ["pod-x", "pod-y"] {
        stand.wait_for_file(&dir.join("guests").join(pod).join("v.sock_15001"))?;
    }
    let relay = free_address("127.0.0.1")?;
    let relay_pids = stand.start_guest(bins, "pod-y", &json!({"proxy_port": relay.port(), "ingress": []}))?;
    stand.proxies.push(Proxy { pids: vec![nova], relay_pids });
    stand.wait_for_port("relay", relay)?;
    let call = absolute(guest(&dir, "pod-x"), &hosts.plain(), "GET", "/v1/orders/42");
    stand.wait_for("egress", || {
        let status = block_on(async { Caller::connect(&call).await?.ask(&call.request).await })?;
        ensure!(status == 200, "{status}");
        Ok(())
    })?;
    Ok(relay)
}

fn guest(dir: &Path, pod: &str) -> Link {
    Link::Guest { socket: dir.join("guests").join(pod).join("v.sock_15001"), token: TOKEN }
}

fn version(envoy: &Path) -> anyhow::Result<String> {
    let told = String::from_utf8(run(Command::new(envoy).arg("--version"))?.stdout)?;
    // envoy  version: <commit>/<version>/<state>/<build>/<TLS library>
    let version = told.trim().rsplit(' ').next().unwrap_or_default().split('/').skip(1).collect::<Vec<_>>().join(" ");
    Ok(format!("Envoy {version}"))
}

fn endpoints() -> String {
    let token = hex::encode(TOKEN);
    let one = |id: &str, ip: &str, half_close: bool| {
        format!(
            "  - workload_id: {id}\n    tenant: t\n    labels: {{ bench: caller }}\n    pod_uid: pod-{id}\n    generation: 1\n    \
             workload_ip: {ip}\n    backend: {{ hybrid: {{ file: v.sock, half_close: {half_close} }} }}\n    ports: []\n    \
             state: ready\n    boot_token: {token}\n    credentials: [key]\n    limits: {{ max_connections: 4000, lookups_per_second: 4000 }}\n"
        )
    };
    format!("endpoints:\n{}{}", one("x", "127.0.1.11", true), one("y", "127.0.1.12", false))
}

fn rules(hosts: &Hosts) -> String {
    let one = |id: &str, host: &str, more: &str| {
        let (name, port) = host.split_once(':').unwrap_or((host, "0"));
        format!(
            "  - id: {id}\n    tenant: t\n    from: {{ labels: {{ bench: caller }} }}\n    \
             to: {{ external: {name}, port: {port}{more}\n"
        )
    };
    let http = "    http: { methods: [GET], paths: [\"/v1/**\", /large] }\n";
    let ca = ", ca: web-ca }";
    [
        "external_cas: [{ name: web-ca, pem_file: web-ca.pem }]\n".to_owned(),
        "credentials: [{ name: key, form: bearer, hosts: [key.bench.test], owner: bench }]\nrules:\n".to_owned(),
        one("plain", &hosts.plain(), " }") + http + "    tls: none\n",
        one("tls", &hosts.secured(), ca) + http,
        one("key", &hosts.keyed(), ca) + http + "    credential: key\n",
        one("look", &hosts.looked(), ca) + http + "    tls: intercept\n",
        one("raw", &hosts.raw(), " }"),
    ]
    .concat()
}

impl Ways {
    fn envoy(&self, socket: &str) -> Link {
        Link::Unix(self.dir.join(socket))
    }

    fn nova(&self) -> Link {
        guest(&self.dir, "pod-x")
    }

    fn relay(&self) -> Link {
        Link::Tcp(self.relay)
    }

    fn cases(&self) -> anyhow::Result<Vec<Case>> {
        let Hosts { plain, .. } = self.hosts;
        let keep = |id, title, callers, rows| Case { id, title, callers, pattern: Pattern::Keep, rows };
        let proxied = |host: &str, path: &'static str, envoy: Link| {
            vec![
                requests("Envoy, Unix socket", ENVOY, envoy, host, path),
                requests("nova, guest link", NOVA, self.nova(), host, path),
                requests("nova, framed, through nova-relay", NOVA, self.relay(), host, path),
            ]
        };
        let mut plainly = proxied(&self.hosts.plain(), "/v1/orders/42", self.envoy(envoy::OPEN));
        plainly
            .insert(1, requests("Envoy, TCP", ENVOY, Link::Tcp(self.envoy_tcp), &self.hosts.plain(), "/v1/orders/42"));
        let secured = proxied(&self.hosts.secured(), "/v1/orders/42", self.envoy(envoy::SECURED));
        let keyed = proxied(&self.hosts.keyed(), LOCKED, self.envoy(envoy::KEYED));
        let tunnels = |path: &str, head: &str| self.tunnels(&format!("{head} {path} HTTP/1.1"));
        let mut new_tunnels = tunnels("/v1/orders/42", "GET");
        let socks = Tunnel::Socks("raw.bench.test".into(), plain);
        let denied = Tunnel::Socks("other.bench.test".into(), plain);
        new_tunnels.insert(
            2,
            self.tunnel("nova, SOCKS5, guest link", NOVA, self.nova(), (socks, denied), "GET /v1/orders/42 HTTP/1.1"),
        );
        for row in new_tunnels.iter_mut().filter(|row| row.proxy == NOVA) {
            row.audited = Some("close");
        }
        let of = |id, title, callers, pattern, rows| Case { id, title, callers, pattern, rows };
        Ok(vec![
            keep("absolute-form", "absolute form, plaintext to the destination, keep-alive", 64, plainly),
            keep("tls", "absolute form, TLS to the destination, keep-alive", 64, secured),
            keep("credential", "the same with a credential put in", 64, keyed),
            keep(
                "intercepted",
                "the app's own TLS answered, TLS to the destination, keep-alive",
                64,
                self.intercepted()?,
            ),
            of("new-tunnel", "new tunnel for each request", 64, Pattern::Once, new_tunnels),
            keep("megabyte", "1 MiB answers in tunnels", 16, tunnels("/large", "GET")),
            of("download", "512 MiB answers in one tunnel", 1, Pattern::Download, tunnels("/huge", "GET")),
            of("upload", "upload in one tunnel", 1, Pattern::Upload, tunnels("/sink", "POST")),
        ])
    }

    fn tunnels(&self, line: &str) -> Vec<Row> {
        let to = |host: &str| Tunnel::Connect(format!("{host}.bench.test:{}", self.hosts.plain));
        let row = |name, proxy, link| self.tunnel(name, proxy, link, (to("raw"), to("other")), line);
        vec![
            row("Envoy, CONNECT, Unix socket", ENVOY, self.envoy(envoy::OPEN)),
            row("nova, CONNECT, guest link", NOVA, self.nova()),
            row("nova, CONNECT, framed, through nova-relay", NOVA, self.relay()),
        ]
    }

    fn tunnel(
        &self,
        name: &'static str,
        proxy: usize,
        link: Link,
        (granted, denied): (Tunnel, Tunnel),
        line: &str,
    ) -> Row {
        let request = format!("{line}\r\nhost: {}\r\ncontent-length: {}\r\n\r\n", self.hosts.raw(), u64::MAX >> 8);
        let request = if line.starts_with("POST") { request } else { origin(line, &self.hosts.raw()) };
        let relayed = proxy == NOVA && matches!(link, Link::Tcp(_));
        let call = Call { link, tunnel: Some(granted), tls: None, request: request.into() };
        let refused = vec![(Call { tunnel: Some(denied), ..call.clone() }, Refused::Unconnected)];
        Row { name, proxy, relayed, call, refused, audited: None }
    }

    /// A peer that answers TLS in a tunnel is asked without the tunnel, which costs it nothing per request.
    fn intercepted(&self) -> anyhow::Result<Vec<Row>> {
        let host = self.hosts.looked();
        let name = ServerName::try_from("look.bench.test")?;
        let row = |row_name, proxy, link: Link, tls: &TlsConnector| {
            let tunnel = (proxy == NOVA).then(|| Tunnel::Connect(host.clone()));
            let relayed = proxy == NOVA && matches!(link, Link::Tcp(_));
            let request = |line: &str| origin(line, &host).into();
            let tls = Some((name.clone(), tls.clone()));
            let call = Call { link, tunnel, tls, request: request("GET /v1/orders/42 HTTP/1.1") };
            let refused = ["POST /v1/orders/42 HTTP/1.1", "GET /v2/orders/42 HTTP/1.1"]
                .map(|line| (call.saying(&origin(line, &host)), Refused::Somehow));
            let audited = (proxy == NOVA).then_some("request");
            Row { name: row_name, proxy, relayed, call, refused: refused.into(), audited }
        };
        Ok(vec![
            row("Envoy, TLS on a Unix socket", ENVOY, self.envoy(envoy::LOOKING), &self.by_web_ca),
            row("nova, CONNECT, guest link", NOVA, self.nova(), &self.by_pod_ca),
            row("nova, CONNECT, framed, through nova-relay", NOVA, self.relay(), &self.by_relayed_pod_ca),
        ])
    }

    fn idle(&self) -> Vec<Idle> {
        let host = self.hosts.plain();
        let kept = |link| absolute(link, &host, "GET", "/v1/orders/42");
        let tunnel = |link| Call {
            link,
            tunnel: Some(Tunnel::Connect(self.hosts.raw())),
            tls: None,
            request: origin("GET /v1/orders/42 HTTP/1.1", &self.hosts.raw()).into(),
        };
        vec![
            Idle { name: "Envoy, connection to the proxy", proxy: ENVOY, call: kept(self.envoy(envoy::OPEN)) },
            Idle { name: "nova, connection to the proxy", proxy: NOVA, call: kept(self.nova()) },
            Idle { name: "Envoy, CONNECT tunnel", proxy: ENVOY, call: tunnel(self.envoy(envoy::OPEN)) },
            Idle { name: "nova, CONNECT tunnel", proxy: NOVA, call: tunnel(self.nova()) },
        ]
    }
}

/// Requests in absolute form.
fn requests(name: &'static str, proxy: usize, link: Link, host: &str, path: &'static str) -> Row {
    let relayed = proxy == NOVA && matches!(link, Link::Tcp(_));
    let call = absolute(link, host, "GET", path);
    let (_, port) = host.split_once(':').unwrap_or_default();
    let refused = vec![
        (absolute(call.link.clone(), host, "POST", path), Refused::Somehow),
        (absolute(call.link.clone(), host, "GET", "/v2/orders/42"), Refused::Somehow),
        (absolute(call.link.clone(), &format!("other.bench.test:{port}"), "GET", path), Refused::Somehow),
    ];
    Row { name, proxy, relayed, call, refused, audited: (proxy == NOVA).then_some("request") }
}

fn absolute(link: Link, host: &str, method: &str, path: &str) -> Call {
    let request = origin(&format!("{method} http://{host}{path} HTTP/1.1"), host);
    Call { link, tunnel: None, tls: None, request: request.into() }
}

fn origin(line: &str, host: &str) -> String {
    format!("{line}\r\nhost: {host}\r\nuser-agent: nova-lab\r\naccept: */*\r\n\r\n")
}

/// Said of the whole section.
pub(super) const ABOUT: &str = "\
64 callers (16 for 1 MiB answers, one for long streams); callers, proxy and destination share the same cores, so what comes \
per second is context and CPU per request, tunnel or MiB is the figure. Every proxy has two threads, asks the same DNS server, \
was seen to serve what its rules name, and to refuse another method, path, host and tunnel. TLS is 1.3 with P-256.

- Envoy: dynamic forward proxy, RBAC on authority, method and path (CONNECT: authority), no log. With a credential: a header that \
its route adds. It speaks no SOCKS5. In the place of a tunnel whose TLS is answered it has a listener that answers TLS, with one \
certificate.
- nova: the request gate, canonical path, one decision per request or tunnel (signed bundle, Rego), the address guard, the first \
bytes of tunnels, headers cleaned, one audit line per request and two per tunnel in a file; the bench fails when one is missing.
- CPU is user and system time of the proxy's process, all threads. *guest link*: the caller says the relay's hello itself, so there \
is one hop as with Envoy. *through nova-relay*: the real relay and an emulated muxer in between, with framing; their CPU comes on \
top and is given behind the plus.
- ratio: CPU divided by that of Envoy over a Unix socket in the same round; the median, and the range.
- RSS: one process serves all rows of a proxy.
";
