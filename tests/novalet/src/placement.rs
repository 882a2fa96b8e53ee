//! What one line of work looks like to the node agent: a pod with an address, ports, a wanted state and a guest to run.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use nova_proto::control;

use crate::ingress::Ingress;

/// The state that the placements file asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantedState {
    /// The guest runs and may call out; nobody can call in.
    Pending,
    /// The workload serves.
    Ready,
    /// The workload finishes what it has, and goes.
    Draining,
}

/// The guest to start for a placement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestWish {
    /// Command and arguments of the app, as seen inside the guest. `/nova/...` names the project's own guest programs.
    pub command: Vec<String>,
    /// Memory of a microVM in MiB.
    pub memory_mib: u32,
    /// Further environment of the app.
    pub env: BTreeMap<String, String>,
}

/// One placed pod, validated.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// Subject of the policy.
    pub workload: String,
    /// Tenant of the workload.
    pub tenant: String,
    /// Identity of the workload.
    pub spiffe_id: String,
    /// Key of the pod; also its folder under the guest root.
    pub pod_uid: String,
    /// Lowest generation that the file asks for; the agent goes above it with every restart.
    pub generation: u64,
    /// Address on the node's delegated subnet.
    pub workload_ip: IpAddr,
    /// Exposed ports.
    pub ports: Vec<control::Port>,
    /// `shared` or `dedicated`.
    pub isolation: String,
    /// What the file wants.
    pub state: WantedState,
    /// How long open connections may finish.
    pub drain_timeout: Duration,
    /// Token from the file; without one the agent makes a fresh one per boot.
    pub boot_token: Option<[u8; 16]>,
    /// Caps of the endpoint.
    pub limits: Option<control::Limits>,
    /// Fixed dependencies of the guest.
    pub dependencies: Vec<control::Dependency>,
    /// Names of the credentials that the pod may use.
    pub credentials: Vec<String>,
    /// File name of the hybrid socket in the pod's folder.
    pub socket_file: String,
    /// Whether the muxer carries half-close.
    pub half_close: bool,
    /// The guest to start.
    pub guest: GuestWish,
}

impl Placement {
    /// DNS name of the workload.
    #[must_use]
    pub fn dns_name(&self) -> String {
        format!("{}.{}.nova", self.workload, self.tenant)
    }

    /// The targets that the relay is told at boot, each once.
    #[must_use]
    pub fn ingress(&self) -> Vec<Ingress> {
        let mut targets = Vec::new();
        for port in &self.ports {
            let target = Ingress::of(port);
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        targets
    }

    /// Whether going from `self` to `next` needs a new boot of the guest: everything that the guest learns only at boot.
    #[must_use]
    pub fn needs_restart(&self, next: &Self) -> bool {
        self.guest != next.guest
            || self.workload != next.workload
            || self.tenant != next.tenant
            || self.workload_ip != next.workload_ip
            || self.ingress() != next.ingress()
            || self.dependencies != next.dependencies
            || self.socket_file != next.socket_file
            || self.half_close != next.half_close
            || (next.boot_token.is_some() && self.boot_token != next.boot_token)
    }
}
