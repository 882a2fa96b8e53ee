//! An approval: a detached JWS by a key of the approvers file over what exactly may be published instead of what.
//!
//! The signed text is rebuilt from the bundles at hand, never read from the file. What the file says beside the signature
//! only helps to say why a signature does not fit.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Comparison;
use crate::bundle::{BundleError, SigningKey, VerifyKeys, token_of};

/// Set apart from every other thing that such a key may sign.
const TYPE: &str = "nova-approval+jws";

/// The file that `approve` writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// Whose key.
    pub key_id: String,
    /// Node.
    pub node: String,
    /// Serial of the bundle that was live.
    pub live_serial: u64,
    /// Hash of the bundle that may replace it.
    pub next_sha256: String,
    /// Hash over the risks that were looked at.
    pub risks_sha256: String,
    /// Detached JWS: `<header>..<signature>`.
    pub jws: String,
}

/// Who approved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Approved {
    /// Id of the key in the approvers file.
    pub by: String,
}

/// Why an approval does not count, or cannot be given.
#[derive(Debug, Error)]
pub enum ApprovalError {
    /// Nothing is held.
    #[error("nothing is held: publish it")]
    NothingHeld,
    /// The author of a bundle cannot approve it.
    #[error("key {0} signed the bundle itself: somebody else must approve it")]
    Author(String),
    /// The key is of another kind.
    #[error("key {0} is neither ES256 nor EdDSA")]
    Algorithm(String),
    /// Not in the approvers file.
    #[error("key {0} is not in the approvers file")]
    UnknownApprover(String),
    /// The key in the approvers file cannot be used.
    #[error("key {0} of the approvers file cannot be used")]
    Key(String, #[source] BundleError),
    /// The signature is not that key's.
    #[error("the signature is not one of key {0} over this change")]
    Signature(String),
    /// The live bundle is another one by now.
    #[error(
        "stale: approved while serial {approved} was live, now it is {live}; look at the difference again and approve that"
    )]
    Stale {
        /// What was live.
        approved: u64,
        /// What is live.
        live: u64,
    },
    /// It is about another bundle.
    #[error("approved for another bundle ({0})")]
    OtherBundle(String),
    /// It is about another node.
    #[error("approved for node {0}")]
    OtherNode(String),
    /// The risks are not those that were looked at.
    #[error("the risks are not those that were approved; look at them again and approve them")]
    OtherRisks,
    /// Not a detached JWS of ours.
    #[error("not an approval: {0}")]
    Form(&'static str),
    /// The bundle's own signature cannot be read.
    #[error("the signature of the next bundle cannot be read")]
    Bundle(#[source] BundleError),
}

impl ApprovalError {
    /// The code for programs.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NothingHeld => "nothing_held",
            Self::Author(_) => "author",
            Self::Algorithm(_) => "key_algorithm",
            Self::UnknownApprover(_) => "unknown_approver",
            Self::Key(..) => "bad_key",
            Self::Signature(_) => "bad_signature",
            Self::Stale { .. } => "stale",
            Self::OtherBundle(_) => "other_bundle",
            Self::OtherNode(_) => "other_node",
            Self::OtherRisks => "other_risks",
            Self::Form(_) => "bad_form",
            Self::Bundle(_) => "bad_bundle",
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    alg: String,
    kid: String,
    typ: String,
}

/// What is signed; the order of members is part of the format.
#[derive(Serialize)]
struct Signed<'a> {
    node: &'a str,
    live_serial: u64,
    next_sha256: &'a str,
    risks_sha256: &'a str,
}

/// Signs what `comparison` holds. `next` are the bytes of the next bundle.
///
/// # Errors
/// When nothing is held, or when the key is the author's.
pub fn approve(
    comparison: &Comparison,
    next: &[u8],
    key: &SigningKey,
    key_id: &str,
) -> Result<Approval, ApprovalError> {
    if !comparison.is_held() {
        return Err(ApprovalError::NothingHeld);
    }
    if !matches!(key.algorithm(), "ES256" | "EdDSA") {
        return Err(ApprovalError::Algorithm(key_id.to_owned()));
    }
    let token = token_of(next).map_err(ApprovalError::Bundle)?;
    if token.key_id() == Some(key_id) || key.made(&token) {
        return Err(ApprovalError::Author(key_id.to_owned()));
    }
    let risks_sha256 = comparison.risks_sha256();
    let signed = Signed {
        node: &comparison.node,
        live_serial: comparison.live.serial,
        next_sha256: &comparison.next.sha256,
        risks_sha256: &risks_sha256,
    };
    let header = Header { alg: key.algorithm().to_owned(), kid: key_id.to_owned(), typ: TYPE.to_owned() };
    let header = encode(&header);
    let message = format!("{header}.{}", encode(&signed));
    let signature = key.sign(message.as_bytes()).ok_or_else(|| ApprovalError::Signature(key_id.to_owned()))?;
    Ok(Approval {
        key_id: key_id.to_owned(),
        node: comparison.node.clone(),
        live_serial: comparison.live.serial,
        next_sha256: comparison.next.sha256.clone(),
        jws: format!("{header}..{signature}"),
        risks_sha256,
    })
}

/// Checks an approval of `comparison`. `next` are the bytes of the next bundle.
///
/// # Errors
/// Why it does not count.
pub fn check(
    approval: &Approval,
    comparison: &Comparison,
    next: &[u8],
    approvers: &VerifyKeys,
) -> Result<Approved, ApprovalError> {
    let (header, signature) = approval.jws.split_once("..").ok_or(ApprovalError::Form("no detached JWS"))?;
    let read = URL_SAFE_NO_PAD.decode(header).ok().and_then(|bytes| serde_json::from_slice::<Header>(&bytes).ok());
    let read = read.filter(|header| header.typ == TYPE).ok_or(ApprovalError::Form("the header is not one of ours"))?;
    let id = read.kid;
    if !approvers.has(&id) {
        return Err(ApprovalError::UnknownApprover(id));
    }
    let (algorithm, key) = approvers.get(&id).map_err(|error| ApprovalError::Key(id.clone(), error))?;
    let known = matches!(algorithm, Algorithm::ES256 | Algorithm::EdDSA);
    if !known || read.alg != format!("{algorithm:?}") {
        return Err(ApprovalError::Algorithm(id));
    }
    let token = token_of(next).map_err(ApprovalError::Bundle)?;
    if token.key_id() == Some(id.as_str()) || token.made_by(&key, algorithm) {
        return Err(ApprovalError::Author(id));
    }
    let risks_sha256 = comparison.risks_sha256();
    let wanted = Signed {
        node: &comparison.node,
        live_serial: comparison.live.serial,
        next_sha256: &comparison.next.sha256,
        risks_sha256: &risks_sha256,
    };
    let fits = |signed: &Signed<'_>| {
        let message = format!("{header}.{}", encode(signed));
        jsonwebtoken::crypto::verify(signature, message.as_bytes(), &key, algorithm).unwrap_or(false)
    };
    if fits(&wanted) {
        return Ok(Approved { by: id });
    }
    let told = Signed {
        node: &approval.node,
        live_serial: approval.live_serial,
        next_sha256: &approval.next_sha256,
        risks_sha256: &approval.risks_sha256,
    };
    Err(if fits(&told) { mismatch(approval, comparison) } else { ApprovalError::Signature(id) })
}

/// A good signature over something else.
fn mismatch(approval: &Approval, comparison: &Comparison) -> ApprovalError {
    if approval.node != comparison.node {
        ApprovalError::OtherNode(approval.node.clone())
    } else if approval.next_sha256 != comparison.next.sha256 {
        ApprovalError::OtherBundle(approval.next_sha256.clone())
    } else if approval.live_serial != comparison.live.serial {
        ApprovalError::Stale { approved: approval.live_serial, live: comparison.live.serial }
    } else {
        ApprovalError::OtherRisks
    }
}

fn encode(value: &impl Serialize) -> String {
    // Plain texts and numbers always have a JSON form.
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(value).unwrap_or_default())
}
