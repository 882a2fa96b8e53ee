//! One task per pod walks it through its life (settled points K1, K6, K8, K11, K21):
//!
//! ```text
//! address -> folders -> guest -> PENDING -(HEALTHY)-> READY -(SERVING)-> running
//! running -> DRAINING -(DRAINED by every slot, or time)-> remove -> guest stopped -> folders gone -> address rests
//! restart: DRAINING -> guest stopped -> guest -> PENDING with a higher generation; the address is kept
//! ```
//!
//! The supervisor never learns that a pod is ready before it has proven that it can reach it, and a guest is never
//! stopped while a supervisor may still hold connections to it, unless the drain time is over.

mod hold;

use std::net::IpAddr;
use std::sync::Arc;

use nova_proto::control;
use nova_proto::control::State;
use tokio::sync::watch;

use super::endpoint::endpoint;
use super::{Goal, Node, Phase, PodStatus, Wanted};
use crate::guest::{Boot, Guest, PodFolders};
use crate::history::Step;
use crate::placement::{Placement, WantedState};

pub(super) struct Actor {
    node: Arc<Node>,
    orders: watch::Receiver<Wanted>,
    acks: watch::Receiver<u64>,
    status: watch::Sender<PodStatus>,
    folders: PodFolders,
    life: Option<Life>,
    /// What the node holds for the pod, also between two boots.
    held: Option<Held>,
    /// The order that failed: not tried again until there is another one.
    failed: Option<Wanted>,
}

/// One boot of the pod.
struct Life {
    placement: Placement,
    restarts: u64,
    generation: u64,
    token: [u8; 16],
    guest: Guest,
    told: State,
}

/// An endpoint in the table, and the address in it.
#[derive(Clone, Copy)]
struct Held {
    generation: u64,
    address: IpAddr,
    routed: bool,
}

impl Actor {
    pub(super) fn new(
        node: Arc<Node>,
        orders: watch::Receiver<Wanted>,
        status: watch::Sender<PodStatus>,
        folders: PodFolders,
    ) -> Self {
        let acks = node.table.changes();
        Self { node, orders, acks, status, folders, life: None, held: None, failed: None }
    }

    pub(super) async fn run(mut self) {
        loop {
            self.acks.mark_unchanged();
            let wanted = self.orders.borrow_and_update().clone();
            if self.failed.as_ref().is_some_and(|failed| *failed != wanted) {
                self.failed = None;
            }
            if wanted.is_up() {
                self.go_up(&wanted).await;
            } else {
                self.take_down(wanted.goal).await;
                // No await between this look and the return: an order that brings the pod back is seen, or finds no task.
                if matches!(self.orders.borrow().goal, Goal::Gone | Goal::Killed) {
                    return;
                }
            }
            self.wait().await;
        }
    }

    /// One step towards what is wanted; waiting for answers happens outside.
    async fn go_up(&mut self, wanted: &Wanted) {
        if self.failed.is_some() {
            return;
        }
        let stale = self.life.as_ref().is_some_and(|life| life.is_stale(wanted));
        if stale {
            let moves =
                self.life.as_ref().is_some_and(|life| life.placement.workload_ip != wanted.placement.workload_ip);
            self.end_life(wanted.goal, moves).await;
            self.orders.mark_changed();
            return;
        }
        if self.life.is_none() {
            self.start(wanted).await;
        }
        self.route().await;
        self.advance(wanted);
    }

    async fn start(&mut self, wanted: &Wanted) {
        let placement = wanted.placement.clone();
        let generation = self.node.next_generation(&placement.pod_uid, placement.generation);
        if !self.take_address(&placement, generation).await {
            return;
        }
        self.show(Phase::Starting, generation, "");
        let token = match placement.boot_token.map_or_else(fresh_token, Ok) {
            Ok(token) => token,
            Err(error) => return self.fail(wanted, generation, &error.to_string()),
        };
        let guest = match self.boot(&placement, token, generation).await {
            Ok(guest) => guest,
            Err(error) => {
                self.unregister().await;
                self.folders.remove(true);
                self.release_address();
                return self.fail(wanted, generation, &format!("{error:#}"));
            }
        };
        if let Some(held) = &mut self.held {
            held.generation = generation;
        }
        let told = State::Unspecified;
        let life = Life { placement, restarts: wanted.restarts, generation, token, guest, told };
        self.life = Some(life);
        self.tell(State::Pending, Step::Pending);
        self.show(Phase::Pending, generation, "waiting for a supervisor to reach the guest");
    }

    /// Takes the pod's address; gives up, and says no, when the order changes meanwhile.
    async fn take_address(&mut self, placement: &Placement, generation: u64) -> bool {
        let node = Arc::clone(&self.node);
        let (ip, uid) = (placement.workload_ip, placement.pod_uid.as_str());
        // Between two boots the table still has the former generation, which goes if this one fails.
        let generation_held = self.held.map_or(generation, |held| held.generation);
        let routed = self.held.is_some_and(|held| held.routed);
        self.held = Some(Held { generation: generation_held, address: ip, routed });
        if node.ipam.try_acquire(ip, uid).is_ok() {
            return true;
        }
        node.history.add(&placement.pod_uid, generation, Step::WaitingForIp, placement.workload_ip.to_string());
        self.show(Phase::WaitingForIp, generation, "the address is another pod's, or rests after one");
        tokio::select! {
            () = node.ipam.acquire(ip, uid) => true,
            _ = self.orders.changed() => {
                self.orders.mark_changed();
                false
            }
        }
    }

    async fn boot(&self, placement: &Placement, token: [u8; 16], generation: u64) -> anyhow::Result<Guest> {
        let uid = &placement.pod_uid;
        self.folders.make(&placement.socket_file)?;
        self.node.history.add(uid, generation, Step::FoldersMade, "");
        let boot = Boot { placement, token, ports: &self.node.ports, folders: &self.folders };
        let guest = self.node.guests.start(&boot).await?;
        let pids: Vec<_> = guest.pids().iter().map(|(name, pid)| format!("{name} {pid}")).collect();
        self.node.history.add(uid, generation, Step::GuestStarted, pids.join(", "));
        Ok(guest)
    }

    /// Tells the supervisor what the answers so far allow.
    fn advance(&mut self, wanted: &Wanted) {
        let Some(life) = &mut self.life else { return };
        let changed = life.placement != wanted.placement;
        life.placement = wanted.placement.clone();
        let (uid, generation, told) = (life.placement.pod_uid.clone(), life.generation, life.told);
        let table = Arc::clone(&self.node.table);
        let reached = |phases: &[control::Phase]| table.any_reached(&uid, generation, phases);
        if wanted.placement.state == WantedState::Pending {
            if told != State::Pending || changed {
                self.tell(State::Pending, Step::Pending);
            }
            return self.show(Phase::Pending, generation, "placed as pending");
        }
        match told {
            State::Pending if reached(&[control::Phase::Healthy, control::Phase::Serving]) => {
                self.node.history.add(&uid, generation, Step::Healthy, "");
                self.tell(State::Ready, Step::Ready);
                self.show(Phase::Ready, generation, "waiting for a supervisor to serve it");
            }
            _ if changed => self.tell(told, Step::Updated),
            _ => {}
        }
        if told == State::Ready {
            self.note_serving(&uid, generation, reached(&[control::Phase::Serving]));
        }
    }

    /// READY is our order, SERVING is the proof (K21). A running pod stays so while a supervisor is away or restarts.
    fn note_serving(&self, uid: &str, generation: u64, serves: bool) {
        let already = self.status.borrow().phase == Phase::Running;
        if serves && !already {
            self.node.history.add(uid, generation, Step::Running, "");
            self.show(Phase::Running, generation, "");
        }
    }

    /// Waits for another order, an answer, or the guest's unexpected end.
    async fn wait(&mut self) {
        let guest_ends = async {
            match &self.life {
                Some(life) => life.guest.ended().await,
                None => std::future::pending().await,
            }
        };
        let how = tokio::select! {
            _ = self.orders.changed() => return self.orders.mark_changed(),
            _ = self.acks.changed() => return,
            how = guest_ends => how,
        };
        let generation = self.life.as_ref().map_or(0, |life| life.generation);
        let wanted = self.orders.borrow().clone();
        self.end_life(wanted.goal, true).await;
        self.fail(&wanted, generation, &how);
    }

    fn tell(&mut self, state: State, step: Step) {
        let Some(life) = &mut self.life else { return };
        life.told = state;
        self.node.table.upsert(endpoint(&life.placement, life.generation, &life.token, state));
        self.node.history.add(&life.placement.pod_uid, life.generation, step, "");
    }

    fn fail(&mut self, wanted: &Wanted, generation: u64, why: &str) {
        self.node.history.add(&wanted.placement.pod_uid, generation, Step::Failed, why);
        let remedy = format!("{why}; then `novalet-ref restart {}`", wanted.placement.pod_uid);
        self.show(Phase::Failed, generation, &remedy);
        self.failed = Some(wanted.clone());
    }

    fn show(&self, phase: Phase, generation: u64, reason: &str) {
        let pids = self.life.as_ref().map(|life| life.guest.pids()).unwrap_or_default();
        let address = self.orders.borrow().placement.workload_ip.to_string();
        self.status.send_modify(|status| {
            status.phase = phase;
            status.generation = generation;
            status.reason = reason.to_owned();
            status.workload_ip = address;
            status.pids = pids.iter().map(|(name, pid)| ((*name).to_owned(), *pid)).collect();
        });
    }
}

impl Life {
    fn is_stale(&self, wanted: &Wanted) -> bool {
        self.restarts != wanted.restarts
            || self.placement.needs_restart(&wanted.placement)
            || wanted.placement.generation > self.generation
    }
}

fn fresh_token() -> Result<[u8; 16], getrandom::Error> {
    let mut token = [0; 16];
    getrandom::fill(&mut token).map(|()| token)
}
