//! The files that an operator would write: configuration, placements, rules.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use serde_json::Value;

use super::net::{DNS, MANAGEMENT, SUBNET};
use super::stage::GuestKind;

/// A workload of the demo: id, pod, address.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// Its id.
    pub id: &'static str,
    /// Its pod.
    pub pod: &'static str,
    /// Its address.
    pub ip: &'static str,
}

/// The caller.
pub const X: Workload = Workload { id: "x", pod: "pod-x", ip: "10.64.3.11" };
/// The callee.
pub const A: Workload = Workload { id: "service-a", pod: "pod-a", ip: "10.64.3.21" };
/// A workload that x has no business with.
pub const B: Workload = Workload { id: "b", pod: "pod-b", ip: "10.64.3.31" };
/// All of them.
pub const WORKLOADS: [Workload; 3] = [X, A, B];

impl Workload {
    /// Its SPIFFE ID in the lab.
    #[must_use]
    pub fn spiffe_id(&self) -> String {
        format!("spiffe://dev.invalid/t/t/w/{}", self.id)
    }

    /// Its name.
    #[must_use]
    pub fn host(&self) -> String {
        format!("{}.t.nova", self.id)
    }
}

/// The rules of the demo.
pub const RULES: &str = r#"external_cas:
  - { name: partner-ca, pem_file: partner-ca.pem }
  - { name: stripe-ca, pem_file: stripe-ca.pem }
rules:
  - id: x-to-a
    tenant: t
    from: { workload: x }
    to: { workload: service-a, port: https }
    http: { methods: [GET, POST], paths: ["/v1/orders/**"] }
  - id: a-to-b
    tenant: t
    from: { workload: service-a }
    to: { workload: b, port: https }
    http: { methods: [GET], paths: ["/v1/**"] }
  - id: a-to-stripe
    tenant: t
    from: { workload: service-a }
    to: { external: api.stripe.com, port: 443, ca: stripe-ca, addresses: [10.64.99.80/32] }
    http: { methods: [POST], paths: ["/v1/charges"] }
  - id: partner-to-a
    tenant: t
    from: { external_ca: partner-ca, uri: "spiffe://partner/*" }
    to: { workload: service-a, port: https }
    http: { methods: [GET], paths: ["/v1/orders/**"] }
  - id: outside-to-a-raw
    tenant: t
    from: { cidr: 10.64.98.0/24 }
    to: { workload: service-a, port: raw }
  - id: x-to-db
    tenant: t
    from: { workload: x }
    to: { external: db.example.net, port: 5432, addresses: [10.64.99.90/32] }
  - id: x-pings-db
    tenant: t
    from: { workload: x }
    to: { cidr: 10.64.99.90/32, protocol: icmp }
    icmp: { types: [echo], rate_per_s: 5 }
"#;

/// What row 11 adds.
pub const RULE_X_TO_B: &str = r#"  - id: x-to-b
    tenant: t
    from: { workload: x }
    to: { workload: b, port: https }
    http: { methods: [GET], paths: ["/v1/**"] }
"#;

/// Two on one port, which is below 1024, and one on another.
const DEPENDENCIES_OF_X: &str = "    dependencies:
      - { host: service-a.t.nova, port: 443, guest_ip: 127.0.1.1 }
      - { host: b.t.nova, port: 443, guest_ip: 127.0.1.2 }
      - { host: db.example.net, port: 5432, guest_ip: 127.0.1.3 }
";

/// `placements.yaml`.
#[must_use]
pub fn placements(kind: GuestKind) -> String {
    let listen = match kind {
        GuestKind::Microvm => "vsock:any:16000",
        GuestKind::Process => "unix:/run/nova/link/guest_16000",
    };
    let mut text = String::from("endpoints:\n");
    for Workload { id, pod, ip } in WORKLOADS {
        text.push_str(&format!(
            "  - workload_id: {id}\n    tenant: t\n    pod_uid: {pod}\n    workload_ip: {ip}\n    state: ready\n    \
             backend: {{ hybrid: {{ file: v.sock, half_close: false }} }}\n    drain_timeout_ms: 15000\n    ports:\n      \
             - {{ name: https, port: 443, target_port: 8080, mode: mtls, protocol: http }}\n      \
             - {{ name: raw, port: 5432, target_port: 5432, mode: tcp, protocol: tcp }}\n    guest:\n      \
             memory_mib: 256\n      command: [/nova/nova-lab, agent, --listen, \"{listen}\", --name, {id}, \
             --app, \"http:8080\", --app, \"tcp-first:5432\"]\n"
        ));
        if id == X.id {
            text.push_str(DEPENDENCIES_OF_X);
        }
    }
    text
}

/// What differs between nodes.
pub struct NodeFiles<'a> {
    /// Folder of the supervisor's files.
    pub dir: &'a Path,
    /// Folder of the pods' sockets.
    pub guest_root: &'a Path,
    /// novalet's socket.
    pub control: &'a Path,
    /// Descriptor on which the CA comes.
    pub ca_fd: i32,
    /// User to become.
    pub run_as: Option<u32>,
}

/// `supervisor.toml`.
#[must_use]
pub fn supervisor(files: &NodeFiles<'_>) -> String {
    let NodeFiles { dir, guest_root, control, ca_fd, run_as } = files;
    let (dir, guest_root, control) = (dir.display(), guest_root.display(), control.display());
    let run_as = run_as.map(|uid| format!("uid = {uid}\ngid = {uid}\n")).unwrap_or_default();
    format!(
        "[node]\nid = \"node-1\"\nmode = \"dev\"\nworkers = 2\n{run_as}\n\
         [endpoints]\ncontrol = \"{control}\"\nnovalet_uid = 0\n\n\
         [policy]\nbundle = \"{dir}/bundle.tar.gz\"\nkeys = \"{dir}/keys.json\"\nstore = \"{dir}/store\"\n\n\
         [identity]\nsource = \"dev\"\nca_fd = {ca_fd}\nbundle_out = \"{dir}/dev-ca.pem\"\n\n\
         [guests]\nroot = \"{guest_root}\"\n\n\
         [routes]\nmode = \"managed\"\nsubnet = \"{SUBNET}\"\n\n\
         [resolver]\nservers = [\"{DNS}:53\"]\nbind = \"{MANAGEMENT}\"\n\n\
         [audit]\nfile = \"{dir}/audit.jsonl\"\n\n\
         [admin]\nsocket = \"{dir}/admin.sock\"\n"
    )
}

/// Writes a file that only its owner may read.
///
/// # Errors
/// When it cannot be written.
pub fn write_secret(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes()).with_context(|| path.display().to_string())
}

/// A file of JSON lines; a last line without its end is still being written and is left out.
///
/// # Errors
/// When it cannot be read.
pub fn json_lines(path: &Path) -> anyhow::Result<Vec<Value>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        text => text.with_context(|| path.display().to_string())?,
    };
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}
