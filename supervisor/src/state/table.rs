//! The endpoint table: which endpoints there are, keyed by pod. Only the control service writes it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use nova_proto::ids::{PodUid, WorkloadId};

use super::budget::Budget;
use super::endpoint::{Backend, Endpoint};
use super::refusals::Refusals;

/// A snapshot of all endpoints, replaced as a whole.
#[derive(Default, Clone)]
pub struct Endpoints {
    by_pod: HashMap<PodUid, Arc<Endpoint>>,
    /// An address never changes within a generation, so this needs no update in place.
    by_ip: HashMap<IpAddr, Arc<Endpoint>>,
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
        self.by_ip.get(&ip)
    }

    /// The endpoint behind an AF_VSOCK peer. A CID may change within a generation, so this looks at all.
    #[must_use]
    pub fn by_cid(&self, cid: u32) -> Option<&Arc<Endpoint>> {
        self.iter().find(|endpoint| endpoint.spec().backend == Backend::Vsock { cid })
    }

    /// The endpoints of a workload, in no order.
    pub fn by_workload<'a>(&'a self, workload: &'a WorkloadId) -> impl Iterator<Item = &'a Arc<Endpoint>> {
        self.iter().filter(move |endpoint| endpoint.spec().workload == *workload)
    }

    /// All endpoints, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        self.by_pod.values()
    }

    /// How many endpoints there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_pod.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_pod.is_empty()
    }

    fn put(&mut self, endpoint: &Arc<Endpoint>) {
        let spec = endpoint.spec();
        self.take(&spec.pod_uid);
        self.by_pod.insert(spec.pod_uid.clone(), Arc::clone(endpoint));
        for ip in spec.ips() {
            self.by_ip.insert(ip, Arc::clone(endpoint));
        }
    }

    fn take(&mut self, pod: &PodUid) {
        let Some(gone) = self.by_pod.remove(pod) else { return };
        for ip in gone.spec().ips() {
            // Another pod may own the address by now.
            if self.by_ip.get(&ip).is_some_and(|owner| Arc::ptr_eq(owner, &gone)) {
                self.by_ip.remove(&ip);
            }
        }
    }
}

/// The table itself, and what its endpoints share.
pub struct EndpointTable {
    now: ArcSwap<Endpoints>,
    budget: Arc<Budget>,
    refusals: Refusals,
}

impl Default for EndpointTable {
    fn default() -> Self {
        Self::within(Budget::unlimited())
    }
}

impl EndpointTable {
    /// An empty table whose endpoints share `budget`.
    #[must_use]
    pub fn within(budget: Arc<Budget>) -> Self {
        Self { now: ArcSwap::default(), budget, refusals: Refusals::default() }
    }

    /// What the endpoints share.
    #[must_use]
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// What was asked for and is not in the table.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// The endpoints as of now.
    #[must_use]
    pub fn load(&self) -> Arc<Endpoints> {
        self.now.load_full()
    }

    /// Adds or replaces the endpoint of its pod.
    pub fn insert(&self, endpoint: &Arc<Endpoint>) {
        self.insert_all([endpoint]);
    }

    /// The same for several: the table is replaced once.
    pub fn insert_all<'a>(&self, endpoints: impl IntoIterator<Item = &'a Arc<Endpoint>> + Clone) {
        self.now.rcu(|now| {
            let mut next = Endpoints::clone(now);
            endpoints.clone().into_iter().for_each(|endpoint| next.put(endpoint));
            next
        });
    }

    /// Removes the endpoint of a pod.
    pub fn remove(&self, pod: &PodUid) {
        self.now.rcu(|now| {
            let mut next = Endpoints::clone(now);
            next.take(pod);
            next
        });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use nova_proto::ids::{BootToken, SpiffeId, TenantId};

    use super::*;
    use crate::state::endpoint::{EndpointLimits, EndpointSpec};

    pub(crate) fn endpoint(pod: &str, ip: &str, cid: u32) -> Arc<Endpoint> {
        Endpoint::new(EndpointSpec {
            workload: WorkloadId::new("x").expect("valid"),
            tenant: TenantId::new("t").expect("valid"),
            spiffe_id: SpiffeId::new("spiffe://dev.invalid/t/t/w/x").expect("valid"),
            pod_uid: PodUid::new(pod).expect("valid"),
            generation: 1,
            ip: ip.parse().expect("valid"),
            other_ip: None,
            backend: Backend::Vsock { cid },
            ports: Vec::new(),
            dependencies: Vec::new(),
            credentials: Default::default(),
            boot_token: BootToken([0; 16]),
            drain_timeout: Duration::from_secs(10),
            limits: EndpointLimits::default(),
        })
    }

    #[test]
    fn a_removed_endpoint_is_found_by_nothing() {
        let table = EndpointTable::default();
        let a = endpoint("a", "10.0.0.1", 3);
        table.insert(&a);
        table.remove(&a.spec().pod_uid);
        let now = table.load();
        assert!(now.by_ip("10.0.0.1".parse().expect("valid")).is_none());
        assert!(now.by_cid(3).is_none() && now.is_empty());
    }

    #[test]
    fn an_endpoint_is_found_by_either_of_its_addresses_and_by_none_when_it_is_gone() {
        let table = EndpointTable::default();
        let spec = endpoint("a", "10.0.0.1", 3).spec();
        let other = "fd00::1".parse().expect("valid");
        let both = Endpoint::new(EndpointSpec { other_ip: Some(other), ..EndpointSpec::clone(&spec) });
        table.insert(&both);
        assert!(table.load().by_ip(spec.ip).is_some() && table.load().by_ip(other).is_some());
        table.remove(&spec.pod_uid);
        assert!(table.load().by_ip(spec.ip).is_none() && table.load().by_ip(other).is_none());
    }

    #[test]
    fn removing_the_old_owner_of_an_address_leaves_the_new_one() {
        let table = EndpointTable::default();
        let (old, new) = (endpoint("a", "10.0.0.1", 3), endpoint("b", "10.0.0.1", 4));
        table.insert(&old);
        table.insert(&new);
        table.remove(&old.spec().pod_uid);
        let now = table.load();
        let owner = now.by_ip("10.0.0.1".parse().expect("valid")).expect("b owns it");
        assert!(Arc::ptr_eq(owner, &new));
    }

    #[test]
    fn a_new_generation_takes_the_old_ones_place_also_by_address() {
        let table = EndpointTable::default();
        table.insert(&endpoint("a", "10.0.0.1", 3));
        let next = endpoint("a", "10.0.0.2", 3);
        table.insert(&next);
        let now = table.load();
        assert_eq!(now.len(), 1);
        assert!(now.by_ip("10.0.0.1".parse().expect("valid")).is_none());
        assert!(now.by_cid(3).is_some_and(|found| Arc::ptr_eq(found, &next)));
        assert_eq!(now.by_workload(&next.spec().workload).count(), 1);
    }
}
