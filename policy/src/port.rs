//! What is said of a port, by workloads and by compiled rules alike.

use serde::{Deserialize, Serialize};

/// How the supervisor terminates a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// TLS with a client certificate.
    Mtls,
    /// TLS with a server certificate only.
    Tls,
    /// No TLS.
    Tcp,
}

/// What is spoken on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Bytes nobody looks at; `RAW` in the control protocol.
    Tcp,
    /// HTTP, decided per request.
    Http,
    /// gRPC, decided per call.
    Grpc,
}
