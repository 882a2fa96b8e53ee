//! What the node holds for a pod, endpoint, route and address, and the order in which it is given back.

use std::sync::Arc;

use nova_proto::control;
use nova_proto::control::State;
use tokio::time::Instant;

use super::{Actor, Held};
use crate::history::Step;
use crate::pods::{Goal, Phase};
use crate::routes::RouteError;

impl Actor {
    /// Adds the route once a supervisor holds the SVID: from then on the pod may call out (K1).
    pub(super) async fn route(&mut self) {
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

    pub(super) async fn take_down(&mut self, goal: Goal) {
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
    pub(super) async fn end_life(&mut self, goal: Goal, for_good: bool) {
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
    pub(super) async fn unregister(&mut self) {
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

    pub(super) fn release_address(&mut self) {
        let Some(held) = self.held.take() else { return };
        let uid = self.uid();
        if self.node.ipam.release(held.address, &uid) {
            self.node.history.add(&uid, held.generation, Step::IpCooling, held.address.to_string());
        }
    }

    pub(super) fn uid(&self) -> String {
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
}
