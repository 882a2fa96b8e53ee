//! The compiled rules of one node: what the Rego reads under `data.nova`, and what the node reads natively beside it.
//!
//! Ordered maps only, so that the same rules give the same bytes. A rule is one object wherever it appears; its rank is
//! unique in the bundle, so overlapping lists decide instead of failing.

mod credential;
mod pairs;
mod rule;
mod target;

use std::collections::BTreeMap;

use nova_proto::ids::SpiffeId;
use serde::{Deserialize, Serialize};

pub use credential::{BodyKind, CredentialEntry, CredentialForm, Places, is_plain_name};
pub use pairs::{
    DnsSuffix, Egress, EgressCidr, ExternalPeers, IcmpRange, IngressCidr, IngressPort, PrefixEntry, SuffixEntry,
};
pub use rule::{IcmpEntry, RuleEntry, TokenEntry};
pub use target::{EgressTarget, UpstreamTls};

use crate::port::{Mode, Protocol};

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

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature serde wants")]
fn is_false(value: &bool) -> bool {
    !value
}
