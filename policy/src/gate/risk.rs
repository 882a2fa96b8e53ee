//! What can be wrong with a change.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

/// Longest text of a cell; a list of paths may be long.
const MAX_TEXT: usize = 300;

/// Every kind with its name from one list, so that no table of kinds can miss one.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// Kinds of risks: a closed set.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Its name, as in JSON.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// A destination outside that was not there, and a credential goes to it.
    NewExternalCredential = "new_external_credential",
    /// A destination with a wildcard.
    WildcardHost = "wildcard_host",
    /// A path with a wildcard, or no `http` block at all.
    WildcardPath = "wildcard_path",
    /// A method that writes, for a pair that had none like it.
    NewWriteMethod = "new_write_method",
    /// Somebody new on a port whose bytes nobody looks at.
    NewTcpPeer = "new_tcp_peer",
    /// Requests that may turn into bytes that nobody looks at.
    UpgradeAdded = "upgrade_added",
    /// Paths with an escaped slash, which some servers read as longer paths.
    EncodedSlashAdded = "encoded_slash_added",
    /// A rule that is gone although it is in use.
    RuleRemoved = "rule_removed",
    /// Would-be denials of a live pair pass from now on.
    AuditOn = "audit_on",
    /// Would-be denials of a live pair are refused from now on.
    AuditOff = "audit_off",
    /// A new pair in audit mode: it lets through what no rule names.
    NewAuditPair = "new_audit_pair",
    /// Labels of a workload: selectors of other bundles follow them.
    LabelsChanged = "labels_changed",
    /// Number, mode or protocol of a port.
    PortChanged = "port_changed",
    /// Certificates behind the name of a CA, or the CA of a destination.
    CaChanged = "ca_changed",
    /// What the supervisor does about TLS towards a destination.
    TlsChanged = "tls_changed",
    /// The parent proxy of a destination.
    RouteChanged = "route_changed",
    /// A pair that was checked per request may exchange anything.
    HttpBlockDropped = "http_block_dropped",
    /// A larger range of addresses, as source, as destination or as what a name may resolve to.
    WiderRange = "wider_range",
    /// A larger set of callers under one CA or issuer.
    WiderPeer = "wider_peer",
    /// Another credential for a pair, or one where there was none.
    CredentialChanged = "credential_changed",
    /// What a credential's name stands for.
    CredentialDefinition = "credential_definition",
    /// The identity of a workload, or an identity of an unusual form.
    IdentityChanged = "identity_changed",
    /// Another of the rules that were there wins, and carries something else.
    RuleOrder = "rule_order",
    /// The Rego, the wasm or the manifest.
    PolicyCode = "policy_code",
    /// The layout of the data.
    SchemaChanged = "schema_changed",
    /// A difference that this build has no row for.
    UnknownDifference = "unknown_difference",
}

impl Serialize for Kind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
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

/// A text that may be empty, for people.
pub(super) fn or_none(text: &str) -> String {
    if text.is_empty() { "(none)".to_owned() } else { text.to_owned() }
}

/// Cut texts keep a digest, so that the hash over the risks still stands for the whole of them.
fn short(text: String) -> String {
    if text.len() <= MAX_TEXT {
        return text;
    }
    let end = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}... ({} bytes, {})", &text[..end], text.len(), super::hash(text.as_bytes()))
}
