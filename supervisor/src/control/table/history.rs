//! Which generation each pod that is gone had, so that a late message cannot bring it back.

use std::collections::{HashMap, VecDeque};

use nova_proto::ids::PodUid;

use super::rules::{older_generation, reject};
use crate::control::order::{Key, Order, Rejection};
use crate::control::why::Why;

/// Pods that are remembered; pod uids do not come back, so this only has to outlast messages in flight.
const MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct History {
    gone: HashMap<PodUid, Gone>,
    order: VecDeque<PodUid>,
}

struct Gone {
    generation: u64,
    lost: bool,
}

impl History {
    /// `lost`: its guest was lost, so this generation must never serve again.
    pub(super) fn remember(&mut self, key: Key, lost: bool) {
        let Key { pod, generation } = key;
        if self.gone.insert(pod.clone(), Gone { generation, lost }).is_none() {
            self.order.push_back(pod);
        }
        if self.order.len() > MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.gone.remove(&oldest);
        }
    }

    /// The generation the pod had, if it is remembered and `order` may follow it.
    pub(super) fn check(&self, order: &Order) -> Result<Option<u64>, Rejection> {
        let Some(gone) = self.gone.get(&order.spec.pod_uid) else { return Ok(None) };
        if order.spec.generation < gone.generation {
            return Err(older_generation(order, gone.generation));
        }
        if order.spec.generation == gone.generation && gone.lost {
            let message = format!("the guest of generation {} was lost; send a newer generation", gone.generation);
            return Err(reject(order, Why::PresenceLost, message));
        }
        Ok(Some(gone.generation))
    }

    pub(super) fn clear(&mut self) {
        self.gone.clear();
        self.order.clear();
    }
}
