//! What an endpoint may use, and how long its peers may take. Zero in a protocol message means the default.

use std::time::Duration;

/// Limits of one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointLimits {
    /// Connections open at once, both directions together.
    pub max_connections: usize,
    /// Of them, those to one destination outside.
    pub destination_connections: usize,
    /// TLS handshakes in flight.
    pub max_handshakes: usize,
    /// Payload each way, bytes a second; 0: as fast as it goes.
    pub bytes_per_second: u64,
    /// New connections a second; 0: as they come.
    pub connections_per_second: u32,
    /// Names asked of DNS servers a second.
    pub lookups_per_second: u32,
    /// Longest head of a request in bytes.
    pub header_bytes: usize,
    /// From the first byte of a head to its last.
    pub header_time: Duration,
    /// How long an HTTP connection may be without a request.
    pub idle_time: Duration,
    /// How long a stream of bytes may be without a byte either way.
    pub stream_idle: Duration,
    /// A request's body must bring at least one byte a second, on an average over this time.
    pub body_time: Duration,
    /// Longest pause within the body of an answer.
    pub answer_time: Duration,
    /// After this long a connection is decided again, and again; `None`: only when the policy changes.
    pub max_lifetime: Option<Duration>,
    /// At `max_lifetime` it is closed instead.
    pub close_at_max_lifetime: bool,
}

impl Default for EndpointLimits {
    fn default() -> Self {
        Self {
            // A hybrid muxer carries at most 1,023; the rest is left to health checks and the presence connection.
            max_connections: 900,
            destination_connections: 900,
            max_handshakes: 64,
            bytes_per_second: 0,
            connections_per_second: 0,
            // What an app that does not remember names asks at its start; a tunnel through names gets some kilobytes a second.
            lookups_per_second: 50,
            header_bytes: 64 * 1024,
            header_time: Duration::from_secs(10),
            // Longer than the 60 s after which most clients close theirs, so that they do it and no request meets the end.
            idle_time: Duration::from_secs(75),
            // As Envoy's: databases keep silent connections for long.
            stream_idle: Duration::from_hours(1),
            body_time: Duration::from_mins(1),
            // As Envoy's; streams of events send something more often.
            answer_time: Duration::from_mins(5),
            max_lifetime: None,
            close_at_max_lifetime: false,
        }
    }
}
