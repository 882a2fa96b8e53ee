//! The change gate: which part of a new bundle lets more through than the live one, or takes away what is in use.
//!
//! ```text
//!   live --flatten--> pairs, targets, leaves --+
//!                                              +--compare--> risks --> publish | held --approval--> publish
//!   next --flatten--> pairs, targets, leaves --+
//!
//!   compare   who may ask what           audit    what passes without a rule      leaves   everything that is no rule
//!   targets   where it leads             winner   what it carries there           in_use   what was asked lately
//! ```
//! Compiled results are compared, never rule texts: whatever road a change takes (a label, a port, a CA file behind its
//! name), it ends in the data that decides. The data is read as plain JSON, so a member that this build does not know is a
//! difference like any other, and a difference that has no row of its own is a risk.

mod approval;
mod audit;
mod compare;
mod cover;
mod flat;
mod grant;
mod in_use;
mod leaves;
mod matcher;
mod pattern;
mod risk;
mod targets;
mod winner;

use aws_lc_rs::digest;
use serde::Serialize;
use thiserror::Error;

use crate::bundle::{Manifest, VerifiedBundle};
use crate::engine::{LoadError, Policy, VECTORS_FILE};

pub use approval::{Approval, ApprovalError, Approved, approve, check};
pub use in_use::{InUse, InUseError};
pub use risk::{Kind, Risk};

/// Why two bundles cannot be compared.
#[derive(Debug, Error)]
pub enum GateError {
    /// A bundle has no serial.
    #[error("the {0} bundle has no metadata.serial; build it with nova-policy")]
    NoSerial(&'static str),
    /// They are for two nodes.
    #[error("the live bundle is for node {live:?}, the next one for {next:?}; compare bundles of one node")]
    OtherNode {
        /// Node of the live bundle.
        live: String,
        /// Node of the next bundle.
        next: String,
    },
    /// The next one would never be activated.
    #[error("the next bundle has serial {next}, the live one has {live}; build it with a higher serial")]
    OlderSerial {
        /// Serial of the live bundle.
        live: u64,
        /// Serial of the next bundle.
        next: u64,
    },
    /// A node would refuse it.
    #[error("no node would activate the next bundle")]
    Load(#[from] LoadError),
}

impl GateError {
    /// The code for programs.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoSerial(_) => "no_serial",
            Self::OtherNode { .. } => "scope_mismatch",
            Self::OlderSerial { .. } => "older_serial",
            Self::Load(error) => error.reason(),
        }
    }
}

/// One of the two bundles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Side {
    /// Revision.
    pub revision: String,
    /// Serial.
    pub serial: u64,
    /// Hash of the file, hex.
    pub sha256: String,
}

/// What the gate found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Node of both bundles.
    pub node: String,
    /// What decides now.
    pub live: Side,
    /// What is to be published.
    pub next: Side,
    /// Every risk, sorted; none: publish.
    pub risks: Vec<Risk>,
}

impl Comparison {
    /// Whether somebody must approve it first.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.risks.is_empty()
    }

    /// Hash over the risks, hex: an approval is for exactly these.
    #[must_use]
    pub fn risks_sha256(&self) -> String {
        // A list of plain texts always has a JSON form.
        let text = serde_json::to_vec(&self.risks).unwrap_or_default();
        hex::encode(digest::digest(&digest::SHA256, &text))
    }
}

/// Compares what two bundles grant. Without `in_use` every rule counts as used.
///
/// # Errors
/// When the bundles are not two of one node in this order, or when no node would activate the next one.
pub fn compare(live: &VerifiedBundle, next: &VerifiedBundle, in_use: Option<&InUse>) -> Result<Comparison, GateError> {
    let sides = (side(live, "live")?, side(next, "next")?);
    if sides.1.serial <= sides.0.serial {
        return Err(GateError::OlderSerial { live: sides.0.serial, next: sides.1.serial });
    }
    let (before, after) = (flat::flatten(&live.data), flat::flatten(&next.data));
    if before.node != after.node {
        return Err(GateError::OtherNode { live: before.node, next: after.node });
    }
    let policy = Policy::load(next.clone())?;
    policy.self_test()?;
    let mut found = risk::Found::default();
    differences(&before, &after, in_use, &mut found);
    code(live, next, &mut found);
    if let Some(in_use) = in_use {
        in_use.lost(live, &policy, &after.names, &mut found);
    }
    Ok(Comparison { node: after.node, live: sides.0, next: sides.1, risks: found.into_risks() })
}

/// Everything that the compiled data of two bundles differs in.
fn differences(live: &flat::Flat, next: &flat::Flat, in_use: Option<&InUse>, found: &mut risk::Found) {
    compare::pairs(live, next, in_use, found);
    audit::compare(live, next, found);
    targets::compare(live, next, found);
    winner::compare(live, next, found);
    leaves::compare(live, next, found);
}

fn side(bundle: &VerifiedBundle, which: &'static str) -> Result<Side, GateError> {
    let manifest = bundle.manifest();
    let serial = manifest.serial().ok_or(GateError::NoSerial(which))?;
    Ok(Side { revision: manifest.revision.clone(), serial, sha256: bundle.sha256().to_owned() })
}

/// The Rego and every other file, but for the self-test's vectors, which grant nothing.
fn code(live: &VerifiedBundle, next: &VerifiedBundle, found: &mut risk::Found) {
    let all = |bundle: &VerifiedBundle| {
        let modules = bundle.modules.iter().map(|(name, text)| (name.clone(), hash(text.as_bytes())));
        let files = bundle.files.iter().filter(|(name, _)| *name != VECTORS_FILE);
        let files = files.map(|(name, content)| (name.clone(), hash(content)));
        modules.chain(files).collect::<std::collections::BTreeMap<_, _>>()
    };
    let (before, after) = (all(live), all(next));
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names {
        found.difference(Kind::PolicyCode, name, "", before.get(name).cloned(), after.get(name).cloned());
    }
    let (before, after) = (settings(live.manifest()), settings(next.manifest()));
    found.difference(Kind::PolicyCode, ".manifest", "", Some(before), Some(after));
}

/// The manifest without what every publish changes.
fn settings(manifest: &Manifest) -> String {
    let mut manifest = manifest.clone();
    manifest.revision = String::new();
    if let Some(metadata) = manifest.metadata.as_object_mut() {
        metadata.remove("serial");
        metadata.remove("expires");
    }
    let versions = format!("{:?}", manifest.file_rego_versions);
    let text = serde_json::to_string(&manifest).unwrap_or_default();
    if manifest.file_rego_versions.is_empty() { text } else { format!("{text} {versions}") }
}

fn hash(content: &[u8]) -> String {
    format!("sha256:{}", hex::encode(digest::digest(&digest::SHA256, content)))
}

#[cfg(test)]
mod tests;
