//! What novalet, or `endpoints.yaml`, says of an endpoint.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use nova_policy::workloads::PortTls;
use nova_proto::ids::{BootToken, PodUid, PortName, SpiffeId, TenantId, WorkloadId};

use crate::state::limits::EndpointLimits;

/// What novalet (or `endpoints.yaml`) says. Validated, immutable: an update replaces the whole value.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointSpec {
    /// Subject of the policy.
    pub workload: WorkloadId,
    /// Tenant, from the SPIFFE ID.
    pub tenant: TenantId,
    /// Identity that the supervisor presents for the workload.
    pub spiffe_id: SpiffeId,
    /// Key of the endpoint.
    pub pod_uid: PodUid,
    /// Grows with every restart of the pod.
    pub generation: u64,
    /// Address that the supervisor owns for the workload.
    pub ip: IpAddr,
    /// The same of the other family, if it has one.
    pub other_ip: Option<IpAddr>,
    /// How the guest is reached and recognised.
    pub backend: Backend,
    /// Exposed ports.
    pub ports: Vec<PortSpec>,
    /// Fixed dependencies: what a `dependency` hello may name.
    pub dependencies: Vec<DependencySpec>,
    /// Names of the credentials that the pod may use where a rule grants one.
    pub credentials: BTreeSet<String>,
    /// Freshness of the guest.
    pub boot_token: BootToken,
    /// How long open connections may finish at drain.
    pub drain_timeout: Duration,
    /// Caps of this endpoint.
    pub limits: EndpointLimits,
}

impl EndpointSpec {
    /// All of its addresses, at most one of a family.
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> {
        std::iter::once(self.ip).chain(self.other_ip)
    }
}

/// How a guest is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// AF_VSOCK: the guest is its CID.
    Vsock {
        /// Context id, 3 or more.
        cid: u32,
    },
    /// A Unix socket per VM: the guest is the directory of its sockets.
    Hybrid {
        /// One path segment under `<guest root>/<pod uid>/`.
        file: String,
        /// SO_PEERCRED uid that connections must come from.
        vmm_uid: u32,
        /// Whether the muxer carries half-close; if not, connections are framed.
        half_close: bool,
    },
}

/// One exposed port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSpec {
    /// Name in the policy.
    pub name: PortName,
    /// Port on the workload IP.
    pub port: u16,
    /// What the relay connects to.
    pub target: Target,
    /// How connections are terminated.
    pub mode: PortMode,
    /// What is spoken inside.
    pub protocol: Protocol,
    /// What it says of TLS.
    pub tls: PortTls,
    /// How the app is asked whether it is well.
    pub health: HealthCheck,
    /// Whether the app is told of each caller in front of its first byte.
    pub proxy_v2: bool,
}

/// How an app is asked whether it is well.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum HealthCheck {
    /// It accepts a connection.
    #[default]
    Connect,
    /// It answers a GET of this path with 2xx.
    Http(String),
    /// Its `grpc.health.v1.Health` says SERVING of the whole server.
    Grpc,
}

/// Where the relay connects in the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// 127.0.0.1 port.
    Tcp(u16),
    /// Socket file, one path segment.
    Socket(String),
}

/// How a port terminates connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortMode {
    /// Client certificate required.
    Mtls,
    /// Server certificate only; decided by source address and token.
    Tls,
    /// Byte copy, decided by source address.
    Tcp,
}

/// What is spoken on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Bytes.
    Raw,
    /// HTTP, decided per request; the app speaks HTTP/1.1.
    Http,
    /// HTTP, decided per request; the app speaks HTTP/2 from its first byte on.
    Grpc,
}

/// A fixed dependency of the endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DependencySpec {
    /// Name the policy knows.
    pub host: String,
    /// Port.
    pub port: u16,
}
