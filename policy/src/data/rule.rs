//! One rule, and what it covers of a request.

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::is_false;
use crate::path::has_escaped_slash;
use crate::path::pattern::{PathPattern, segments_match};

/// One rule as the engines read it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuleEntry {
    /// Rule id.
    pub id: String,
    /// Position in the rules file; unique in the bundle; the lowest one that matches wins.
    pub rank: u32,
    /// No `http` block: matches every request and grants opaque bytes.
    #[serde(skip_serializing_if = "is_false")]
    pub l4: bool,
    /// Methods, or `*`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub methods: BTreeMap<String, bool>,
    /// Exact paths.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exact: BTreeMap<String, bool>,
    /// Path prefixes, each ends in `/`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefix: Vec<String>,
    /// Patterns with as many segments as the path.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segs: Vec<Vec<String>>,
    /// Patterns with fewer segments than the path.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segs_prefix: Vec<Vec<String>>,
    /// Requests with an escaped slash in the path match too. Without it no rule matches one, whatever its paths say.
    #[serde(skip_serializing_if = "is_false")]
    pub encoded_slash: bool,
    /// Audit mode.
    #[serde(skip_serializing_if = "is_false")]
    pub audit: bool,
    /// Name of the credential to inject.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub credential: String,
    /// Source range the caller must also come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src: Option<IpNet>,
    /// What a token must say, beside its issuer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<TokenEntry>,
    /// Protocols a request may change to.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub upgrade: BTreeMap<String, bool>,
    /// What may be sent by ICMP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icmp: Option<IcmpEntry>,
    /// What the supervisor must be able to do; the rule grants nothing to one that does not say so in `can`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
}

/// What a token must say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenEntry {
    /// Who issued it.
    pub issuer: String,
    /// Whom it speaks of; absent: anybody, and then there are claims.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subject: String,
    /// Claim to the values of which the token must have one.
    pub claims: BTreeMap<String, BTreeMap<String, bool>>,
}

/// What a rule allows by ICMP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IcmpEntry {
    /// Types, by name.
    pub types: BTreeMap<String, bool>,
    /// Messages per second and workload.
    pub rate_per_s: u32,
}

impl RuleEntry {
    /// Adds a path pattern.
    pub(crate) fn add_path(&mut self, pattern: &PathPattern) {
        match pattern {
            PathPattern::Exact(path) => {
                self.exact.insert(path.clone(), true);
            }
            PathPattern::Prefix(prefix) => self.prefix.push(prefix.clone()),
            PathPattern::Segments(segments) => self.segs.push(segments.clone()),
            PathPattern::SegmentsPrefix(segments) => self.segs_prefix.push(segments.clone()),
        }
    }

    /// Whether the method is covered; rules without an `http` block cover every method.
    pub(crate) fn method_ok(&self, method: Option<&str>) -> bool {
        let listed = |name: &str| self.methods.get(name).copied().unwrap_or(false);
        self.l4 || listed("*") || method.is_some_and(listed)
    }

    /// Whether the path has no escaped slash, or the rule accepts one; rules without an `http` block do not.
    pub(crate) fn slash_ok(&self, path: Option<&str>) -> bool {
        self.encoded_slash || !path.is_some_and(has_escaped_slash)
    }

    /// Whether the path is covered, but for [`RuleEntry::slash_ok`]; rules without an `http` block cover every path.
    pub(crate) fn path_ok(&self, path: Option<&str>) -> bool {
        let covered = |path: &str| {
            self.exact.get(path).copied().unwrap_or(false)
                || self.prefix.iter().any(|prefix| path.starts_with(prefix.as_str()))
                || self.segs.iter().any(|pattern| segments_match(pattern, path, false))
                || self.segs_prefix.iter().any(|pattern| segments_match(pattern, path, true))
        };
        self.l4 || path.is_some_and(covered)
    }

    /// Whether messages of this type may be sent.
    pub(crate) fn icmp_ok(&self, kind: &str) -> bool {
        self.icmp.as_ref().is_some_and(|icmp| icmp.types.get(kind).copied().unwrap_or(false))
    }

    /// The paths as they would be written in a rule.
    pub(crate) fn paths_text(&self) -> String {
        let mut all: Vec<String> = self.exact.keys().cloned().collect();
        all.extend(self.prefix.iter().map(|prefix| format!("{prefix}**")));
        all.extend(self.segs.iter().map(|pattern| format!("/{}", pattern.join("/"))));
        all.extend(self.segs_prefix.iter().map(|pattern| format!("/{}/**", pattern.join("/"))));
        all.join(", ")
    }
}
