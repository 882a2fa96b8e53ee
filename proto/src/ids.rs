//! Names with a type. A constructor validates; a value of the type is valid for ever.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a text is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value:?} is not valid: {rule}")]
pub struct InvalidId {
    /// What kind of name was expected.
    pub what: &'static str,
    /// The text that was refused, shortened to 128 characters.
    pub value: String,
    /// The rule it breaks.
    pub rule: &'static str,
}

fn refuse(what: &'static str, value: &str, rule: &'static str) -> InvalidId {
    InvalidId { what, value: value.chars().take(128).collect(), rule }
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $check:ident, $rule:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Validates `text`.
            ///
            /// # Errors
            /// When the text breaks the rule of the type.
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidId> {
                let text = text.into();
                if $check(&text) { Ok(Self(text)) } else { Err(refuse($what, &text, $rule)) }
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }
    };
}

fn is_label(text: &str) -> bool {
    (1..=63).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn is_dns_label(text: &str) -> bool {
    is_label(text) && !text.starts_with('-') && !text.ends_with('-')
}

fn is_pod_uid(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
}

/// SPIFFE ID of the specification, section 2: no port, no user info, no query, no fragment, no empty or dot segment.
fn is_spiffe_id(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("spiffe://") else { return false };
    let Some((domain, path)) = rest.split_once('/') else { return false };
    text.len() <= 2048
        && (1..=255).contains(&domain.len())
        && domain.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.' | b'_'))
        && path.split('/').all(|segment| {
            !segment.is_empty()
                && segment != "."
                && segment != ".."
                && segment.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
        })
}

name_type!(
    /// A workload: the subject of the policy. A DNS label, unique within its tenant.
    WorkloadId, "workload id", is_dns_label, "1 to 63 of a-z, 0-9 and '-', no '-' at either end"
);
name_type!(
    /// A tenant. A DNS label.
    TenantId, "tenant", is_dns_label, "1 to 63 of a-z, 0-9 and '-', no '-' at either end"
);
name_type!(
    /// A rule of the policy.
    RuleId, "rule id", is_label, "1 to 63 of a-z, 0-9 and '-'"
);
name_type!(
    /// A port of a workload, by name.
    PortName, "port name", is_dns_label, "1 to 63 of a-z, 0-9 and '-', no '-' at either end"
);
name_type!(
    /// A pod, as novalet names it. Also one path segment under the socket root.
    PodUid, "pod uid", is_pod_uid, "1 to 64 of a-z, 0-9 and '-', not starting with '-'"
);
name_type!(
    /// A canonical SPIFFE ID with a path (SPIFFE ID specification, section 2).
    SpiffeId, "SPIFFE ID", is_spiffe_id, "spiffe://<trust domain>/<path>, no empty or dot segment"
);

impl SpiffeId {
    /// The trust domain, without `spiffe://`.
    #[must_use]
    pub fn trust_domain(&self) -> &str {
        let rest = self.0.get("spiffe://".len()..).unwrap_or_default();
        rest.split('/').next().unwrap_or_default()
    }
}

/// 16 bytes that novalet gives the guest at boot and the supervisor in the endpoint: proof of freshness, never of identity.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BootToken(pub [u8; 16]);

impl BootToken {
    /// Compares without an early exit, so that timing tells a guest nothing.
    #[must_use]
    pub fn matches(&self, other: &[u8; 16]) -> bool {
        self.0.iter().zip(other).fold(0u8, |acc, (a, b)| acc | (a ^ b)) == 0
    }
}

impl fmt::Debug for BootToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BootToken(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spiffe_ids_are_canonical_or_refused() {
        assert_eq!(
            SpiffeId::new("spiffe://dev.invalid/t/t/w/x").map(|id| id.trust_domain().to_owned()),
            Ok("dev.invalid".into())
        );
        for bad in [
            "spiffe://td",
            "spiffe://td/",
            "spiffe://td/a//b",
            "spiffe://td/../b",
            "spiffe://td/./b",
            "spiffe://TD/a",
            "spiffe://td:1/a",
            "spiffe://u@td/a",
            "spiffe://td/a?b",
            "spiffe://td/a#b",
            "spiffe://td/a%2e",
            "https://td/a",
            "spiffe:///a",
            "spiffe://td/a/",
            "",
        ] {
            assert!(SpiffeId::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn labels_refuse_what_could_confuse_a_path_or_a_log() {
        for bad in ["", "-a", "a-", "A", "a_b", "a.b", "a/b", "a\n", &"a".repeat(64)] {
            assert!(WorkloadId::new(bad).is_err(), "{bad:?}");
        }
        assert!(WorkloadId::new("service-a").is_ok());
        assert!(PodUid::new("../x").is_err());
        assert!(RuleId::new("x-to-a").is_ok());
    }

    #[test]
    fn the_token_never_shows() {
        assert_eq!(format!("{:?}", BootToken([7; 16])), "BootToken(..)");
        assert!(BootToken([7; 16]).matches(&[7; 16]));
        assert!(!BootToken([7; 16]).matches(&[8; 16]));
    }
}
