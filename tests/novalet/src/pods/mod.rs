//! The pods of the node: which there are, what each should be doing, and what it does.

mod actor;
mod endpoint;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::guest::config::LinkPorts;
use crate::guest::{Guests, PodFolders};
use crate::history::History;
use crate::ipam::Ipam;
use crate::placement::{Placement, WantedState};
use crate::routes::Routes;
use crate::table::Table;
use actor::Actor;

/// Everything that the pods share.
#[derive(Debug)]
pub struct Node {
    /// What supervisors are told.
    pub table: Arc<Table>,
    /// How guests are started.
    pub guests: Guests,
    /// Who adds routes.
    pub routes: Routes,
    /// Addresses.
    pub ipam: Ipam,
    /// What happened.
    pub history: History,
    /// Ports of the guest channel.
    pub ports: LinkPorts,
    /// `<guest root>`.
    pub guest_root: PathBuf,
    /// `<run dir>`.
    pub run_dir: PathBuf,
    /// Group of the pods' shared folders.
    pub gid: Option<u32>,
    /// Added to a pod's drain time before the agent stops waiting.
    pub drain_margin: Duration,
    /// Highest generation of each pod so far.
    pub generations: Mutex<BTreeMap<String, u64>>,
}

impl Node {
    fn folders(&self, pod_uid: &str) -> PodFolders {
        PodFolders {
            shared: self.guest_root.join(pod_uid),
            own: self.run_dir.join("pods").join(pod_uid),
            gid: self.gid,
        }
    }

    /// A generation above all former ones of the pod, and at least `least`.
    fn next_generation(&self, pod_uid: &str, least: u64) -> u64 {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let next = generations.get(pod_uid).map_or(least, |last| least.max(last + 1));
        generations.insert(pod_uid.to_owned(), next);
        next
    }
}

/// Where a pod is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Nothing of it runs, and nothing should.
    Stopped,
    /// Waits for its address.
    WaitingForIp,
    /// Its guest starts.
    Starting,
    /// Told `PENDING`; waits for `HEALTHY`, or is to stay so.
    Pending,
    /// Told `READY`; waits for `SERVING`.
    Ready,
    /// Proven to serve.
    Running,
    /// Told `DRAINING`.
    Draining,
    /// Could not start, or its guest ended by itself.
    Failed,
}

/// What a pod does, for the operator.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PodStatus {
    /// Key of the pod.
    pub pod_uid: String,
    /// Its workload.
    pub workload: String,
    /// Tenant of the workload.
    pub tenant: String,
    /// Its address.
    pub workload_ip: String,
    /// Its generation; 0 before the first start.
    pub generation: u64,
    /// Where it is in its life.
    pub phase: Phase,
    /// Why, where that needs a word.
    pub reason: String,
    /// Its processes: name and process id.
    pub pids: Vec<(String, u32)>,
    /// Folder that it shares with the supervisor.
    pub shared_folder: PathBuf,
    /// Folder with its logs.
    pub own_folder: PathBuf,
}

/// What should become of a pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    placement: Placement,
    goal: Goal,
    restarts: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// As the placement says.
    AsPlaced,
    /// Drained by the operator.
    Stopped,
    /// Drained and forgotten.
    Gone,
    /// Stopped and forgotten at once: the agent ends.
    Killed,
}

impl Wanted {
    fn is_up(&self) -> bool {
        self.goal == Goal::AsPlaced && self.placement.state != WantedState::Draining
    }
}

/// The pods.
#[derive(Debug)]
pub struct Pods {
    node: Arc<Node>,
    handles: BTreeMap<String, Handle>,
}

#[derive(Debug)]
struct Handle {
    wanted: watch::Sender<Wanted>,
    status: watch::Receiver<PodStatus>,
    task: JoinHandle<()>,
}

/// An operator names a pod that is not placed here.
#[derive(Debug, thiserror::Error)]
#[error("no pod {0} on this node; `novalet-ref status` lists them")]
pub struct UnknownPod(String);

impl Pods {
    /// No pods yet.
    #[must_use]
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, handles: BTreeMap::new() }
    }

    /// Makes `placements` the pods of this node: new ones start, missing ones drain and go, changed ones change.
    pub fn place(&mut self, placements: Vec<Placement>) {
        self.handles.retain(|_, handle| !handle.task.is_finished());
        for (uid, handle) in &self.handles {
            if !placements.iter().any(|placement| placement.pod_uid == *uid) {
                handle.want(|wanted| wanted.goal = Goal::Gone);
            }
        }
        for placement in placements {
            match self.handles.get(&placement.pod_uid) {
                Some(handle) => handle.want(|wanted| {
                    // What the operator stopped stays stopped until its placement changes.
                    if wanted.placement != placement || wanted.goal == Goal::Gone {
                        wanted.goal = Goal::AsPlaced;
                    }
                    wanted.placement = placement;
                }),
                None => {
                    self.handles.insert(placement.pod_uid.clone(), Handle::start(&self.node, placement));
                }
            }
        }
    }

    /// Drains a pod and stops its guest; it stays so until its placement changes or somebody restarts it.
    ///
    /// # Errors
    /// When there is no such pod.
    pub fn drain(&self, pod_uid: &str) -> Result<watch::Receiver<PodStatus>, UnknownPod> {
        let handle = self.handle(pod_uid)?;
        handle.want(|wanted| wanted.goal = Goal::Stopped);
        Ok(handle.status.clone())
    }

    /// Drains a pod and starts its guest anew, one generation higher.
    ///
    /// # Errors
    /// When there is no such pod.
    pub fn restart(&self, pod_uid: &str) -> Result<watch::Receiver<PodStatus>, UnknownPod> {
        let handle = self.handle(pod_uid)?;
        handle.want(|wanted| {
            wanted.goal = Goal::AsPlaced;
            wanted.restarts += 1;
        });
        Ok(handle.status.clone())
    }

    /// Ends all pods: drained when `gently`, else at once. Returns their tasks.
    pub fn end(&mut self, gently: bool) -> Vec<JoinHandle<()>> {
        for handle in self.handles.values() {
            handle.want(|wanted| wanted.goal = if gently { Goal::Gone } else { Goal::Killed });
        }
        if gently {
            return Vec::new();
        }
        std::mem::take(&mut self.handles).into_values().map(|handle| handle.task).collect()
    }

    /// Whether no pod is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.handles.values().all(|handle| handle.task.is_finished())
    }

    /// What all pods do.
    #[must_use]
    pub fn status(&self) -> Vec<PodStatus> {
        let live = self.handles.values().filter(|handle| !handle.task.is_finished());
        live.map(|handle| handle.status.borrow().clone()).collect()
    }

    fn handle(&self, pod_uid: &str) -> Result<&Handle, UnknownPod> {
        let handle = self.handles.get(pod_uid).filter(|handle| !handle.task.is_finished());
        handle.ok_or_else(|| UnknownPod(pod_uid.to_owned()))
    }
}

impl Handle {
    fn start(node: &Arc<Node>, placement: Placement) -> Self {
        let folders = node.folders(&placement.pod_uid);
        let (status, seen) = watch::channel(PodStatus {
            pod_uid: placement.pod_uid.clone(),
            workload: placement.workload.clone(),
            tenant: placement.tenant.clone(),
            workload_ip: placement.workload_ip.to_string(),
            generation: 0,
            phase: Phase::Stopped,
            reason: String::new(),
            pids: Vec::new(),
            shared_folder: folders.shared.clone(),
            own_folder: folders.own.clone(),
        });
        let (wanted, orders) = watch::channel(Wanted { placement, goal: Goal::AsPlaced, restarts: 0 });
        let task = tokio::spawn(Actor::new(Arc::clone(node), orders, status, folders).run());
        Self { wanted, status: seen, task }
    }

    fn want(&self, change: impl FnOnce(&mut Wanted)) {
        self.wanted.send_if_modified(|wanted| {
            let before = wanted.clone();
            change(wanted);
            *wanted != before
        });
    }
}
