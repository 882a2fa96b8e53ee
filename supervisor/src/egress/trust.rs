//! What the guest shall trust: the answer to its hello, and the CA behind it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nova_policy::data::EgressTarget;
use nova_policy::engine::Policy;
use nova_proto::trust;
use tokio::io::AsyncWriteExt;

use super::{Egress, Guest};
use crate::conn::Accepted;
use crate::identity::{IdentityError, PodCa};
use crate::net::stream::Stream;
use crate::reason::Reason;

/// A guest that does not take the answer in time asks again.
const DEADLINE: Duration = Duration::from_secs(2);

/// Tells the guest of an endpoint which CA to trust. Without a policy that knows the workload nothing is answered: the guest
/// asks again.
pub(super) async fn answer(egress: &Egress, mut accepted: Accepted, mut stream: Stream) {
    let pem = match trusted(egress, &accepted) {
        Ok(pem) => pem,
        Err(reason) => {
            accepted.record.deny(reason);
            return stream.abort().await;
        }
    };
    let Ok(bytes) = trust::encode(&pem) else {
        accepted.record.deny(Reason::InterceptNeedsRestart);
        return stream.abort().await;
    };
    let sending = async {
        stream.write_all(&bytes).await?;
        stream.flush().await?;
        stream.shutdown().await
    };
    match tokio::time::timeout(DEADLINE, sending).await {
        Ok(Ok(())) => accepted.record.close(Reason::Done),
        Ok(Err(_)) => accepted.record.close(Reason::Reset),
        Err(_) => accepted.record.close(Reason::IdleTimeout),
    }
    accepted.record.bytes(0, bytes.len() as u64);
}

/// The certificates as PEM; empty if nothing is intercepted.
fn trusted(egress: &Egress, accepted: &Accepted) -> Result<String, Reason> {
    let workload = accepted.spec.workload.as_str();
    let policy = egress.policy.load().ok_or(Reason::NoPolicy)?;
    if !policy.data().workloads.contains_key(workload) {
        return Err(Reason::NoPolicy);
    }
    let cell = &accepted.endpoint.pod_ca;
    if let Some(ca) = cell.get() {
        return Ok(ca.trust_pem());
    }
    let names = intercepted(&policy, workload);
    if names.is_empty() {
        return Ok(String::new());
    }
    let ca = egress.pod_cas.make(workload, &names).map_err(|error| cannot(&error))?;
    Ok(cell.get_or_put(ca).trust_pem())
}

/// The CA that signs for `host` in the pod of this guest.
///
/// One that signs itself is the one that the guest was given. Below a root that the guest trusts there may be another at any
/// time: for names that were not in the rules then, or after a restart of the supervisor.
pub(super) fn signer(guest: &Guest, host: &str) -> Result<Arc<PodCa>, Reason> {
    let (cell, pod_cas) = (&guest.endpoint.pod_ca, &guest.egress.pod_cas);
    let is_good = |ca: &Arc<PodCa>| ca.covers(host) && SystemTime::now() < ca.not_after();
    if let Some(ca) = cell.get().filter(is_good) {
        return Ok(ca);
    }
    if !pod_cas.have_a_root() {
        return Err(Reason::InterceptNeedsRestart);
    }
    let policy = guest.egress.policy.load().ok_or(Reason::NoPolicy)?;
    let workload = guest.spec.workload.as_str();
    let ca = pod_cas.make(workload, &intercepted(&policy, workload)).map_err(|error| cannot(&error))?;
    let ca = cell.replace(ca);
    if is_good(&ca) { Ok(ca) } else { Err(Reason::InterceptNeedsRestart) }
}

/// Every name, or `*.` and suffix, that a rule of `workload` lets us be.
fn intercepted(policy: &Policy, workload: &str) -> BTreeSet<String> {
    let targets = policy.data().targets.get(workload).into_iter().flat_map(|rules| rules.values().flatten());
    let names = targets.flat_map(|target| match target {
        EgressTarget::Workload { host, aliases, intercept: true, .. } => {
            [std::slice::from_ref(host), aliases.as_slice()].concat()
        }
        EgressTarget::External { host, intercept: true, .. } => vec![host.clone()],
        _ => Vec::new(),
    });
    // No certificate of ours is for an address, and no TLS client names one.
    names.filter(|name| name.parse::<std::net::IpAddr>().is_err()).collect()
}

fn cannot(error: &IdentityError) -> Reason {
    tracing::error!(%error, "the CA of a pod cannot be made");
    Reason::InterceptNeedsRestart
}
