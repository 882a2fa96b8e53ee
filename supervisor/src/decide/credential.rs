//! Whether a call gets the credential that its rule names. Policy grants it by name; the rest is for this node to say, and all of
//! it must hold: the credential's owner lists the host, the call goes there over TLS of ours, novalet lists the credential for
//! the pod, and the node has a value that suits the form.

use std::sync::Arc;

use nova_policy::data::{CredentialEntry, EgressTarget, UpstreamTls};
use nova_policy::decision::Decision;
use nova_policy::engine::Policy;
use nova_policy::input::{Direction, Input, Phase};

use crate::credentials::{Credentials, Fault, Held, Injection};
use crate::reason::Reason;

/// Why a grant does not get its credential, and so does not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoCredential {
    /// Its declaration does not list the host of the call.
    Host,
    /// What is granted is no request that goes out over TLS.
    Plaintext,
    /// The endpoint does not list it.
    Pod,
    /// The node has no value for it.
    Missing,
    /// The value is not what the form needs.
    Form,
}

impl NoCredential {
    /// The reason in the record.
    #[must_use]
    pub fn reason(self) -> Reason {
        match self {
            Self::Pod => Reason::CredentialNotGranted,
            Self::Host | Self::Plaintext | Self::Missing | Self::Form => Reason::CredentialUnavailable,
        }
    }

    /// The finer reason.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Host => "credential_host",
            Self::Plaintext => "credential_plaintext",
            Self::Pod => "credential_pod",
            Self::Missing => "credential_missing",
            Self::Form => Fault::Form.as_str(),
        }
    }
}

/// The credential of a grant, if its rule names one. `is_listed` says whether the caller's pod may use a credential at all.
///
/// # Errors
/// Why the call must not pass.
pub(super) fn of_grant(
    policy: &Policy,
    input: &Input,
    decision: &Decision,
    credentials: &Credentials,
    is_listed: impl Fn(&str) -> bool,
) -> Result<Option<Arc<Held>>, NoCredential> {
    if !decision.allow || decision.credential.is_empty() {
        return Ok(None);
    }
    let name = &*decision.credential;
    let declared = declared(policy, input, decision).ok_or(NoCredential::Host)?;
    if decision.would_deny || !goes_over_tls(policy, input, decision) {
        return Err(NoCredential::Plaintext);
    }
    if !is_listed(name) {
        return Err(NoCredential::Pod);
    }
    let held = credentials.get(name).ok_or(NoCredential::Missing)?;
    if Injection::fits(&held, &declared.form) { Ok(Some(held)) } else { Err(NoCredential::Form) }
}

/// Whether nothing in the policy is against showing the credential of this decision to where the call goes. The compiler sees to
/// it; a bundle that somebody else made must not be able to send a secret elsewhere.
pub(super) fn may_go(policy: &Policy, input: &Input, decision: &Decision) -> bool {
    decision.credential.is_empty()
        || (declared(policy, input, decision).is_some() && goes_over_tls(policy, input, decision))
}

/// The declaration, if it lists the host of the call.
fn declared<'p>(policy: &'p Policy, input: &Input, decision: &Decision) -> Option<&'p CredentialEntry> {
    let declared = policy.data().credentials.get(&*decision.credential)?;
    let host = input.dest_host()?;
    declared.hosts.iter().any(|listed| listed == host).then_some(declared)
}

/// Whether it is a request, and none that turns into other bytes, that leaves in TLS which we start and whose other end we
/// verify by the name of the call.
fn goes_over_tls(policy: &Policy, input: &Input, decision: &Decision) -> bool {
    let is_request = (input.direction(), input.phase(), input.upgrade()) == (Direction::Egress, Phase::Request, None);
    let Some((host, port)) = input.host().zip(input.dest_port()).filter(|_| is_request) else { return false };
    let target = policy.egress_target(input.workload(), &decision.rule_id, host, port);
    matches!(target, Some(EgressTarget::External { tls: UpstreamTls::Originate, .. }))
}
