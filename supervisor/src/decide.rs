//! The one decision point. Ingress, proxy requests, tunnels, SOCKS5 and dependencies all come through [`Decider::decide`];
//! only what comes out of it, a [`Permit`], can make `dial` open a connection.

mod credential;
mod memory;

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use nova_policy::data::{CredentialForm, EgressTarget};
use nova_policy::decision::{Decision, DecisionReason};
use nova_policy::engine::{Evaluator, Policy};
use nova_policy::input::{Direction, Input};

pub use self::credential::NoCredential;
use self::memory::Memory;
use crate::audit::{AuditSink, Record, Verdict};
use crate::conn::{Cut, Event};
use crate::credentials::{Credentials, Held};
use crate::reason::Reason;
use crate::state::policy::PolicyCell;

/// The app dials an address that no rule with `cidr` covers: most likely it resolved an allowed name by itself.
const ADDRESS_WITHOUT_RULE: &str = "ip_target_no_cidr_rule";

/// Permission for exactly what its input says, on the bundle that decided it.
#[must_use = "a permit that opens nothing was asked for in vain"]
#[derive(Clone)]
pub struct Permit {
    input: Arc<Input>,
    decision: Decision,
    policy: Arc<Policy>,
    credential: Option<Arc<Held>>,
}

impl Permit {
    /// What was asked and granted.
    #[must_use]
    pub fn input(&self) -> &Input {
        &self.input
    }

    /// The bundle that decided.
    #[must_use]
    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// The rule that granted it; empty in the connect phase.
    #[must_use]
    pub fn rule(&self) -> &str {
        &self.decision.rule_id
    }

    /// The credential that goes with the call, and how it is injected.
    #[must_use]
    pub fn credential(&self) -> Option<(&Arc<Held>, &CredentialForm)> {
        let held = self.credential.as_ref()?;
        Some((held, &self.policy.data().credentials.get(held.name())?.form))
    }

    /// Where the granting egress rule leads. None for ingress and in the connect phase, which open nothing outside.
    #[must_use]
    pub fn target(&self) -> Option<&EgressTarget> {
        let (host, port) = self.input.host().zip(self.input.dest_port())?;
        self.policy.egress_target(self.input.workload(), &self.decision.rule_id, host, port)
    }

    /// Who may be pinged. None unless a rule for ICMP granted it.
    #[must_use]
    pub fn ping(&self) -> Option<PingGrant> {
        let kind = self.input.icmp()?;
        let rate_per_s = self.policy.icmp_rate(self.input.workload(), &self.decision.rule_id, kind)?;
        Some(PingGrant { address: self.input.dest_host()?.parse().ok()?, rate_per_s })
    }
}

/// What a permit for ICMP allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PingGrant {
    /// Who may be pinged.
    pub address: Ipv4Addr,
    /// How often a second, by all of the workload.
    pub rate_per_s: u32,
}

/// The decision engine of one data-plane thread.
pub struct Decider {
    policy: Arc<PolicyCell>,
    audit: Arc<AuditSink>,
    credentials: Arc<Credentials>,
    /// What this supervisor can do for rules of egress that need it.
    can: Vec<Arc<str>>,
    engine: RefCell<Evaluator>,
    memory: RefCell<Memory>,
}

impl Decider {
    /// A decider for this thread.
    #[must_use]
    pub fn new(policy: Arc<PolicyCell>, audit: Arc<AuditSink>, credentials: Arc<Credentials>) -> Self {
        let (engine, memory) = (RefCell::default(), RefCell::default());
        Self { policy, audit, credentials, can: Vec::new(), engine, memory }
    }

    /// The same for a supervisor that can do what some rules of egress need.
    #[must_use]
    pub fn able(self, can: Vec<Arc<str>>) -> Self {
        Self { can, ..self }
    }

    /// Decides `input`, writes the answer into `record`, and gives a permit or the reason for a denial.
    ///
    /// # Errors
    /// The reason of the denial, which the record holds already.
    pub fn decide(&self, input: Input, record: &mut Record) -> Result<Permit, Reason> {
        let Some(policy) = self.current() else {
            record.undecided(Reason::NoPolicy);
            return Err(Reason::NoPolicy);
        };
        if !self.audit.is_writable() {
            record.undecided(Reason::AuditUnavailable);
            return Err(Reason::AuditUnavailable);
        }
        let input = with_abilities(input, &self.can);
        let (input, decision) = self.answer(&policy, record.pod_uid().as_str(), input);
        record.decided(&policy, &input, &decision);
        let reason = reason_of(decision.reason);
        let verdict = match (decision.allow, decision.would_deny) {
            (false, _) => Verdict::Deny,
            (true, true) => Verdict::WouldDeny,
            (true, false) => Verdict::Allow,
        };
        if input.direction() == Direction::Egress {
            record.detail(hint_of(&input, reason));
        }
        record.verdict(verdict, reason, &decision.rule_id, &decision.credential);
        let is_listed = |name: &str| record.endpoint().credentials.contains(name);
        let credential = match credential::of_grant(&policy, &input, &decision, &self.credentials, is_listed) {
            Ok(credential) => credential,
            Err(missing) => {
                record.deny(missing.reason());
                record.detail(missing.as_str());
                return Err(missing.reason());
            }
        };
        if decision.allow { Ok(Permit { input, decision, policy, credential }) } else { Err(reason) }
    }

    /// Whether nothing takes back what `permit` was given for. Only a policy can: while there is none, nothing new is
    /// allowed, and what is open stays.
    #[must_use]
    pub fn still_allows(&self, permit: &Permit) -> bool {
        let Some(policy) = self.current() else { return true };
        // A decision is a function of bundle and input: on the same bundle it is the same.
        if Arc::ptr_eq(&policy, &permit.policy) {
            return true;
        }
        let decision = self.evaluate(&policy, &permit.input);
        // What is on its way has the credential that it had; another one would be another call.
        let is_same = permit.credential.as_ref().is_none_or(|held| held.name() == &*decision.credential);
        decision.allow && is_same && credential::may_go(&policy, &permit.input, &decision)
    }

    /// What the engine says, or said of the same input and bundle before: asked anew it costs more than all the rest that
    /// happens to a request in this process.
    fn answer(&self, policy: &Policy, endpoint: &str, input: Input) -> (Arc<Input>, Decision) {
        if let Some(known) = self.memory.borrow_mut().recall(endpoint, &input) {
            return known;
        }
        let decision = self.evaluate(policy, &input);
        let input = Arc::new(input);
        self.memory.borrow_mut().keep(endpoint, &input, &decision);
        (input, decision)
    }

    /// The bundle that decides now, in this thread's own handle.
    fn current(&self) -> Option<Arc<Policy>> {
        self.memory.borrow_mut().follow(self.policy.peek().as_ref())
    }

    fn evaluate(&self, policy: &Policy, input: &Input) -> Decision {
        self.engine.borrow_mut().decide(policy, input)
    }
}

/// What helps an operator to see why; the caller is not told.
fn hint_of(input: &Input, reason: Reason) -> &'static str {
    let is_address = || input.dest_host().is_some_and(|host| host.parse::<IpAddr>().is_ok());
    // Pings go to addresses always.
    if reason == Reason::NoGrant && input.icmp().is_none() && is_address() { ADDRESS_WITHOUT_RULE } else { "" }
}

/// What `policy` says of `input`, for people who ask. Gives no permit.
pub fn verdict_of(policy: &Policy, input: &Input) -> Decision {
    Evaluator::new().decide(policy, input)
}

/// Why this node would not let pass what policy grants: for people who ask.
///
/// # Errors
/// What is wrong with the credential of the grant.
pub fn check_credential(
    policy: &Policy,
    input: &Input,
    decision: &Decision,
    credentials: &Credentials,
    is_listed: impl Fn(&str) -> bool,
) -> Result<(), NoCredential> {
    credential::of_grant(policy, input, decision, credentials, is_listed).map(drop)
}

/// What is asked, by a supervisor that can do so much.
pub fn with_abilities(input: Input, can: &[Arc<str>]) -> Input {
    if input.direction() == Direction::Egress && !can.is_empty() {
        input.with_abilities(can.iter().cloned())
    } else {
        input
    }
}

/// Resolves when what was granted by `permit` must end. A drain lets it finish.
pub async fn until_revoked(cut: &mut Cut, decider: &Decider, permit: &Permit) -> Reason {
    loop {
        match cut.next().await {
            // Also the first event of every watch: the policy may have changed while the destination was dialled.
            Event::PolicyChanged if decider.still_allows(permit) => {}
            Event::PolicyChanged => return Reason::PolicyRevoked,
            Event::Closed => return Reason::Draining,
            Event::Aged => return Reason::MaxLifetime,
            Event::PeerEnded(reason) => return reason,
            Event::Draining | Event::PeerEnding(_) => {}
        }
    }
}

fn reason_of(reason: DecisionReason) -> Reason {
    match reason {
        DecisionReason::Rule => Reason::Rule,
        DecisionReason::Connect => Reason::Connect,
        DecisionReason::WouldDeny => Reason::WouldDeny,
        DecisionReason::NoGrant => Reason::NoGrant,
        DecisionReason::L7Mismatch => Reason::L7Mismatch,
        DecisionReason::EscapedSlash => Reason::EscapedSlash,
        DecisionReason::NeedsOpaqueGrant => Reason::NeedsOpaqueGrant,
        DecisionReason::EngineError => Reason::EngineError,
    }
}
