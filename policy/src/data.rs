//! The compiled rules of one node: what the Rego reads under `data.nova`, and what the node reads natively beside it.
//!
//! Ordered maps only, so that the same rules give the same bytes. A rule is one object wherever it appears; its rank is
//! unique in the bundle, so overlapping lists decide instead of failing.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use nova_proto::ids::SpiffeId;
use serde::{Deserialize, Serialize};

use crate::path::has_escaped_slash;
use crate::path::pattern::{PathPattern, segments_match};
use crate::workloads::{Mode, Protocol};

/// The layout version this build writes and reads.
pub const SCHEMA: u32 = 1;

/// `data.nova`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeData {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The node these rules are for.
    pub node: String,
    /// Trust domain of the node's own identities.
    pub trust_domain: String,
    /// By source workload: where it may go.
    pub egress: BTreeMap<String, Egress>,
    /// By target workload, then port name: who may come.
    pub ingress: BTreeMap<String, BTreeMap<String, IngressPort>>,
    /// By source workload, then rule id: what a granted rule leads to.
    pub targets: BTreeMap<String, BTreeMap<String, Vec<EgressTarget>>>,
    /// Workloads of this node.
    pub workloads: BTreeMap<String, WorkloadEntry>,
    /// CA name to certificates, DER in base64.
    pub external_cas: BTreeMap<String, Vec<String>>,
    /// Credentials that rules of this node's workloads name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub credentials: BTreeMap<String, CredentialEntry>,
}

/// How a credential is injected, and where it may go at all. Its value is never here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CredentialEntry {
    /// Form and what belongs to it.
    pub form: CredentialForm,
    /// The only hosts that may see it: exact names, sorted.
    pub hosts: Vec<String>,
    /// Who answers for it.
    pub owner: String,
}

/// Whether this is a plain name: of a credential, its owner, an external CA or a proxy.
#[must_use]
pub fn is_plain_name(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(good)
}

/// How a credential appears in a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum CredentialForm {
    /// A header field of its own.
    Header {
        /// Its name, lower case.
        header: String,
    },
    /// `Authorization: Bearer`.
    Bearer,
    /// `Authorization: Basic`.
    Basic,
    /// A parameter of the query.
    Query {
        /// Its name.
        parameter: String,
    },
    /// A signature of the whole request, AWS version 4.
    Sigv4 {
        /// Region.
        region: String,
        /// Service.
        service: String,
    },
    /// A placeholder that the app wrote is replaced, where this says and nowhere else.
    Placeholder(Places),
}

/// Where a placeholder is replaced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Places {
    /// In this header field; its name in lower case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// In this parameter of the query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// In bodies of these kinds.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub body: BTreeSet<BodyKind>,
}

/// A kind of body in which a placeholder is replaced. Each writes a text in its own way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BodyKind {
    /// `application/json`, and types that end in `+json`.
    Json,
    /// `application/x-www-form-urlencoded`.
    Form,
    /// `text/plain`.
    Text,
}

/// Fields that frame or route a message: a credential in one of them would change what the message is.
const REFUSED_HEADERS: [&str; 14] = [
    "connection",
    "content-length",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

impl CredentialForm {
    /// Whether a credential may be in a header field of this name, which is in lower case.
    #[must_use]
    pub fn may_be_header(name: &str) -> bool {
        !REFUSED_HEADERS.contains(&name) && !name.starts_with("x-nova-")
    }
}

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

/// What the node needs to know of a workload beside its endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadEntry {
    /// Its tenant.
    pub tenant: String,
    /// Its identity.
    pub spiffe_id: SpiffeId,
    /// Labels that selectors of rules saw. Nothing decides by them; the change gate compares them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Its ports by name, as the compiler saw them. Nothing decides by them; the change gate compares them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ports: BTreeMap<String, PortEntry>,
}

/// A port of a workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortEntry {
    /// Its number.
    pub port: u16,
    /// How the supervisor terminates it.
    pub mode: Mode,
    /// What is spoken on it.
    pub protocol: Protocol,
}

/// What a granted egress rule leads to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum EgressTarget {
    /// Another workload: mTLS with exactly this SPIFFE ID on the other side.
    Workload {
        /// Workload id.
        workload: String,
        /// Its full name, `<workload>.<tenant>.nova`.
        host: String,
        /// Other names it may be called by.
        aliases: Vec<String>,
        /// The identity the callee must prove.
        spiffe_id: SpiffeId,
        /// Port number on the workload's IP.
        port: u16,
        /// Port name.
        port_name: String,
        /// How the callee's supervisor terminates the port.
        mode: Mode,
        /// What is spoken on it.
        protocol: Protocol,
        /// The app may use TLS of its own, which the supervisor then terminates.
        #[serde(default, skip_serializing_if = "is_false")]
        intercept: bool,
    },
    /// A host outside.
    External {
        /// The exact name, or `*.` and a suffix.
        host: String,
        /// Port.
        port: u16,
        /// What the supervisor does about TLS.
        tls: UpstreamTls,
        /// Name of the external CA that must have signed the server; web roots otherwise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ca: Option<String>,
        /// Private ranges the name may resolve to.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        addresses: Vec<IpNet>,
        /// The app may use TLS of its own, which the supervisor then terminates. `tls` is what the host gets.
        #[serde(default, skip_serializing_if = "is_false")]
        intercept: bool,
        /// gRPC is spoken, so the host must speak HTTP/2.
        #[serde(default, skip_serializing_if = "is_false")]
        grpc: bool,
        /// The parent proxy that everything must go through.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        via: Option<String>,
    },
    /// An address literal out of a range.
    Cidr {
        /// The range.
        cidr: IpNet,
        /// Port.
        port: u16,
    },
}

impl EgressTarget {
    /// Whether this target is the one for `host` (canonical) and `port`.
    #[must_use]
    pub fn covers(&self, host: &crate::host::Host, port: u16) -> bool {
        match self {
            Self::Workload { host: name, aliases, port: want, .. } => {
                port == *want && (host.as_str() == name || aliases.iter().any(|alias| alias == host.as_str()))
            }
            Self::External { host: name, port: want, .. } => {
                port == *want
                    && match name.strip_prefix('*') {
                        Some(suffix) => host.as_str().ends_with(suffix),
                        None => host.as_str() == name,
                    }
            }
            Self::Cidr { cidr, port: want } => {
                port == *want && host.address().is_some_and(|address| cidr.contains(&address))
            }
        }
    }
}

/// What the supervisor does about TLS towards an external host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamTls {
    /// The app speaks plaintext to the supervisor, which speaks TLS to the host.
    Originate,
    /// Bytes are copied as they are; TLS, if any, is the app's own.
    Passthrough,
    /// Plaintext HTTP on both sides.
    None,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature serde wants")]
fn is_false(value: &bool) -> bool {
    !value
}
