//! What is asked and answered on the operator's socket, one JSON object a line.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A question.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The endpoint table.
    Endpoints,
    /// Live connections.
    Connections,
    /// The active bundle and the last errors.
    Policy,
    /// Whether the node can serve.
    Ready,
    /// Decides an input on the active policy and says which test of which rule failed.
    Explain {
        /// A canonical decision input.
        input: Value,
    },
    /// The same for a pair as people write it, at each of its ends that lives on the node.
    ExplainPair {
        /// `x -> service-a GET /v1/orders`
        pair: String,
        /// Revision to ask; default: the active one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revision: Option<String>,
    },
    /// Decides an input on the active policy.
    Decide {
        /// A canonical decision input.
        input: Value,
    },
    /// Decides a recorded input again, on the revision of then and on the active one.
    Replay {
        /// From an audit line or the header `x-nova-decision-id`.
        decision_id: String,
    },
}

/// An answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// What was asked for.
    Result(Value),
    /// Why there is no answer.
    Error(Failure),
}

/// Why there is no answer, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Closed set.
    pub code: Code,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

impl Failure {
    pub(super) fn new(code: Code, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { code, message: message.into(), remedy: remedy.into() }
    }
}

/// Kinds of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The question is not one.
    BadInput,
    /// No audit line has this decision id.
    NotFound,
    /// The audit line holds no decision: policy was never asked.
    NoDecision,
    /// There is no active policy to decide on.
    NoPolicy,
    /// The asker may not ask.
    Forbidden,
    /// Too many clients.
    Busy,
    /// Something on this node failed.
    Failed,
}

/// An endpoint, for an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointView {
    /// Subject of the policy; empty for a row that was refused, whose stage is `refused`.
    pub workload: String,
    /// Tenant.
    pub tenant: String,
    /// Pod.
    pub pod_uid: String,
    /// Generation.
    pub generation: u64,
    /// Its address.
    pub ip: String,
    /// How the guest is reached.
    pub backend: String,
    /// How far it may serve.
    pub stage: String,
    /// Phase last told to novalet; empty before the first.
    pub phase: String,
    /// Reason last told to novalet.
    pub reason: String,
    /// The same for people.
    pub message: String,
    /// `name:port/mode/protocol`
    pub ports: Vec<String>,
    /// Open connections.
    pub connections: usize,
    /// Their cap.
    pub max_connections: usize,
}

/// A live connection, for an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionView {
    /// Id in the audit log.
    pub decision_id: String,
    /// `ingress` or `egress`.
    pub direction: String,
    /// The endpoint's workload.
    pub workload: String,
    /// The other side.
    pub peer: String,
    /// Port name or destination.
    pub what: String,
    /// Since when, in milliseconds.
    pub age_ms: u64,
}

/// Whether the node can serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyView {
    /// The node's id.
    pub node: String,
    /// All checks hold.
    pub ready: bool,
    /// Each check.
    pub checks: Vec<CheckView>,
    /// How many connections the process may carry, and what is used of that.
    pub connections: BudgetView,
    /// What an operator should know all the same.
    pub warnings: Vec<String>,
}

/// The connections of the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetView {
    /// All that it may carry; from its limit of open files.
    pub budget: usize,
    /// Open ones of all endpoints.
    pub open: usize,
    /// Those that belong to each endpoint alone.
    pub guaranteed: usize,
    /// Those that endpoints share beyond that.
    pub shared: usize,
    /// Shared ones in use.
    pub shared_open: usize,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckView {
    /// Short name.
    pub name: String,
    /// Whether it holds.
    pub ok: bool,
    /// What is wrong and what to do; empty when it holds.
    pub message: String,
}

/// What a policy says about an input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionView {
    /// Revision that decided.
    pub revision: String,
    /// `allow`, `deny` or `would_deny`.
    pub verdict: String,
    /// Closed set.
    pub reason: String,
    /// Rule that decided; empty when none did.
    pub rule: String,
    /// Name of the credential; empty when there is none.
    pub credential: String,
}

/// Why a policy says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplanationView {
    /// What it says.
    #[serde(flatten)]
    pub decision: DecisionView,
    /// The workload's rules, candidates first.
    pub rules: Vec<RuleView>,
    /// Rules left out for length.
    pub omitted: usize,
    /// What would have allowed it; empty when it was allowed.
    pub hint: String,
}

/// One end of a pair, explained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndView {
    /// What was asked.
    pub input: Value,
    /// What came out, and why.
    pub explanation: ExplanationView,
}

/// One rule, tested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleView {
    /// Its id.
    pub rule: String,
    /// It is about this pair.
    pub candidate: bool,
    /// It only audits.
    pub audit: bool,
    /// Its tests, in order.
    pub tests: Vec<TestView>,
}

/// One test of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestView {
    /// What is tested: `peer`, `method`, `path`, ...
    pub test: String,
    /// What the rule wants.
    pub wanted: String,
    /// What the input has.
    pub got: String,
    /// Whether that fits.
    pub ok: bool,
}

/// A recorded decision, decided again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayView {
    /// Its id.
    pub decision_id: String,
    /// When it was recorded.
    pub time: String,
    /// What was recorded.
    pub recorded: DecisionView,
    /// The recorded input.
    pub input: Value,
    /// On the revision of that moment; none when it cannot be had any more, see `notes`.
    pub then: Option<ExplanationView>,
    /// On the active revision; none when nothing is active.
    pub now: Option<ExplanationView>,
    /// What an operator must know to read this.
    pub notes: Vec<String>,
}
