//! What each data-plane thread runs.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};

use crate::accept::Service;
use crate::audit::AuditSink;
use crate::config::ResolverConfig;
use crate::conn::Registry;
use crate::credentials::Credentials;
use crate::decide::Decider;
use crate::dial::{Dialer, Outside};
use crate::egress::{Egress, PresenceLost};
use crate::guestlink::LinkPorts;
use crate::identity::PodCas;
use crate::ingress::{Ingress, KnownBy};
use crate::net::guard::AddressGuard;
use crate::net::resolve::Resolver;
use crate::state::endpoint::{Endpoint, Slot};
use crate::state::policy::PolicyCell;
use crate::state::port::OpenPort;
use crate::state::table::EndpointTable;

/// What all threads share: read on their paths, never locked there.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) endpoints: Arc<EndpointTable>,
    pub(super) policy: Arc<PolicyCell>,
    pub(super) audit: Arc<AuditSink>,
    pub(super) registry: Arc<Registry>,
    pub(super) known_by: KnownBy,
    pub(super) links: LinkPorts,
    pub(super) guard: AddressGuard,
    pub(super) resolver: ResolverConfig,
    pub(super) presence_lost: PresenceLost,
    pub(super) credentials: Arc<Credentials>,
    pub(super) outside: Outside,
    pub(super) pod_cas: Arc<PodCas>,
}

/// One thread's services.
pub(super) struct DataService {
    ingress: Rc<Ingress>,
    egress: Rc<Egress>,
    dialer: Rc<Dialer>,
    audit: Arc<AuditSink>,
}

impl DataService {
    /// Makes the services of this thread, on its runtime.
    pub(super) fn new(shared: Shared) -> io::Result<Self> {
        let Shared { endpoints, policy, audit, registry, known_by, links, guard, resolver, .. } = shared;
        let (presence_lost, credentials, outside) = (shared.presence_lost, shared.credentials, shared.outside);
        let pod_cas = shared.pod_cas;
        // Every record counts in it, so each thread has a handle of its own.
        let audit = Arc::new(AuditSink::clone(&audit));
        let decider = Decider::new(Arc::clone(&policy), Arc::clone(&audit), credentials);
        let decider = Rc::new(decider.able(outside.parents.abilities()));
        let trust = Arc::clone(known_by.verifier.trust());
        let dialer = Rc::new(Dialer::new(endpoints, links, guard, Resolver::new(&resolver)?, trust, outside));
        let ingress = Ingress::new(
            Rc::clone(&decider),
            Rc::clone(&dialer),
            Arc::clone(&audit),
            Arc::clone(&policy),
            Arc::clone(&registry),
            known_by,
        );
        let egress =
            Egress::new(decider, Rc::clone(&dialer), Arc::clone(&audit), policy, registry, presence_lost, pod_cas);
        Ok(Self { ingress: Rc::new(ingress), egress: Rc::new(egress), dialer, audit })
    }
}

impl Service for DataService {
    fn tcp(
        self: Rc<Self>,
        endpoint: Arc<Endpoint>,
        port: OpenPort,
        stream: TcpStream,
        from: SocketAddr,
    ) -> impl Future<Output = ()> + 'static {
        Rc::clone(&self.ingress).serve(endpoint, port, stream, from)
    }

    fn guest(self: Rc<Self>, slot: Slot, turn: Duration, stream: UnixStream) -> impl Future<Output = ()> + 'static {
        Rc::clone(&self.egress).serve(slot, turn, stream)
    }

    fn tick(&self) {
        self.audit.tick();
        self.dialer.tick();
    }

    fn stopped(&self) {
        self.audit.flush();
    }
}
