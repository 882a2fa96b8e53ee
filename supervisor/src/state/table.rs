//! The endpoint table: which endpoints there are, keyed by pod. Only the control service writes it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use nova_proto::ids::PodUid;

use super::endpoint::Endpoint;

/// A snapshot of all endpoints, replaced as a whole.
#[derive(Default, Clone)]
pub struct Endpoints {
    by_pod: HashMap<PodUid, Arc<Endpoint>>,
}

impl Endpoints {
    /// The endpoint of a pod.
    #[must_use]
    pub fn get(&self, pod: &PodUid) -> Option<&Arc<Endpoint>> {
        self.by_pod.get(pod)
    }

    /// The endpoint that owns an address.
    #[must_use]
    pub fn by_ip(&self, ip: IpAddr) -> Option<&Arc<Endpoint>> {
        self.by_pod.values().find(|endpoint| endpoint.spec().ip == ip)
    }

    /// All endpoints, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        self.by_pod.values()
    }
}

/// The table itself.
#[derive(Default)]
pub struct EndpointTable {
    now: ArcSwap<Endpoints>,
}

impl EndpointTable {
    /// The endpoints as of now.
    #[must_use]
    pub fn load(&self) -> Arc<Endpoints> {
        self.now.load_full()
    }

    /// Adds or replaces the endpoint of its pod.
    pub fn insert(&self, endpoint: &Arc<Endpoint>) {
        let pod = endpoint.spec().pod_uid.clone();
        self.now.rcu(|now| {
            let mut next = Endpoints::clone(now);
            next.by_pod.insert(pod.clone(), Arc::clone(endpoint));
            next
        });
    }

    /// Removes the endpoint of a pod.
    pub fn remove(&self, pod: &PodUid) {
        self.now.rcu(|now| {
            let mut next = Endpoints::clone(now);
            next.by_pod.remove(pod);
            next
        });
    }
}
