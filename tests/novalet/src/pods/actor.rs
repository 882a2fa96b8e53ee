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

use std::net::IpAddr;
use std::sync::Arc;

use nova_proto::control;
use nova_proto::control::State;
use tokio::sync::watch;
use tokio::time::Instant;

use super::endpoint::endpoint;
use super::{Goal, Node, Phase, PodStatus, Wanted};
use crate::guest::{Boot, Guest, PodFolders};
use crate::history::Step;
use crate::placement::{Placement, WantedState};
use crate::routes::RouteError;

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

    /// Adds the route once a supervisor holds the SVID: from then on the pod may call out (K1).
    async fn route(&mut self) {
        const HAVE_SVID: [control::Phase; 5] = [
            control::Phase::SvidReady,
            control::Phase::Listening,
            control::Phase::Healthy,
            control::Phase::Serving,
            control::Phase::Unhealthy,
        ];
        let Some(held) = self.held.filter(|held| !held.routed && self.life.is_some()) else { return };
        if !self.node.table.any_reached(&self.uid(), held.generation, &HAVE_SVID) {
            return;
        }
        match self.node.routes.add(held.address).await {
            Ok(false) => {}
            Ok(true) => self.node.history.add(&self.uid(), held.generation, Step::RouteAdded, held.address.to_string()),
            Err(error) => return self.warn_about_route(held, &error),
        }
        self.held = Some(Held { routed: true, ..held });
    }

    fn warn_about_route(&self, held: Held, error: &RouteError) {
        let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
        self.node.history.add(&self.uid(), held.generation, Step::Failed, format!("{error}: {cause}"));
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

    async fn take_down(&mut self, goal: Goal) {
        if self.life.is_some() {
            self.end_life(goal, true).await;
        }
        self.unregister().await;
        self.release_address();
        self.folders.remove(goal != Goal::Gone);
        let generation = self.status.borrow().generation;
        self.show(Phase::Stopped, generation, "");
    }

    /// Drains, stops the guest and, when the pod does not come straight back, forgets endpoint and address.
    async fn end_life(&mut self, goal: Goal, for_good: bool) {
        if goal != Goal::Killed {
            self.drain().await;
        }
        if for_good {
            self.unregister().await;
        }
        let Some(life) = self.life.take() else { return };
        life.guest.stop().await;
        self.node.history.add(&life.placement.pod_uid, life.generation, Step::GuestStopped, "");
        self.status.send_modify(|status| status.pids.clear());
        if for_good {
            self.release_address();
        }
    }

    /// Forgets the endpoint, and then its route (K6): a route that goes first would black-hole live connections.
    async fn unregister(&mut self) {
        let Some(held) = self.held else { return };
        let uid = self.uid();
        if self.node.table.remove(&uid, held.generation) {
            self.node.history.add(&uid, held.generation, Step::Removed, "");
        }
        if !held.routed {
            return;
        }
        self.held = Some(Held { routed: false, ..held });
        match self.node.routes.remove(held.address).await {
            Ok(false) => {}
            Ok(true) => self.node.history.add(&uid, held.generation, Step::RouteRemoved, held.address.to_string()),
            Err(error) => self.warn_about_route(held, &error),
        }
    }

    fn release_address(&mut self) {
        let Some(held) = self.held.take() else { return };
        let uid = self.uid();
        if self.node.ipam.release(held.address, &uid) {
            self.node.history.add(&uid, held.generation, Step::IpCooling, held.address.to_string());
        }
    }

    fn uid(&self) -> String {
        self.status.borrow().pod_uid.clone()
    }

    async fn drain(&mut self) {
        let Some(life) = &self.life else { return };
        let (uid, generation) = (life.placement.pod_uid.clone(), life.generation);
        let deadline = Instant::now() + life.placement.drain_timeout + self.node.drain_margin;
        self.show(Phase::Draining, generation, "");
        self.tell(State::Draining, Step::Draining);
        let node = Arc::clone(&self.node);
        let step = loop {
            self.acks.mark_unchanged();
            if node.table.is_drained(&uid, generation) {
                break Step::Drained;
            }
            tokio::select! {
                _ = self.acks.changed() => {}
                _ = self.orders.wait_for(|wanted| wanted.goal == Goal::Killed) => break Step::DrainTimedOut,
                () = tokio::time::sleep_until(deadline) => break Step::DrainTimedOut,
            }
        };
        // An order that came meanwhile must be seen by the loop above us.
        self.orders.mark_changed();
        node.history.add(&uid, generation, step, "");
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
