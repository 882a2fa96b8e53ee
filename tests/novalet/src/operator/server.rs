//! Serves the operator's socket.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Ack, Pod, Reply, Request, Slot, Status};
use crate::agent::Agent;
use crate::pods::{Phase, PodStatus};

/// Longest request line in bytes.
const LINE_MAX: usize = 4096;
/// Longest time that a drain or a restart may take before the operator gets an answer.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often `wait` and `stop` look.
const LOOK: Duration = Duration::from_millis(20);

/// Accepts operators until it is dropped.
pub async fn serve(listener: UnixListener, agent: Arc<Agent>) {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            let agent = Arc::clone(&agent);
            tokio::spawn(async move { talk(stream, &agent).await });
        } else {
            tokio::time::sleep(LOOK).await;
        }
    }
}

async fn talk(stream: UnixStream, agent: &Agent) {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(tokio::io::AsyncReadExt::take(read, LINE_MAX as u64));
    let mut line = String::new();
    while read.read_line(&mut line).await.is_ok_and(|count| count > 0) {
        let reply = match serde_json::from_str(&line) {
            Ok(request) => answer(request, agent).await,
            Err(error) => Reply::refused(format!("not a request: {error}")),
        };
        let mut text = serde_json::to_string(&reply).unwrap_or_default();
        text.push('\n');
        if write.write_all(text.as_bytes()).await.is_err() {
            return;
        }
        line.clear();
        read.get_mut().set_limit(LINE_MAX as u64);
    }
}

async fn answer(request: Request, agent: &Agent) -> Reply {
    match request {
        Request::Status => Reply::with_status(status(agent)),
        Request::Drain { pod_uid } => {
            let drained = agent.pods().drain(&pod_uid);
            match drained {
                Ok(seen) => watch_pod(seen, Box::new(|pod| pod.phase == Phase::Stopped)).await,
                Err(error) => Reply::refused(error.to_string()),
            }
        }
        Request::Restart { pod_uid } => {
            let restarted = agent.pods().restart(&pod_uid);
            match restarted {
                Ok(seen) => {
                    let before = seen.borrow().generation;
                    watch_pod(seen, Box::new(move |pod| pod.generation > before && has_started(pod.phase))).await
                }
                Err(error) => Reply::refused(error.to_string()),
            }
        }
        Request::Wait { phase, pod_uid, timeout_ms } => wait(agent, phase, pod_uid.as_deref(), timeout_ms).await,
        Request::Stop => {
            agent.stop_gently();
            while !agent.pods().is_empty() {
                tokio::time::sleep(LOOK).await;
            }
            Reply { ok: true, ..Reply::default() }
        }
    }
}

/// Whether a pod is where the operator waits for it to be.
type Done = Box<dyn FnMut(&PodStatus) -> bool + Send>;

fn has_started(phase: Phase) -> bool {
    matches!(phase, Phase::Pending | Phase::Ready | Phase::Running | Phase::Failed)
}

async fn watch_pod(mut seen: watch::Receiver<PodStatus>, done: Done) -> Reply {
    match tokio::time::timeout(PATIENCE, seen.wait_for(done)).await {
        Ok(Ok(pod)) if pod.phase == Phase::Failed => Reply::refused(pod.reason.clone()),
        Ok(Ok(pod)) => Reply { ok: true, pod: Some(pod.clone()), ..Reply::default() },
        Ok(Err(_)) => Reply::refused("the pod went away meanwhile"),
        Err(_) => Reply::refused("not done yet; `novalet-ref status` shows how far it is"),
    }
}

async fn wait(agent: &Agent, phase: Phase, pod_uid: Option<&str>, timeout_ms: u64) -> Reply {
    let deadline = Instant::now() + Duration::from_millis(timeout_ms);
    loop {
        if are_there(&agent.pods().status(), phase, pod_uid) {
            return Reply::with_status(status(agent));
        }
        if Instant::now() >= deadline {
            let status = status(agent);
            return Reply { ok: false, error: Some(not_there(&status)), status: Some(status), pod: None };
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn are_there(pods: &[PodStatus], phase: Phase, pod_uid: Option<&str>) -> bool {
    let mut asked = pods.iter().filter(|pod| pod_uid.is_none_or(|uid| pod.pod_uid == uid)).peekable();
    asked.peek().is_some() && asked.all(|pod| pod.phase == phase)
}

fn not_there(status: &Status) -> String {
    let pods = status.pods.iter().map(|pod| format!("{} is {:?}", pod.status.pod_uid, pod.status.phase).to_lowercase());
    format!("not there in time: {}; `novalet-ref status` says why", pods.collect::<Vec<_>>().join(", "))
}

/// The whole node as it is now.
pub(crate) fn status(agent: &Agent) -> Status {
    let node = agent.node();
    let (epoch, revision) = node.table.version();
    let slots = node.table.slots().into_iter().map(|(key, info)| Slot {
        slot: key.slot,
        dedicated: key.dedicated,
        instance: info.instance,
        version: info.version,
        bundle_revision: info.bundle_revision,
        applied: info.applied,
        live: info.live,
    });
    let cooling = node.ipam.cooling().into_iter();
    let left = |left: Duration| u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    Status {
        pid: std::process::id(),
        guests: node.guests.name().to_owned(),
        epoch,
        revision,
        slots: slots.collect(),
        pods: agent.pods().status().into_iter().map(|status| pod(agent, status)).collect(),
        cooldown: cooling.map(|(ip, rest)| (ip.to_string(), left(rest))).collect(),
        mistakes: agent.mistakes(),
        history: node.history.all(),
    }
}

fn pod(agent: &Agent, status: PodStatus) -> Pod {
    let answers = agent.node().table.statuses(&status.pod_uid, status.generation);
    let acks = answers.into_iter().map(|answer| {
        let said = answer.status.unwrap_or_default();
        let phase = if said.phase == 0 { String::new() } else { said.phase().as_str_name().to_owned() };
        Ack {
            slot: answer.slot.slot,
            dedicated: answer.slot.dedicated,
            live: answer.live,
            phase,
            reason: said.reason,
            message: said.message,
            open_connections: said.open_connections,
        }
    });
    Pod { acks: acks.collect(), status }
}

impl Reply {
    fn refused(error: impl Into<String>) -> Self {
        Self { ok: false, error: Some(error.into()), ..Self::default() }
    }

    fn with_status(status: Status) -> Self {
        Self { ok: true, status: Some(status), ..Self::default() }
    }
}
