//! Ports and handshake of the guest channel.
//!
//! Guest ports are configuration (settled point K39); these are the defaults. The supervisor never dials a guest port
//! below [`MIN_GUEST_PORT`]: 1024 to 1027 drive kata-agent.

/// Guest dials the host here, instance slot A.
pub const HOST_PORT_SLOT_A: u32 = 15001;
/// Guest dials the host here, instance slot B.
pub const HOST_PORT_SLOT_B: u32 = 15002;
/// Host dials the relay in the guest here.
pub const GUEST_PORT: u32 = 15080;
/// Lowest guest port that the supervisor may dial.
pub const MIN_GUEST_PORT: u32 = 15000;
/// Longest line of the hybrid-vsock handshake, in bytes, with its line feed (Cloud Hypervisor and Firecracker use 32).
pub const HYBRID_LINE_MAX: usize = 32;

/// The line that asks a hybrid-vsock muxer for a port of its guest.
#[must_use]
pub fn hybrid_connect(port: u32) -> String {
    format!("CONNECT {port}\n")
}

/// The port of a hybrid-vsock request line without its line feed. Muxers differ in letter case, so case is ignored.
#[must_use]
pub fn parse_hybrid_connect(line: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(line).ok()?;
    let (word, port) = text.split_once(' ')?;
    if !word.eq_ignore_ascii_case("connect") || !port.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    port.parse().ok()
}

/// Whether a muxer's answer line (without its line feed) accepts the connection: `OK <number>`.
#[must_use]
pub fn parse_hybrid_ok(line: &[u8]) -> bool {
    line.strip_prefix(b"OK ")
        .is_some_and(|rest| !rest.is_empty() && rest.len() <= 10 && rest.iter().all(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_lines_round_trip_and_refuse_the_rest() {
        let line = hybrid_connect(15080);
        assert_eq!(parse_hybrid_connect(line.trim_end().as_bytes()), Some(15080));
        assert_eq!(parse_hybrid_connect(b"connect 1"), Some(1));
        for bad in
            [&b"CONNECT"[..], b"CONNECT ", b"CONNECT -1", b"CONNECT +1", b"CONNECT 1 2", b"OK 1", b"CONNECT 4294967296"]
        {
            assert_eq!(parse_hybrid_connect(bad), None, "{:?}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn ok_lines_carry_a_number() {
        assert!(parse_hybrid_ok(b"OK 1073741824"));
        for bad in [&b"OK"[..], b"OK ", b"OK x", b"ok 1", b"OK 12345678901"] {
            assert!(!parse_hybrid_ok(bad));
        }
    }
}
