//! The answer of a decision.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// What policy says about one input. `reason` and `rule_id` go into the audit record as they are.
#[must_use = "a decision that nobody reads decides nothing"]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Whether it may pass.
    pub allow: bool,
    /// It passes only because every rule of the pair is in audit mode.
    #[serde(rename = "audit")]
    pub would_deny: bool,
    /// The rule that granted it; empty when none did and in the connect phase.
    pub rule_id: Arc<str>,
    /// Name of the credential to inject; empty when there is none. Policy grants it; whether a node has it, and the caller's
    /// pod may use it, is for the node to say.
    pub credential: Arc<str>,
    /// Why.
    pub reason: DecisionReason,
}

impl Decision {
    /// A refusal.
    pub fn deny(reason: DecisionReason) -> Self {
        Self { allow: false, would_deny: false, rule_id: "".into(), credential: "".into(), reason }
    }

    /// An engine's answer, if it is one an engine may give: a reason of its own, and `allow` as that reason has it.
    pub(crate) fn of_engine(self) -> Option<Self> {
        DecisionReason::from_engine(self.reason.as_str()).filter(|reason| reason.allows() == self.allow)?;
        Some(self)
    }
}

/// Why a decision came out as it did: a closed set, metric label and audit field at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionReason {
    /// A rule grants it.
    Rule,
    /// The pair has a rule, so it may connect.
    Connect,
    /// No rule grants it, but all rules of the pair are in audit mode.
    WouldDeny,
    /// The pair has no rule.
    NoGrant,
    /// The pair has rules, but none for this method and path.
    L7Mismatch,
    /// The path has an escaped slash, and no rule of the pair accepts one. Nothing else is looked at then: servers read such
    /// a path in two ways.
    EscapedSlash,
    /// The pair has only rules with an `http` block; uninspected bytes need one without.
    NeedsOpaqueGrant,
    /// The engine failed, ran out of its budget, or answered something that is not a decision.
    EngineError,
}

impl DecisionReason {
    /// The code for logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Connect => "connect",
            Self::WouldDeny => "would_deny",
            Self::NoGrant => "no_grant",
            Self::L7Mismatch => "l7_mismatch",
            Self::EscapedSlash => "escaped_slash",
            Self::NeedsOpaqueGrant => "needs_opaque_grant",
            Self::EngineError => "engine_error",
        }
    }

    /// Whether a decision with this reason allows; an engine that says otherwise has failed.
    pub(crate) fn allows(self) -> bool {
        matches!(self, Self::Rule | Self::Connect | Self::WouldDeny)
    }

    /// The reasons a policy engine may give, by code.
    pub(crate) fn from_engine(code: &str) -> Option<Self> {
        [
            Self::Rule,
            Self::Connect,
            Self::WouldDeny,
            Self::NoGrant,
            Self::L7Mismatch,
            Self::EscapedSlash,
            Self::NeedsOpaqueGrant,
        ]
        .into_iter()
        .find(|reason| reason.as_str() == code)
    }
}
