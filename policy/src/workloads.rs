//! The table of workloads: `endpoints.yaml` of a node without novalet, `placements.yaml` of the reference novalet, and
//! the compiler's view of names, labels and ports. One parser for all three.

mod check;
mod endpoint;
mod health;
mod parts;

pub use health::is_plain_path;
pub use parts::MAX_CREDENTIALS;
pub(crate) use parts::labels as read_labels;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use nova_proto::ids::{BootToken, InvalidId, PodUid, PortName, SpiffeId, TenantId, WorkloadId};
use serde::{Deserialize, Serialize};

pub use crate::port::{Mode, Protocol};
use crate::report::Report;
use crate::yaml::{self, Position, Reader};

/// Trust domain of the dev identity source, used when a file names none.
pub const DEV_TRUST_DOMAIN: &str = "dev.invalid";
/// Most endpoints of a table.
pub const MAX_ENDPOINTS: usize = 20_000;

/// A validated table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Trust domain of the workloads' identities.
    pub trust_domain: String,
    /// Endpoints in the order of the file.
    pub endpoints: Vec<Endpoint>,
}

/// One pod of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The workload it runs: the subject of the policy.
    pub workload: WorkloadId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Labels for selectors.
    pub labels: BTreeMap<String, String>,
    /// Identity of the workload.
    pub spiffe_id: SpiffeId,
    /// The pod.
    pub pod_uid: PodUid,
    /// Grows with every restart of the pod, from 1.
    pub generation: u64,
    /// Its address.
    pub workload_ip: IpAddr,
    /// Its address of the other family, if it has one.
    pub other_ip: Option<IpAddr>,
    /// The node it runs on; absent: the node the file is for.
    pub node: Option<String>,
    /// How the guest is reached; absent when the node agent fills it in.
    pub backend: Option<Backend>,
    /// Ports it offers.
    pub ports: Vec<Port>,
    /// Where it is in its life.
    pub state: State,
    /// How long open connections may go on when it drains.
    pub drain_timeout_ms: u32,
    /// Freshness token; absent when the node agent makes one.
    pub boot_token: Option<BootToken>,
    /// Fixed dependencies.
    pub dependencies: Vec<Dependency>,
    /// Names of the credentials that the pod may use where a rule grants one.
    pub credentials: BTreeSet<String>,
    /// Limits; absent values take the supervisor's defaults.
    pub limits: Limits,
    /// Whether it shares the node's supervisor.
    pub dedicated: bool,
    /// What the reference node agent starts.
    pub guest: Option<Guest>,
    /// Where it stands in its file.
    pub at: Position,
}

impl Endpoint {
    /// `<workload>.<tenant>.nova`.
    #[must_use]
    pub fn dns_name(&self) -> String {
        format!("{}.{}.nova", self.workload, self.tenant)
    }

    /// Every name it may be called by, the full one first. Rules, targets and explanations all take names from here.
    #[must_use]
    pub fn names(&self) -> [String; 2] {
        [self.dns_name(), self.workload.to_string()]
    }

    /// A port by name.
    #[must_use]
    pub fn port(&self, name: &str) -> Option<&Port> {
        self.ports.iter().find(|port| port.name.as_str() == name)
    }
}

/// How the supervisor reaches a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// AF_VSOCK context id.
    VsockCid(u32),
    /// A Unix socket of the VMM under the pod's directory.
    Hybrid {
        /// File name.
        file: String,
        /// Whether the VMM carries half-close.
        half_close: bool,
        /// Uid the VMM must have.
        vmm_uid: Option<u32>,
        /// Gid the VMM must have.
        vmm_gid: Option<u32>,
    },
    /// A Unix socket of the carrier.
    Uds {
        /// File name.
        file: String,
    },
}

/// A port of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its name, which rules use.
    pub name: PortName,
    /// Number on the workload's address.
    pub port: u16,
    /// Where the app listens.
    pub target: PortTarget,
    /// How the supervisor terminates it.
    pub mode: Mode,
    /// What is spoken on it.
    pub protocol: Protocol,
    /// What it says of TLS.
    pub tls: PortTls,
    /// Whether the app gets a PROXY header in front of each connection's bytes.
    pub proxy_protocol_v2: bool,
    /// How its app is asked whether it is well; absent: by connecting to it.
    pub health: Option<Health>,
}

/// How an app is asked whether it is well; `None` takes the default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// Asked for with GET in HTTP/1.1; an answer of 2xx is good.
    pub http_path: Option<String>,
    /// Asked with `grpc.health.v1.Health/Check`.
    pub grpc: bool,
    /// Between checks.
    pub interval_ms: Option<u32>,
    /// Until a check counts as failed.
    pub timeout_ms: Option<u32>,
    /// Failed checks in a row until the app counts as unhealthy.
    pub unhealthy_after: Option<u32>,
}

/// What a port that terminates TLS says of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortTls {
    /// TLS 1.2 beside 1.3.
    pub tls12: bool,
    /// Name of a certificate in the supervisor's configuration; absent: the workload's SVID. Only of mode `tls`.
    pub certificate: Option<String>,
    /// The app does not see the bearer token. Only of mode `tls`.
    pub strip_token: bool,
}

/// Where the app listens inside the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortTarget {
    /// A TCP port on loopback.
    Tcp(u16),
    /// A Unix socket file.
    Unix(String),
}

/// Where an endpoint is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// May call out, cannot be called.
    Pending,
    /// Serves.
    Ready,
    /// Finishes what is open.
    Draining,
}

/// A destination with a fixed address inside the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// Its name.
    pub host: crate::host::Host,
    /// Its port.
    pub port: u16,
    /// `127.0.1.n` in the guest.
    pub guest_ip: IpAddr,
}

/// Limits of one endpoint; `None` takes the default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once.
    pub max_connections: Option<u32>,
    /// TLS handshakes at once.
    pub max_handshakes: Option<u32>,
    /// Bytes per second.
    pub bytes_per_second: Option<u64>,
    /// New connections per second.
    pub connections_per_second: Option<u32>,
    /// Names asked of DNS servers a second.
    pub lookups_per_second: Option<u32>,
    /// Connections to one destination at once.
    pub max_destination_connections: Option<u32>,
    /// Longest head of a request.
    pub max_header_bytes: Option<u32>,
    /// For a head to come whole.
    pub header_timeout_ms: Option<u32>,
    /// Without a request on an HTTP connection.
    pub idle_timeout_ms: Option<u32>,
    /// Without a byte on a stream of bytes.
    pub stream_idle_timeout_ms: Option<u32>,
    /// In which the body of a request must go on.
    pub body_timeout_ms: Option<u32>,
    /// In which the body of an answer must go on.
    pub answer_timeout_ms: Option<u32>,
    /// Age at which connections are decided again.
    pub max_lifetime_ms: Option<u32>,
    /// They are closed then.
    pub close_at_max_lifetime: bool,
}

/// What the reference node agent starts for a placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// Image name; absent: the lab's own.
    pub image: Option<String>,
    /// Command and arguments.
    pub command: Vec<String>,
    /// Memory of the microVM.
    pub memory_mib: u32,
    /// Extra environment of the app.
    pub env: BTreeMap<String, String>,
}

/// Parses a table.
///
/// # Errors
/// Every mistake of the file with its place and remedy.
pub fn parse(file: &str, text: &str) -> Result<Table, Report> {
    let (table, report) = parse_all(file, text);
    report.into_result().map(|()| table)
}

/// The identity of a workload in a trust domain.
///
/// # Errors
/// When the trust domain is not one.
pub fn spiffe_id(trust_domain: &str, tenant: &TenantId, workload: &WorkloadId) -> Result<SpiffeId, InvalidId> {
    SpiffeId::new(format!("spiffe://{trust_domain}/t/{tenant}/w/{workload}"))
}

/// Parses what can be parsed, and says what is wrong with the rest.
pub(crate) fn parse_all(file: &str, text: &str) -> (Table, Report) {
    let mut report = Report::default();
    let mut table = Table { trust_domain: DEV_TRUST_DOMAIN.to_owned(), endpoints: Vec::new() };
    if let Some(root) = yaml::parse(file, text, &mut report) {
        let mut reader = Reader { file, subject: String::new(), report: &mut report };
        read_root(&mut reader, &root, &mut table);
        check::table(&mut reader, &table);
    }
    report.sort();
    (table, report)
}

fn read_root(reader: &mut Reader<'_>, root: &yaml::Node, table: &mut Table) {
    let Some(map) = reader.map(root, "the file", &["trust_domain", "endpoints"]) else { return };
    if let Some(node) = map.get("trust_domain") {
        let sample = |text: &str| SpiffeId::new(format!("spiffe://{text}/x")).map(|id| id.trust_domain().to_owned());
        if let Some(domain) = reader.parsed(node, "trust_domain", "write a name like prod.example", sample) {
            table.trust_domain = domain;
        }
    }
    let Some(list) = reader.need(&map, "endpoints", "[]") else { return };
    for node in reader.list(list, "endpoints", MAX_ENDPOINTS) {
        reader.subject = String::new();
        if let Some(endpoint) = endpoint::read(reader, node, &table.trust_domain) {
            table.endpoints.push(endpoint);
        }
    }
    reader.subject = String::new();
}

/// Whether an address may be given to a workload.
pub(crate) fn is_usable(address: IpAddr) -> bool {
    let link_local: [IpNet; 2] = [
        IpNet::new_assert([169, 254, 0, 0].into(), 16),
        IpNet::new_assert(IpAddr::V6(std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
    ];
    let broadcast = address == IpAddr::from([255, 255, 255, 255]);
    !(address.is_unspecified()
        || address.is_multicast()
        || broadcast
        || link_local.iter().any(|net| net.contains(&address)))
}
