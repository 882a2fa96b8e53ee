//! Who is who in the machine: two endpoints, of which only one can be the loopback's peer.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use nova_proto::ids::{BootToken, PodUid, SpiffeId, TenantId, WorkloadId};
use nova_supervisor::guestlink::LinkPorts;
use nova_supervisor::state::endpoint::{Backend, Endpoint, EndpointLimits, EndpointSpec};
use nova_supervisor::state::table::EndpointTable;

/// Where the supervisor listens.
pub(super) const HOST_PORT: u32 = 15001;
/// Where the relay listens.
pub(super) const GUEST_PORT: u32 = 15080;
/// Another port of relays, on which nobody listens.
pub(super) const UNUSED_PORT: u32 = 15999;
/// The loopback's peer, VMADDR_CID_LOCAL: in this machine that is guest x.
pub(super) const CID_X: u32 = 1;
/// The guest that x would like to be.
pub(super) const CID_SERVICE_A: u32 = 42;
/// A guest that does not exist.
pub(super) const CID_NOBODY: u32 = 4242;

/// The two endpoints.
pub(super) struct Stand {
    /// Of the guest that this machine plays.
    pub(super) x: EndpointSpec,
    /// Of the other guest.
    pub(super) service_a: EndpointSpec,
}

impl Stand {
    /// The boot token is the one that nova-init gave the relay.
    pub(super) fn from_environment() -> anyhow::Result<Self> {
        let hex = std::env::var("NOVA_CHECK_TOKEN").context("NOVA_CHECK_TOKEN")?;
        let mut token = [0; 16];
        hex::decode_to_slice(hex, &mut token).context("NOVA_CHECK_TOKEN")?;
        Ok(Self {
            x: spec("x", CID_X, "10.64.3.11", BootToken(token))?,
            service_a: spec("service-a", CID_SERVICE_A, "10.64.3.21", BootToken([0x5a; 16]))?,
        })
    }

    /// Both, as the supervisor knows them.
    pub(super) fn table(&self) -> Arc<EndpointTable> {
        let table = EndpointTable::default();
        for spec in [&self.x, &self.service_a] {
            table.insert(&Endpoint::new(spec.clone()));
        }
        Arc::new(table)
    }

    /// The guest x on another CID.
    pub(super) fn x_at(&self, cid: u32) -> EndpointSpec {
        EndpointSpec { backend: Backend::Vsock { cid }, ..self.x.clone() }
    }
}

/// Relays on `guest_port`; hybrid sockets are nowhere.
pub(super) fn relay_on(guest_port: u32) -> LinkPorts {
    LinkPorts { root: PathBuf::from("/nonexistent"), guest_port }
}

fn spec(name: &str, cid: u32, ip: &str, boot_token: BootToken) -> anyhow::Result<EndpointSpec> {
    Ok(EndpointSpec {
        workload: WorkloadId::new(name)?,
        tenant: TenantId::new("t")?,
        spiffe_id: SpiffeId::new(format!("spiffe://dev.invalid/t/t/w/{name}"))?,
        pod_uid: PodUid::new(format!("pod-{name}"))?,
        generation: 1,
        ip: ip.parse()?,
        other_ip: None,
        backend: Backend::Vsock { cid },
        ports: Vec::new(),
        dependencies: Vec::new(),
        credentials: Default::default(),
        boot_token,
        drain_timeout: Duration::from_secs(10),
        limits: EndpointLimits::default(),
    })
}
