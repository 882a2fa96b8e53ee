//! An endpoint as the data plane is told of it.

use std::time::Duration;

use nova_proto::ids::{BootToken, PodUid, SpiffeId, TenantId, WorkloadId};
use nova_supervisor::state::endpoint::{Backend, EndpointLimits, EndpointSpec};

/// The first boot of a pod of this workload in tenant `t`, without ports, dependencies or credentials.
pub(crate) fn spec(workload: &str, trust_domain: &str) -> EndpointSpec {
    EndpointSpec {
        workload: WorkloadId::new(workload).expect("an id"),
        tenant: TenantId::new("t").expect("an id"),
        spiffe_id: SpiffeId::new(format!("spiffe://{trust_domain}/t/t/w/{workload}")).expect("an id"),
        pod_uid: PodUid::new(format!("pod-{workload}")).expect("an id"),
        generation: 1,
        ip: [10, 64, 3, 11].into(),
        other_ip: None,
        backend: Backend::Vsock { cid: 5 },
        ports: Vec::new(),
        dependencies: Vec::new(),
        credentials: Default::default(),
        boot_token: BootToken([1; 16]),
        drain_timeout: Duration::ZERO,
        limits: EndpointLimits::default(),
    }
}
