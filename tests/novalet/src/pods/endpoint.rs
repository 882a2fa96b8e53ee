//! A placed pod as the supervisor is told about it.

use nova_proto::control::endpoint::Backend;
use nova_proto::control::{Endpoint, HybridVsock, State};

use crate::placement::Placement;

/// The endpoint of one boot of `placement` in `state`.
pub(super) fn endpoint(placement: &Placement, generation: u64, token: &[u8; 16], state: State) -> Endpoint {
    Endpoint {
        workload_id: placement.workload.clone(),
        spiffe_id: placement.spiffe_id.clone(),
        pod_uid: placement.pod_uid.clone(),
        generation,
        workload_ip: placement.workload_ip.to_string(),
        ports: placement.ports.clone(),
        isolation: placement.isolation.clone(),
        state: state as i32,
        limits: placement.limits,
        dependencies: placement.dependencies.clone(),
        credentials: placement.credentials.clone(),
        boot_token: token.to_vec(),
        drain_timeout_ms: u32::try_from(placement.drain_timeout.as_millis()).unwrap_or(u32::MAX),
        backend: Some(Backend::Hybrid(HybridVsock {
            file: placement.socket_file.clone(),
            // The muxers run as we do: it is their uid that the supervisor sees on what a guest dials.
            vmm_uid: nix::unistd::geteuid().as_raw(),
            vmm_gid: nix::unistd::getegid().as_raw(),
            half_close: placement.half_close,
        })),
        ..Endpoint::default()
    }
}
