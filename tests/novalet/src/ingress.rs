//! Targets in the guest, as the relay is told at boot.

use nova_proto::control;
use serde::Serialize;

/// A target in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ingress {
    /// A port on the guest's loopback.
    Tcp(u32),
    /// A socket file of the app.
    Socket(String),
}

impl Ingress {
    /// The target of an exposed port.
    #[must_use]
    pub fn of(port: &control::Port) -> Self {
        if port.target_unix.is_empty() { Self::Tcp(port.target_port) } else { Self::Socket(port.target_unix.clone()) }
    }
}
