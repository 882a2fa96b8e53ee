//! Where a granted rule leads.

use ipnet::IpNet;
use nova_proto::ids::SpiffeId;
use serde::{Deserialize, Serialize};

use super::is_false;
use crate::host::Host;
use crate::port::{Mode, Protocol};

/// What a granted egress rule leads to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum EgressTarget {
    /// Another workload: mTLS with exactly this SPIFFE ID on the other side.
    Workload {
        /// Workload id.
        workload: String,
        /// Its full name, `<workload>.<tenant>.nova`.
        host: String,
        /// Other names it may be called by.
        aliases: Vec<String>,
        /// The identity the callee must prove.
        spiffe_id: SpiffeId,
        /// Port number on the workload's IP.
        port: u16,
        /// Port name.
        port_name: String,
        /// How the callee's supervisor terminates the port.
        mode: Mode,
        /// What is spoken on it.
        protocol: Protocol,
        /// The app may use TLS of its own, which the supervisor then terminates.
        #[serde(default, skip_serializing_if = "is_false")]
        intercept: bool,
    },
    /// A host outside.
    External {
        /// The exact name, or `*.` and a suffix.
        host: String,
        /// Port.
        port: u16,
        /// What the supervisor does about TLS.
        tls: UpstreamTls,
        /// Name of the external CA that must have signed the server; web roots otherwise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ca: Option<String>,
        /// Private ranges the name may resolve to.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        addresses: Vec<IpNet>,
        /// The app may use TLS of its own, which the supervisor then terminates. `tls` is what the host gets.
        #[serde(default, skip_serializing_if = "is_false")]
        intercept: bool,
        /// gRPC is spoken, so the host must speak HTTP/2.
        #[serde(default, skip_serializing_if = "is_false")]
        grpc: bool,
        /// The parent proxy that everything must go through.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        via: Option<String>,
    },
    /// An address literal out of a range.
    Cidr {
        /// The range.
        cidr: IpNet,
        /// Port.
        port: u16,
    },
}

impl EgressTarget {
    /// Whether this target is the one for `host` (canonical) and `port`.
    #[must_use]
    pub fn covers(&self, host: &Host, port: u16) -> bool {
        match self {
            Self::Workload { host: name, aliases, port: want, .. } => {
                port == *want && (host.as_str() == name || aliases.iter().any(|alias| alias == host.as_str()))
            }
            Self::External { host: name, port: want, .. } => {
                port == *want
                    && match name.strip_prefix('*') {
                        Some(suffix) => host.as_str().ends_with(suffix),
                        None => host.as_str() == name,
                    }
            }
            Self::Cidr { cidr, port: want } => {
                port == *want && host.address().is_some_and(|address| cidr.contains(&address))
            }
        }
    }
}

/// What the supervisor does about TLS towards an external host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamTls {
    /// The app speaks plaintext to the supervisor, which speaks TLS to the host.
    Originate,
    /// Bytes are copied as they are; TLS, if any, is the app's own.
    Passthrough,
    /// Plaintext HTTP on both sides.
    None,
}
