//! From the control protocol's messages to validated values. Every message is taken apart field by field, so that a field
//! that is added to the protocol does not compile until somebody decides what it means here.

mod address;
mod limits;
mod port;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use nova_policy::data::is_plain_name;
use nova_policy::workloads::MAX_CREDENTIALS;
use nova_proto::control as proto;
use nova_proto::control::endpoint::Backend as ProtoBackend;
use nova_proto::ids::{BootToken, PodUid, SpiffeId, TenantId, WorkloadId};

use self::address::{check_dependency, check_ip, check_other_ip};
use super::order::{HealthPlan, Key, Order, Rejection, Row, Update, Wanted};
use super::stream::StreamError;
use super::why::Why;
use crate::state::endpoint::{Backend, DependencySpec, EndpointSpec, PortSpec};

/// How long open connections may finish at drain.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Kernel-reserved, local, host and "any": none of them is a guest (T12).
const RESERVED_CIDS: [u32; 4] = [0, 1, 2, u32::MAX];

/// Converts one update of a stream.
///
/// # Errors
/// When the update holds nothing that this build knows.
pub fn update(message: proto::EndpointUpdate) -> Result<Update, StreamError> {
    use proto::endpoint_update::Op;
    // How many share the endpoints is no change of them: see `client`.
    let proto::EndpointUpdate { op, revision, epoch, live_slots: _ } = message;
    Ok(match op {
        None => return Err(StreamError::NoOperation(revision)),
        Some(Op::Snapshot(proto::Snapshot { endpoints })) => {
            Update::Snapshot { epoch, rows: endpoints.into_iter().map(endpoint).collect() }
        }
        Some(Op::Upsert(message)) => Update::Upsert(Box::new(endpoint(message))),
        Some(Op::Remove(proto::EndpointKey { pod_uid, generation })) => match PodUid::new(pod_uid.clone()) {
            Ok(pod) => Update::Remove(Key { pod, generation }),
            Err(error) => Update::Upsert(Box::new(Err(Rejection {
                pod: pod_uid,
                generation,
                why: Why::BadPodUid,
                message: error.to_string(),
            }))),
        },
    })
}

/// Converts one endpoint; all its mistakes are reported together.
///
/// # Errors
/// The first mistake as reason, all of them as message.
pub fn endpoint(message: proto::Endpoint) -> Row {
    let (pod, generation) = (message.pod_uid.clone(), message.generation);
    let mut mistakes = Mistakes::default();
    let order = convert(message, &mut mistakes);
    mistakes.verdict(order, pod, generation)
}

fn convert(message: proto::Endpoint, mistakes: &mut Mistakes) -> Option<Order> {
    let proto::Endpoint {
        workload_id,
        spiffe_id,
        pod_uid,
        generation,
        workload_ip,
        backend,
        ports,
        isolation,
        state,
        delivery: _, // for explain and audit; nothing depends on it
        credentials,
        limits,
        dependencies,
        boot_token,
        additional_ips,
        drain_timeout_ms,
        policy_ref: _, // SERVING always waits until the bundle knows the workload
    } = message;
    check_isolation(&isolation, mistakes);
    let who = identity(&workload_id, &spiffe_id, mistakes);
    let pod_uid = mistakes.keep(Why::BadPodUid, PodUid::new(pod_uid));
    let ip = mistakes.keep(Why::BadIp, check_ip("workload_ip", &workload_ip));
    let other_ip = mistakes.keep(Why::BadIp, check_other_ip(ip, &additional_ips));
    let wanted = wanted(state, mistakes);
    let backend = self::backend(backend, mistakes);
    let limits = limits::convert(limits, backend.as_ref(), mistakes);
    let boot_token = self::boot_token(&boot_token, mistakes);
    let (ports, health) = self::ports(ports, mistakes);
    let dependencies = self::dependencies(dependencies, mistakes);
    let credentials = self::credentials(credentials, mistakes);
    let drain_timeout = match drain_timeout_ms {
        0 => DRAIN_TIMEOUT,
        millis => Duration::from_millis(millis.into()),
    };
    let (workload, tenant, spiffe_id) = who?;
    let spec = EndpointSpec {
        workload,
        tenant,
        spiffe_id,
        pod_uid: pod_uid?,
        generation,
        ip: ip?,
        other_ip: other_ip?,
        backend: backend?,
        ports,
        dependencies,
        credentials,
        boot_token: boot_token?,
        drain_timeout,
        limits,
    };
    Some(Order { spec, wanted: wanted?, health })
}

/// The mistakes of one endpoint.
#[derive(Default)]
pub(super) struct Mistakes(Vec<(Why, String)>);

impl Mistakes {
    pub(super) fn add(&mut self, why: Why, message: impl Into<String>) {
        self.0.push((why, message.into()));
    }

    pub(super) fn keep<T>(&mut self, why: Why, result: Result<T, impl ToString>) -> Option<T> {
        result.map_err(|error| self.add(why, error.to_string())).ok()
    }

    pub(super) fn verdict(self, order: Option<Order>, pod: String, generation: u64) -> Row {
        // A missing backend is the weakest mistake: it cures itself, so it must not hide one that does not.
        let worst =
            self.0.iter().find(|(why, _)| *why != Why::WaitingForBackend).or(self.0.first()).map(|(why, _)| *why);
        match (worst, order) {
            (None, Some(order)) => Ok(order),
            (why, _) => {
                let messages: Vec<_> = self.0.into_iter().map(|(_, message)| message).collect();
                let message = messages.join("; ");
                Err(Rejection { pod, generation, why: why.unwrap_or(Why::Internal), message })
            }
        }
    }
}

fn check_isolation(isolation: &str, mistakes: &mut Mistakes) {
    match isolation {
        "shared" => {}
        "dedicated" => mistakes
            .add(Why::DedicatedNotHere, "this is the shared supervisor; a dedicated pod needs an instance of its own"),
        other => mistakes
            .add(Why::UnknownIsolation, format!("isolation {other:?} is unknown; write \"shared\" or \"dedicated\"")),
    }
}

/// The SPIFFE ID must be this workload's: it decides in whose name the supervisor speaks.
fn identity(workload: &str, spiffe_id: &str, mistakes: &mut Mistakes) -> Option<(WorkloadId, TenantId, SpiffeId)> {
    let workload = mistakes.keep(Why::BadWorkload, WorkloadId::new(workload));
    let spiffe_id = mistakes.keep(Why::BadSpiffeId, SpiffeId::new(spiffe_id));
    let (workload, spiffe_id) = (workload?, spiffe_id?);
    let wrong = || format!("SPIFFE ID {spiffe_id} is not spiffe://<trust domain>/t/<tenant>/w/{workload}");
    let tenant = tenant_of(&spiffe_id, &workload).ok_or_else(wrong);
    let tenant = mistakes.keep(Why::BadSpiffeId, tenant)?;
    Some((workload, tenant, spiffe_id))
}

fn tenant_of(spiffe_id: &SpiffeId, workload: &WorkloadId) -> Option<TenantId> {
    let (_, path) = spiffe_id.as_str().strip_prefix("spiffe://")?.split_once('/')?;
    let (tenant, rest) = path.strip_prefix("t/")?.split_once('/')?;
    if rest.strip_prefix("w/")? != workload.as_str() {
        return None;
    }
    TenantId::new(tenant).ok()
}

fn wanted(state: i32, mistakes: &mut Mistakes) -> Option<Wanted> {
    match proto::State::try_from(state) {
        Ok(proto::State::Pending) => Some(Wanted::Pending),
        Ok(proto::State::Ready) => Some(Wanted::Ready),
        Ok(proto::State::Draining) => Some(Wanted::Draining),
        Ok(proto::State::Unspecified) | Err(_) => {
            mistakes.add(Why::BadState, format!("state {state} is not PENDING, READY or DRAINING"));
            None
        }
    }
}

fn backend(backend: Option<ProtoBackend>, mistakes: &mut Mistakes) -> Option<Backend> {
    match backend {
        None => {
            mistakes
                .add(Why::WaitingForBackend, "the guest is not there yet: send its CID or socket with the next upsert");
            None
        }
        Some(ProtoBackend::VsockCid(cid)) if RESERVED_CIDS.contains(&cid) => {
            mistakes.add(Why::BadCid, format!("CID {cid} is reserved and never a guest's"));
            None
        }
        Some(ProtoBackend::VsockCid(cid)) => Some(Backend::Vsock { cid }),
        // The group is for whoever makes the directory; we check the user.
        Some(ProtoBackend::Hybrid(proto::HybridVsock { file, vmm_uid, vmm_gid: _, half_close })) => {
            let file = mistakes.keep(Why::BadSocket, one_segment(&file))?;
            Some(Backend::Hybrid { file, vmm_uid, half_close })
        }
        Some(ProtoBackend::Uds(proto::UdsCarrier { file: _ })) => {
            mistakes.add(Why::UnsupportedBackend, "the uds carrier is not served by this version");
            None
        }
    }
}

/// A file name that cannot leave its folder.
fn one_segment(file: &str) -> Result<String, String> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if (1..=64).contains(&file.len()) && file.bytes().all(is_plain) && !file.starts_with('.') {
        return Ok(file.to_owned());
    }
    Err(format!("socket file {file:?} is not one path segment of at most 64 of A-Z, a-z, 0-9, '.', '_' and '-'"))
}

fn boot_token(bytes: &[u8], mistakes: &mut Mistakes) -> Option<BootToken> {
    let wrong = |_| format!("the boot token has {} bytes and must have 16", bytes.len());
    mistakes.keep(Why::BadToken, <[u8; 16]>::try_from(bytes).map_err(wrong)).map(BootToken)
}

fn ports(messages: Vec<proto::Port>, mistakes: &mut Mistakes) -> (Vec<PortSpec>, HealthPlan) {
    let mut plan: Option<HealthPlan> = None;
    let mut ports: Vec<PortSpec> = Vec::new();
    for message in messages {
        let Some((port, health)) = port::convert(message, mistakes) else { continue };
        if let Some(health) = health {
            // The strictest check of its ports is the endpoint's.
            plan = Some(plan.map_or(health, |plan| port::strictest(plan, health)));
        }
        if ports.iter().any(|other| other.port == port.port || other.name == port.name) {
            mistakes.add(Why::DuplicatePort, format!("port {} ({}) is listed twice", port.port, port.name));
        }
        ports.push(port);
    }
    (ports, plan.unwrap_or_default())
}

fn dependencies(messages: Vec<proto::Dependency>, mistakes: &mut Mistakes) -> Vec<DependencySpec> {
    let mut dependencies = Vec::new();
    for proto::Dependency { host, port, guest_ip } in messages {
        dependencies.extend(mistakes.keep(Why::BadDependency, check_dependency(&host, port, &guest_ip)));
    }
    dependencies
}

/// Names only: values are this node's, and whether a call carries one is for the policy to say.
fn credentials(names: Vec<String>, mistakes: &mut Mistakes) -> BTreeSet<String> {
    if names.len() > MAX_CREDENTIALS {
        let (count, most) = (names.len(), MAX_CREDENTIALS);
        mistakes.add(Why::BadCredential, format!("{count} credentials are more than the {most} that a pod may have"));
    }
    for name in names.iter().take(MAX_CREDENTIALS).filter(|name| !is_plain_name(name)) {
        let shown: String = name.chars().take(64).collect();
        mistakes.add(Why::BadCredential, format!("{shown:?} is no name of a credential: 1 to 63 of a-z, 0-9 and '-'"));
    }
    names.into_iter().collect()
}
