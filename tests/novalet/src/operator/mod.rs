//! The operator's socket: one JSON object a line each way.
//!
//! ```text
//! {"op":"status"}                                          {"ok":true,"status":{...}}
//! {"op":"drain","pod_uid":"pod-a"}                         {"ok":true,"pod":{...}}      when it has drained
//! {"op":"restart","pod_uid":"pod-a"}                       {"ok":true,"pod":{...}}      when the new guest has started
//! {"op":"wait","phase":"running","timeout_ms":60000}       {"ok":true,"status":{...}}   when all pods are there
//! {"op":"stop"}                                            {"ok":true}                  when all pods have drained
//! anything wrong                                           {"ok":false,"error":"..."}
//! ```

pub mod client;
pub mod server;
pub mod show;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::history::Event;
use crate::pods::{Phase, PodStatus};

/// File name of the socket in the run dir.
pub const SOCKET: &str = "novalet.sock";

/// What an operator asks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Everything.
    Status,
    /// Drain a pod, stop its guest.
    Drain {
        /// The pod.
        pod_uid: String,
    },
    /// Drain a pod and start its guest anew.
    Restart {
        /// The pod.
        pod_uid: String,
    },
    /// Wait until pods are in a phase.
    Wait {
        /// The phase.
        phase: Phase,
        /// One pod; all of them without it.
        #[serde(default)]
        pod_uid: Option<String>,
        /// How long.
        timeout_ms: u64,
    },
    /// Drain everything and end.
    Stop,
}

/// What the agent answers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Reply {
    /// Whether it was done.
    pub ok: bool,
    /// Why not, with what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Answer to `status` and `wait`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// Answer to `drain` and `restart`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodStatus>,
}

/// The whole node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// Process id of the agent.
    pub pid: u32,
    /// Kind of guests: `microvm`, `process` or `none`.
    pub guests: String,
    /// Epoch of the endpoint table.
    pub epoch: u64,
    /// Its revision.
    pub revision: u64,
    /// Supervisors seen so far.
    pub slots: Vec<Slot>,
    /// The pods.
    pub pods: Vec<Pod>,
    /// Addresses that rest, with the milliseconds left.
    pub cooldown: BTreeMap<String, u64>,
    /// What is wrong with the placements file as it is now; the pods are as it was before.
    pub mistakes: Vec<String>,
    /// What happened, oldest first.
    pub history: Vec<Event>,
}

/// A supervisor instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Slot {
    /// 0 is slot A, 1 is slot B.
    pub slot: u32,
    /// Workload of a dedicated instance.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub dedicated: String,
    /// Its name.
    pub instance: String,
    /// Its version.
    pub version: String,
    /// Bundle revision at its hello.
    pub bundle_revision: String,
    /// Highest revision of the table that it applied.
    pub applied: u64,
    /// Whether it is connected.
    pub live: bool,
}

/// A pod with what the supervisors say about it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Pod {
    /// The agent's view.
    #[serde(flatten)]
    pub status: PodStatus,
    /// The supervisors' view.
    pub acks: Vec<Ack>,
}

/// Last answer of a slot about a pod.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ack {
    /// Which slot.
    pub slot: u32,
    /// Workload of a dedicated instance.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub dedicated: String,
    /// Whether it is connected.
    pub live: bool,
    /// Name of the phase as in the protocol, or empty.
    pub phase: String,
    /// Reason from the closed set.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Open connections.
    pub open_connections: u32,
}
