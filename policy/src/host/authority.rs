//! `host:port`, as requests name their destination.

use std::fmt;
use std::net::IpAddr;

use super::{Host, HostError};

/// `host[:port]`, as in a request target, a Host header or CONNECT.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Authority {
    host: Host,
    port: Option<u16>,
}

impl Authority {
    /// Parses `host`, `host:port`, `[ipv6]` or `[ipv6]:port`.
    ///
    /// # Errors
    /// When the host or the port is not in its strict form.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (inside, after) = rest.split_once(']').ok_or(HostError::Brackets)?;
            if !inside.contains(':') {
                return Err(HostError::Brackets);
            }
            let port = match after {
                "" => None,
                _ => Some(after.strip_prefix(':').ok_or(HostError::Brackets)?),
            };
            (inside, port)
        } else {
            match text.split_once(':') {
                Some((_, port)) if port.contains(':') => return Err(HostError::Brackets),
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            }
        };
        Ok(Self { host: Host::parse(host)?, port: port.map(parse_port).transpose()? })
    }

    /// The host.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The port, when one was written.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// The port, or the one its scheme implies.
    #[must_use]
    pub fn port_or(&self, default: u16) -> u16 {
        self.port.unwrap_or(default)
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.address() {
            Some(IpAddr::V6(address)) => write!(f, "[{address}]")?,
            _ => write!(f, "{}", self.host)?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// Parses a port: decimal, 1 to 65535, no sign and no leading zero.
///
/// # Errors
/// [`HostError::Port`] for everything else.
pub fn parse_port(text: &str) -> Result<u16, HostError> {
    let plain = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if !plain || text.starts_with('0') {
        return Err(HostError::Port);
    }
    text.parse().map_err(|_| HostError::Port)
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: A7a
    #[test]
    fn authorities_have_strict_ports_and_brackets() {
        for bad in [
            "a:",
            "a:0",
            "a:65536",
            "a:+443",
            "a:0443",
            "a: 443",
            "a:443 ",
            "a:4x",
            "a:b:c",
            "::1",
            "::1:443",
            "[::1",
            "[::1]443",
            "[::1]:",
            "[1.2.3.4]",
            "[example.com]:443",
            "[fe80::1%25eth0]",
            "u@a:1",
            ":443",
            "",
            "a:99999",
            "a:٤٤٣",
        ] {
            assert!(Authority::parse(bad).is_err(), "{bad:?}");
        }
        let parsed = Authority::parse("[FD00::1]:443").expect("valid");
        assert_eq!((parsed.to_string().as_str(), parsed.port()), ("[fd00::1]:443", Some(443)));
        let parsed = Authority::parse("Example.COM.:8080").expect("valid");
        assert_eq!((parsed.host().as_str(), parsed.port_or(80)), ("example.com", 8080));
        assert_eq!(Authority::parse("example.com").map(|parsed| parsed.port_or(80)), Ok(80));
    }
}
