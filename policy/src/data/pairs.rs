//! Who may talk to whom: by source workload, and by port of a target.

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::rule::RuleEntry;

/// Where one workload may go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Egress {
    /// `host:port` to rules.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exact: BTreeMap<String, Vec<RuleEntry>>,
    /// Wildcard names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub suffix: Vec<SuffixEntry>,
    /// Address ranges; they match address literals only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cidr: Vec<EgressCidr>,
    /// Address ranges that may be pinged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub icmp: Vec<IcmpRange>,
}

/// An address range for ICMP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IcmpRange {
    /// The range.
    pub cidr: IpNet,
    /// Rules of the pair.
    pub rules: Vec<RuleEntry>,
}

/// `*.example.com:443` and its rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuffixEntry {
    /// Starts with a dot.
    pub suffix: String,
    /// Destination port.
    pub port: u16,
    /// Rules of the pair.
    pub rules: Vec<RuleEntry>,
}

/// An address range as destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressCidr {
    /// The range.
    pub cidr: IpNet,
    /// Destination port.
    pub port: u16,
    /// Rules of the pair.
    pub rules: Vec<RuleEntry>,
}

/// Who may come to one port of a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IngressPort {
    /// SPIFFE ID of our own trust domain to rules.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub peer: BTreeMap<String, Vec<RuleEntry>>,
    /// External CA name to its peers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub external: BTreeMap<String, ExternalPeers>,
    /// Source ranges; only on ports that ask for no client certificate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cidr: Vec<IngressCidr>,
    /// Issuer of a token to rules; only on ports that ask for no client certificate.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub jwt: BTreeMap<String, Vec<RuleEntry>>,
}

/// The peers of one external CA.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExternalPeers {
    /// URI to rules.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exact: BTreeMap<String, Vec<RuleEntry>>,
    /// URI prefixes; each ends in `/`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefix: Vec<PrefixEntry>,
    /// DNS name in the certificate to rules.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub dns: BTreeMap<String, Vec<RuleEntry>>,
    /// Families of DNS names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dns_suffix: Vec<DnsSuffix>,
    /// Common name to rules.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cn: BTreeMap<String, Vec<RuleEntry>>,
}

/// `*.partner.example` as the name of a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DnsSuffix {
    /// Starts with a dot.
    pub suffix: String,
    /// Rules of the pair.
    pub rules: Vec<RuleEntry>,
}

/// A URI prefix and its rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixEntry {
    /// Ends in `/`.
    pub prefix: String,
    /// Rules of the pair.
    pub rules: Vec<RuleEntry>,
}

/// A source range and its rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IngressCidr {
    /// The range.
    pub cidr: IpNet,
    /// Rules of the pair.
    pub rules: Vec<RuleEntry>,
}
