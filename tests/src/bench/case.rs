//! What callers do.

use std::fmt;

use serde::Serialize;

/// One kind of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Case {
    /// One request after the other on 64 connections
    KeepAlive,
    /// A handshake for every request
    NewConnection,
    /// Answers of 1 MiB on 16 connections
    Megabyte,
}

impl Case {
    pub(super) const ALL: [Self; 3] = [Self::KeepAlive, Self::NewConnection, Self::Megabyte];

    pub(super) fn connections(self) -> usize {
        if self == Self::Megabyte { 16 } else { 64 }
    }

    pub(super) fn request(self, host: &str) -> String {
        let (path, close) = match self {
            Self::KeepAlive => ("/v1/orders/42", ""),
            Self::NewConnection => ("/v1/orders/42", "connection: close\r\n"),
            Self::Megabyte => ("/large", ""),
        };
        format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: nova-lab\r\naccept: */*\r\n{close}\r\n")
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KeepAlive => "keep-alive",
            Self::NewConnection => "new connection per request",
            Self::Megabyte => "1 MiB answers",
        })
    }
}
