//! Destination names: one spelling for policy, log and dial.
//!
//! A host is a DNS name (lower case, no trailing dot) or an IP address. Letters, digits, `-` and `_` are allowed in
//! labels; `_` because names in use have it (`_dmarc`, container names), and no resolver or dialler of ours gives it a
//! meaning. A name whose last label looks like a number must be a full dotted quad: `127.1`, `0x7f.1` and `2130706433`
//! are addresses for some libraries and names for others, so they are refused.

mod authority;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

pub use authority::{Authority, parse_port};
use serde::{Serialize, Serializer};
use thiserror::Error;

/// Longest DNS name in text form.
pub const MAX_HOST: usize = 253;

/// Names that reach the machine itself or a cloud's metadata service. No rule may name them.
const SPECIAL_NAMES: [&str; 8] = [
    "localhost",
    "ip6-localhost",
    "ip6-loopback",
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "instance-data",
    "instance-data.ec2.internal",
];

/// Why a text is not a host or an authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HostError {
    /// Nothing there.
    #[error("the host is empty")]
    Empty,
    /// Longer than [`MAX_HOST`], or a label longer than 63.
    #[error("the host or one of its labels is too long")]
    TooLong,
    /// A character that no host has: also `@`, `%`, brackets round a name, non-ASCII.
    #[error("the host has a character that is not allowed in a host")]
    ForbiddenCharacter,
    /// Two dots in a row, or a dot at the start.
    #[error("the host has an empty label")]
    EmptyLabel,
    /// A label starts or ends with `-`.
    #[error("a label of the host starts or ends with '-'")]
    Hyphen,
    /// Looks like a number but is not a full dotted quad in decimal.
    #[error("the host looks like a number: write an address as four decimal numbers")]
    Number,
    /// Not a valid IPv6 address, or with a zone.
    #[error("the host is not a valid IPv6 address (zones are not allowed)")]
    Ipv6,
    /// An IPv6 address without brackets, or brackets round something else.
    #[error("brackets belong round an IPv6 address and nothing else")]
    Brackets,
    /// Not a decimal number from 1 to 65535 without sign or leading zero.
    #[error("the port is not a number from 1 to 65535")]
    Port,
}

impl HostError {
    /// The code for logs and metrics.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Empty => "host_empty",
            Self::TooLong => "host_too_long",
            Self::ForbiddenCharacter => "host_forbidden_character",
            Self::EmptyLabel => "host_empty_label",
            Self::Hyphen => "host_hyphen",
            Self::Number => "host_number",
            Self::Ipv6 => "host_ipv6",
            Self::Brackets => "host_brackets",
            Self::Port => "bad_port",
        }
    }
}

/// A DNS name or an IP address in its one spelling.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host {
    text: Arc<str>,
    address: Option<IpAddr>,
}

impl Host {
    /// Parses a host without port. IPv6 addresses have no brackets here.
    ///
    /// # Errors
    /// When the text is neither a DNS name nor an address in the usual notation.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if text.is_empty() {
            return Err(HostError::Empty);
        }
        if text.contains(':') {
            let address: Ipv6Addr = text.parse().map_err(|_| HostError::Ipv6)?;
            return Ok(Self::from(IpAddr::V6(address)));
        }
        if text.contains(['[', ']']) {
            return Err(HostError::Brackets);
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        check_name(name)?;
        let name = name.to_ascii_lowercase();
        if ends_in_number(&name) {
            let address: Ipv4Addr = text.parse().map_err(|_| HostError::Number)?;
            return Ok(Self::from(IpAddr::V4(address)));
        }
        Ok(Self { text: name.into(), address: None })
    }

    /// The host in its one spelling, IPv6 without brackets.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn text(&self) -> &Arc<str> {
        &self.text
    }

    /// The same, shared.
    #[must_use]
    pub fn shared(&self) -> Arc<str> {
        Arc::clone(&self.text)
    }

    /// The address, if this is an address literal.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Whether this names the machine itself or a metadata service.
    #[must_use]
    pub fn is_special_name(&self) -> bool {
        SPECIAL_NAMES.contains(&&*self.text) || self.text.ends_with(".localhost")
    }

    /// Whether a wildcard for this domain would cover such a name.
    #[must_use]
    pub fn has_special_name_below(&self) -> bool {
        SPECIAL_NAMES.iter().any(|name| name.strip_suffix(&*self.text).is_some_and(|rest| rest.ends_with('.')))
    }
}

impl From<IpAddr> for Host {
    /// IPv4-mapped IPv6 addresses become the IPv4 address they mean.
    fn from(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self { text: address.to_string().into(), address: Some(address) }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Host {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl std::str::FromStr for Host {
    type Err = HostError;
    fn from_str(text: &str) -> Result<Self, HostError> {
        Self::parse(text)
    }
}

fn check_name(name: &str) -> Result<(), HostError> {
    if name.len() > MAX_HOST {
        return Err(HostError::TooLong);
    }
    for label in name.split('.') {
        if label.is_empty() {
            return Err(HostError::EmptyLabel);
        }
        if label.len() > 63 {
            return Err(HostError::TooLong);
        }
        if !label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
            return Err(HostError::ForbiddenCharacter);
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Err(HostError::Hyphen);
        }
    }
    Ok(())
}

/// The WHATWG rule: a last label of digits, or of `0x` and hex digits, makes the whole name an IPv4 address.
fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    last.bytes().all(|byte| byte.is_ascii_digit())
        || last.strip_prefix("0x").is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // covers: A7a
    #[test]
    fn hosts_with_two_readings_are_refused() {
        for bad in [
            "",
            ".",
            "..",
            ".a",
            "a..b",
            "a..",
            "-a",
            "a-",
            "a.-b",
            "127.1",
            "2130706433",
            "0x7f.0.0.1",
            "0x7f000001",
            "0177.0.0.1",
            "127.0.0.01",
            "1.2.3.4.5",
            "1.2.3.256",
            "127.0.0.1.",
            "a@b",
            "u:p@h",
            "[example.com]",
            "[::1]",
            "::1%eth0",
            "fe80::1%25eth0",
            "fe80:::1",
            "a b",
            "a\tb",
            "a\0",
            "a\\b",
            "a#b",
            "a?b",
            "a/b",
            "a%2e",
            "\u{ff0e}",
            "ex\u{e4}mple.com",
            "\u{ff11}27.0.0.1",
            "a.0x1",
            "0x",
            "1.",
            "a,b",
            "a:80",
        ] {
            assert!(Host::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(Host::parse(&"a".repeat(64)), Err(HostError::TooLong));
        assert_eq!(Host::parse(&["abcdefg"; 32].join(".")), Err(HostError::TooLong));
    }

    #[test]
    fn one_spelling_is_left() {
        for (text, want) in [
            ("API.Stripe.Com.", "api.stripe.com"),
            ("service-a.t.nova", "service-a.t.nova"),
            ("_srv.example", "_srv.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("10.0.0.1", "10.0.0.1"),
            ("FD00:0:0::1", "fd00::1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("::ffff:a00:1", "10.0.0.1"),
            ("x", "x"),
            ("0x7f.example", "0x7f.example"),
        ] {
            assert_eq!(Host::parse(text).map(|host| host.to_string()), Ok(want.to_owned()));
        }
        assert!(Host::parse("LOCALHOST.").is_ok_and(|host| host.is_special_name()));
        assert!(Host::parse("a.localhost").is_ok_and(|host| host.is_special_name()));
        assert!(Host::parse("metadata.google.internal").is_ok_and(|host| host.is_special_name()));
    }

    proptest! {
        #[test]
        fn parsing_is_idempotent(text in "[a-zA-Z0-9._:%@\\[\\]-]{0,40}") {
            if let Ok(host) = Host::parse(&text) {
                prop_assert_eq!(Host::parse(host.as_str()), Ok(host));
            }
        }
    }
}
