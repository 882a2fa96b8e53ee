//! What the guest shall trust: told when it asks and whenever that changes, and the CAs behind it.
//!
//! ```text
//! hello --> all CAs that count --> the guest's byte: installed --> a change --> all CAs that count --> ...
//!                                                                   rules name more, half of a life is over, another intermediate
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nova_policy::data::EgressTarget;
use nova_policy::engine::Policy;
use nova_proto::trust::{self, INSTALLED, NOT_INSTALLED};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use super::{Egress, Guest};
use crate::conn::Accepted;
use crate::identity::{IdentityError, PodCa, Told};
use crate::net::stream::Stream;
use crate::reason::Reason;
use crate::state::endpoint::{Endpoint, EndpointSpec, Stage};

/// A guest that does not take the answer in time asks again.
const DEADLINE: Duration = Duration::from_secs(2);
/// For a guest to install what it was told.
const INSTALL: Duration = Duration::from_secs(30);
/// How often the clock is looked at, at least and at most.
const LOOK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));

/// Why no CA of ours signs for a name, for the record's detail.
const NOT_ASKED: &str = "ca_not_asked";
const NOT_COVERED: &str = "ca_not_covering";
const NOT_CONFIRMED: &str = "ca_not_installed";

/// Tells the guest of an endpoint which CAs to trust, for as long as it listens and the endpoint does not drain. Without a policy
/// that knows the workload nothing is answered: the guest asks again.
pub(super) async fn serve(egress: &Egress, mut accepted: Accepted, mut stream: Stream) {
    let (endpoint, spec) = (Arc::clone(&accepted.endpoint), Arc::clone(&accepted.spec));
    let mut stage = endpoint.watch_stage();
    let mut sent = 0;
    let end = tokio::select! {
        biased;
        _ = stage.wait_for(|stage| *stage >= Stage::Draining) => Ok(Reason::Draining),
        end = inform(egress, &endpoint, &spec, &mut stream, &mut sent) => end,
    };
    accepted.record.bytes(0, sent);
    match end {
        // What ends in good order says so, and the guest's next question gets the next answer.
        Ok(how) => {
            accepted.record.close(how);
            let _ = tokio::time::timeout(DEADLINE, stream.shutdown()).await;
        }
        Err(reason) => {
            accepted.record.deny(reason);
            stream.abort().await;
        }
    }
}

/// Says all that counts, and again whenever it changes. Returns how the connection ended, or why nothing can be said.
async fn inform(
    egress: &Egress,
    endpoint: &Endpoint,
    spec: &EndpointSpec,
    stream: &mut Stream,
    sent: &mut u64,
) -> Result<Reason, Reason> {
    let mut changes = Changes::watch(egress);
    let mut told: Option<String> = None;
    loop {
        match trusted(egress, endpoint, spec) {
            Ok(now) if told.as_deref() != Some(now.pem()) => {
                let bytes = trust::encode(now.pem()).map_err(|_| Reason::InterceptNeedsRestart)?;
                *sent += bytes.len() as u64;
                match tell(stream, &bytes).await {
                    Ok(true) => endpoint.pod_ca.confirm(&now),
                    Ok(false) => {}
                    Err(end) => return Ok(end),
                }
                told = Some(now.pem().to_owned());
            }
            // Nothing new; or nothing can be said now, and what was said before stays.
            Ok(_) => {}
            Err(_) if told.is_some() => {}
            Err(reason) => return Err(reason),
        }
        let mut more = [0];
        tokio::select! {
            () = changes.next(endpoint) => {}
            // Nobody asked.
            read = stream.read(&mut more) => {
                return Ok(if matches!(read, Ok(1..)) { Reason::Malformed } else { Reason::Done });
            }
        }
    }
}

/// Says it and waits for what became of it: whether it is installed, or how the connection ended.
async fn tell(stream: &mut Stream, bytes: &[u8]) -> Result<bool, Reason> {
    let sending = async {
        stream.write_all(bytes).await?;
        stream.flush().await
    };
    match tokio::time::timeout(DEADLINE, sending).await {
        Ok(Ok(())) => {}
        Ok(Err(_)) => return Err(Reason::Reset),
        Err(_) => return Err(Reason::IdleTimeout),
    }
    let mut answer = [0];
    match tokio::time::timeout(INSTALL, stream.read(&mut answer)).await {
        Ok(Ok(1..)) => match answer {
            [INSTALLED] => Ok(true),
            [NOT_INSTALLED] => Ok(false),
            _ => Err(Reason::Malformed),
        },
        Ok(_) => Err(Reason::Done),
        Err(_) => Err(Reason::IdleTimeout),
    }
}

/// What may change the answer.
struct Changes {
    policy: watch::Receiver<u64>,
    pod_cas: watch::Receiver<u64>,
}

impl Changes {
    fn watch(egress: &Egress) -> Self {
        Self { policy: egress.policy.watch(), pod_cas: egress.pod_cas.watch() }
    }

    /// Resolves when the answer may be another.
    async fn next(&mut self, endpoint: &Endpoint) {
        let due = endpoint.pod_ca.next_change().map(|due| due.duration_since(SystemTime::now()).unwrap_or(LOOK.1));
        let look = due.unwrap_or(LOOK.1).clamp(LOOK.0, LOOK.1);
        tokio::select! {
            // Both live as long as the process.
            _ = self.policy.changed() => {}
            _ = self.pod_cas.changed() => {}
            () = tokio::time::sleep(look) => {}
        }
    }
}

/// All that the guest shall trust.
fn trusted(egress: &Egress, endpoint: &Endpoint, spec: &EndpointSpec) -> Result<Told, Reason> {
    let workload = spec.workload.as_str();
    let policy = egress.policy.load().ok_or(Reason::NoPolicy)?;
    if !policy.data().workloads.contains_key(workload) {
        return Err(Reason::NoPolicy);
    }
    renew(egress, endpoint, &policy, workload)?;
    Ok(endpoint.pod_ca.told(SystemTime::now()))
}

/// The CA that signs for `host` in the pod of this guest, or why there is none.
///
/// One that signs itself is one that the guest was given. Below a root that the guest trusts there may be another at any
/// time: for names that were not in the rules then, or after a restart of the supervisor.
pub(super) fn signer(guest: &Guest, host: &str) -> Result<Arc<PodCa>, (Reason, &'static str)> {
    let (cell, egress) = (&guest.endpoint.pod_ca, &guest.egress);
    let found = cell.signer(host, SystemTime::now());
    if egress.pod_cas.have_a_root() && !(found.is_some() && cell.is_of_now(&egress.pod_cas)) {
        let policy = egress.policy.load().ok_or((Reason::NoPolicy, ""))?;
        renew(egress, &guest.endpoint, &policy, guest.spec.workload.as_str()).map_err(|reason| (reason, ""))?;
    }
    let now = SystemTime::now();
    cell.signer(host, now).ok_or_else(|| {
        let why = match cell.next_change() {
            None => NOT_ASKED,
            Some(_) if cell.may_cover(host, now) => NOT_CONFIRMED,
            Some(_) => NOT_COVERED,
        };
        (Reason::InterceptNeedsRestart, why)
    })
}

fn renew(egress: &Egress, endpoint: &Endpoint, policy: &Policy, workload: &str) -> Result<(), Reason> {
    let names = intercepted(policy, workload);
    endpoint.pod_ca.renew(&egress.pod_cas, workload, &names, SystemTime::now()).map_err(|error| cannot(&error))
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
