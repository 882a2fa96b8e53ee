//! What can be wrong with a change.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

/// Longest text of a cell; a list of paths may be long.
const MAX_TEXT: usize = 300;

/// Kinds of risks: a closed set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A destination outside that was not there, and a credential goes to it.
    NewExternalCredential,
    /// A destination with a wildcard.
    WildcardHost,
    /// A path with a wildcard, or no `http` block at all.
    WildcardPath,
    /// A method that writes, for a pair that had none like it.
    NewWriteMethod,
    /// Somebody new on a port whose bytes nobody looks at.
    NewTcpPeer,
    /// A rule that is gone although it is in use.
    RuleRemoved,
    /// Would-be denials of a live pair pass from now on.
    AuditOn,
    /// Would-be denials of a live pair are refused from now on.
    AuditOff,
    /// A new pair in audit mode: it lets through what no rule names.
    NewAuditPair,
    /// Labels of a workload: selectors of other bundles follow them.
    LabelsChanged,
    /// Number, mode or protocol of a port.
    PortChanged,
    /// Certificates behind the name of a CA, or the CA of a destination.
    CaChanged,
    /// What the supervisor does about TLS towards a destination.
    TlsChanged,
    /// The parent proxy of a destination.
    RouteChanged,
    /// A pair that was checked per request may exchange anything.
    HttpBlockDropped,
    /// A larger range of addresses, as source, as destination or as what a name may resolve to.
    WiderRange,
    /// A larger set of callers under one CA.
    WiderPeer,
    /// Another credential for a pair, or one where there was none.
    CredentialChanged,
    /// What a credential's name stands for.
    CredentialDefinition,
    /// The identity of a workload, or an identity of an unusual form.
    IdentityChanged,
    /// Rules that carry different things swap places.
    RuleOrder,
    /// The Rego, the wasm or the manifest.
    PolicyCode,
    /// The layout of the data.
    SchemaChanged,
    /// A difference that this build has no row for.
    UnknownDifference,
}

impl Kind {
    /// Its name, as in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NewExternalCredential => "new_external_credential",
            Self::WildcardHost => "wildcard_host",
            Self::WildcardPath => "wildcard_path",
            Self::NewWriteMethod => "new_write_method",
            Self::NewTcpPeer => "new_tcp_peer",
            Self::RuleRemoved => "rule_removed",
            Self::AuditOn => "audit_on",
            Self::AuditOff => "audit_off",
            Self::NewAuditPair => "new_audit_pair",
            Self::LabelsChanged => "labels_changed",
            Self::PortChanged => "port_changed",
            Self::CaChanged => "ca_changed",
            Self::TlsChanged => "tls_changed",
            Self::RouteChanged => "route_changed",
            Self::HttpBlockDropped => "http_block_dropped",
            Self::WiderRange => "wider_range",
            Self::WiderPeer => "wider_peer",
            Self::CredentialChanged => "credential_changed",
            Self::CredentialDefinition => "credential_definition",
            Self::IdentityChanged => "identity_changed",
            Self::RuleOrder => "rule_order",
            Self::PolicyCode => "policy_code",
            Self::SchemaChanged => "schema_changed",
            Self::UnknownDifference => "unknown_difference",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One risk. Texts are for people; the order of fields is the order of sorting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Risk {
    /// What kind.
    pub kind: Kind,
    /// Pair, workload or file.
    pub pair: String,
    /// Rule; empty when it is not about one.
    pub rule: String,
    /// What was.
    pub before: String,
    /// What would be.
    pub after: String,
}

/// Risks found so far. One change shows at the caller, at the callee and under every alias; it is one risk.
#[derive(Default)]
pub(super) struct Found(BTreeSet<Risk>);

impl Found {
    pub(super) fn add(
        &mut self,
        kind: Kind,
        pair: impl Into<String>,
        rule: &str,
        before: impl Into<String>,
        after: impl Into<String>,
    ) {
        let (before, after) = (short(before.into()), short(after.into()));
        self.0.insert(Risk { kind, pair: pair.into(), rule: rule.to_owned(), before, after });
    }

    /// Adds a risk unless both sides are the same.
    pub(super) fn difference(
        &mut self,
        kind: Kind,
        pair: &str,
        rule: &str,
        before: Option<String>,
        after: Option<String>,
    ) {
        if before != after {
            let text = |side: Option<String>| side.unwrap_or_else(|| "(none)".to_owned());
            self.add(kind, pair, rule, text(before), text(after));
        }
    }

    pub(super) fn into_risks(self) -> Vec<Risk> {
        self.0.into_iter().collect()
    }
}

/// Cut texts keep a digest, so that the hash over the risks still stands for the whole of them.
fn short(text: String) -> String {
    if text.len() <= MAX_TEXT {
        return text;
    }
    let end = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}... ({} bytes, {})", &text[..end], text.len(), super::hash(text.as_bytes()))
}
