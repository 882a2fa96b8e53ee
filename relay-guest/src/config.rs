//! Values that both configurations hold: the guest's (`nova-init` reads it) and the relay's (a part of it, handed over on
//! a pipe). Each lists all its mistakes at once.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use nova_proto::hello::TARGET_MAX;
use serde::{Deserialize, Serialize};

/// How the guest reaches its host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Link {
    /// A microVM: AF_VSOCK.
    Vsock {
        /// The only peer that may dial the relay: 2, the host.
        host_cid: u32,
    },
    /// A process guest: Unix sockets `host_<port>` and `guest_<port>` in one folder.
    Unix {
        /// The folder.
        dir: PathBuf,
    },
}

/// What the supervisor may reach in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ingress {
    /// A TCP port of the app on 127.0.0.1.
    Tcp(u16),
    /// A Unix socket of the app: a file name in the socket folder.
    Socket(String),
}

/// A destination with an address of its own inside the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dependency {
    /// The name that the app uses and the policy decides on.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Where the relay listens for it, in 127.0.0.0/8.
    pub guest_ip: Ipv4Addr,
    /// File name of its egress socket; `<host>_<port>.sock` if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
}

impl Dependency {
    /// The hello's target.
    #[must_use]
    pub fn target(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Where the app reaches it.
    #[must_use]
    pub fn listen_on(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.guest_ip, self.port)
    }

    /// The file name of its egress socket.
    #[must_use]
    pub fn socket_name(&self) -> String {
        self.socket.clone().unwrap_or_else(|| format!("{}_{}.sock", self.host, self.port))
    }
}

/// A Unix socket that the app may connect to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressSocket {
    /// Its file name in the folder of egress sockets.
    pub name: String,
    /// The dependency it leads to, as in a hello; none: it is the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependency: Option<String>,
}

/// All mistakes of a configuration, one a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the configuration is not valid:\n  {}", .0.join("\n  "))]
pub struct ConfigError(pub Vec<String>);

/// Collects mistakes.
#[derive(Debug, Default)]
pub(crate) struct Mistakes(Vec<String>);

impl Mistakes {
    pub(crate) fn unless(&mut self, fine: bool, mistake: impl FnOnce() -> String) {
        if !fine {
            self.0.push(mistake());
        }
    }

    pub(crate) fn finish(self) -> Result<(), ConfigError> {
        if self.0.is_empty() { Ok(()) } else { Err(ConfigError(self.0)) }
    }
}

/// Letters, digits, '.', '-' and '_': nothing that could add a line to a hosts file or a field to a target.
pub(crate) fn is_host_name(text: &str) -> bool {
    (1..=253).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}

/// One path segment that a hello can carry.
pub(crate) fn is_socket_name(text: &str) -> bool {
    (1..=TARGET_MAX).contains(&text.len())
        && !matches!(text, "." | "..")
        && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/')
}

/// The boot token as 32 hex digits.
pub(crate) mod token_hex {
    use nova_proto::ids::BootToken;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(token: &BootToken, serializer: S) -> Result<S::Ok, S::Error> {
        let hex: String = token.0.iter().map(|byte| format!("{byte:02x}")).collect();
        serializer.serialize_str(&hex)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BootToken, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).ok_or_else(|| D::Error::custom("boot_token must be 32 hex digits"))
    }

    /// The text never shows in an error: it is a secret.
    pub(crate) fn parse(text: &str) -> Option<BootToken> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut token = [0; 16];
        for (byte, pair) in token.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(BootToken(token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_32_hex_digits_and_nothing_else() {
        for bad in ["", "00", "+0000000000000000000000000000000", "0g000000000000000000000000000000", &"0".repeat(33)] {
            assert_eq!(token_hex::parse(bad), None, "{bad}");
        }
        let token = token_hex::parse("000102030405060708090A0b0c0d0e0f").expect("valid");
        assert_eq!(token.0, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    }

    #[test]
    fn names_cannot_add_lines_or_segments() {
        for bad in ["", "a b", "a\n", "a:1", "a/b", "é"] {
            assert!(!is_host_name(bad), "{bad:?}");
        }
        for bad in ["", ".", "..", "a/b", "/a", "a b", "a\n", "é"] {
            assert!(!is_socket_name(bad), "{bad:?}");
        }
        assert!(is_host_name("db.t.nova") && is_socket_name("app.sock"));
    }
}
