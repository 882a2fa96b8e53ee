//! Limits of endpoints. Zero, which protobuf cannot tell from absent, is the default everywhere.

use std::ops::RangeInclusive;
use std::time::Duration;

use nova_proto::control as proto;

use super::Mistakes;
use crate::control::why::Why;
use crate::state::endpoint::{Backend, EndpointLimits};

/// AF_VSOCK has no limit of its own; this one bounds what one guest may take of the node.
pub(super) const VSOCK_MAX_CONNECTIONS: usize = 4096;
/// The parser behind the gate stops at 64 KiB, and below 1 KiB no browser gets through.
const HEADER_BYTES: RangeInclusive<u32> = 1024..=64 * 1024;
/// A day: what takes longer is a mistake of the unit.
const MAX_TIMEOUT_MS: u32 = 86_400_000;

pub(super) fn convert(
    limits: Option<proto::Limits>,
    backend: Option<&Backend>,
    mistakes: &mut Mistakes,
) -> EndpointLimits {
    let proto::Limits {
        max_connections,
        max_handshakes,
        bytes_per_second,
        connections_per_second,
        max_header_bytes,
        header_timeout_ms,
        idle_timeout_ms,
        stream_idle_timeout_ms,
        body_timeout_ms,
        answer_timeout_ms,
        max_lifetime_ms,
        close_at_max_lifetime,
        lookups_per_second,
        max_destination_connections,
    } = limits.unwrap_or_default();
    let default = match backend {
        Some(Backend::Vsock { .. }) => {
            EndpointLimits { max_connections: VSOCK_MAX_CONNECTIONS, ..EndpointLimits::default() }
        }
        Some(Backend::Hybrid { .. }) | None => EndpointLimits::default(),
    };
    if max_header_bytes != 0 && !HEADER_BYTES.contains(&max_header_bytes) {
        mistakes.add(Why::BadLimit, format!("max_header_bytes {max_header_bytes} is not 1024 to 65536"));
    }
    if close_at_max_lifetime && max_lifetime_ms == 0 {
        mistakes.add(Why::BadLimit, "close_at_max_lifetime has no meaning without max_lifetime_ms");
    }
    let mut time = |name: &str, millis: u32, default: Duration| match millis {
        0 => default,
        1..=MAX_TIMEOUT_MS => Duration::from_millis(millis.into()),
        _ => {
            mistakes.add(Why::BadLimit, format!("{name} {millis} is more than a day"));
            default
        }
    };
    let max_connections = or(max_connections, default.max_connections);
    EndpointLimits {
        max_connections,
        destination_connections: or(max_destination_connections, max_connections),
        max_handshakes: or(max_handshakes, default.max_handshakes),
        bytes_per_second,
        connections_per_second,
        lookups_per_second: if lookups_per_second == 0 { default.lookups_per_second } else { lookups_per_second },
        header_bytes: or(max_header_bytes, default.header_bytes),
        header_time: time("header_timeout_ms", header_timeout_ms, default.header_time),
        idle_time: time("idle_timeout_ms", idle_timeout_ms, default.idle_time),
        stream_idle: time("stream_idle_timeout_ms", stream_idle_timeout_ms, default.stream_idle),
        body_time: time("body_timeout_ms", body_timeout_ms, default.body_time),
        answer_time: time("answer_timeout_ms", answer_timeout_ms, default.answer_time),
        max_lifetime: (max_lifetime_ms > 0).then(|| Duration::from_millis(max_lifetime_ms.into())),
        close_at_max_lifetime,
    }
}

fn or(value: u32, default: usize) -> usize {
    usize::try_from(value).ok().filter(|value| *value > 0).unwrap_or(default)
}
