//! Joins the control service to the data plane: sockets, threads, guest acceptors.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use socket2::Socket;
use tokio::sync::watch;

use super::guests::{self, ByCid, Door, HybridGuest, VsockGuest};
use crate::accept::Workers;
use crate::audit::AuditSink;
use crate::control::DataPlane;
use crate::dial;
use crate::guestlink::{self, LinkPorts, Listener, VsockListener};
use crate::net::listen;
use crate::reason::Reason;
use crate::state::endpoint::{Backend, Endpoint, PortSpec};
use crate::state::port::{PortStage, takes_place_of};
use crate::tls::Certificates;

/// A health check takes at most this long; the control service bounds it further.
const HEALTH_DEADLINE: Duration = Duration::from_secs(10);
type PortKey = (usize, String);

/// The data plane, as the control service drives it.
pub(super) struct Plane {
    workers: Workers,
    audit: Arc<AuditSink>,
    links: LinkPorts,
    certificates: Arc<Certificates>,
    host_port: u32,
    guests: tokio::runtime::Handle,
    by_cid: Arc<ByCid>,
    open_ports: Mutex<HashMap<PortKey, watch::Sender<PortStage>>>,
    ended_ports: Mutex<Vec<EndedPort>>,
}

impl Plane {
    pub(super) fn new(
        workers: Workers,
        audit: Arc<AuditSink>,
        (links, host_port): (LinkPorts, u32),
        certificates: Arc<Certificates>,
        guests: tokio::runtime::Handle,
    ) -> Self {
        let (by_cid, open_ports, ended_ports) = (Arc::default(), Mutex::default(), Mutex::default());
        Self { workers, audit, links, certificates, host_port, guests, by_cid, open_ports, ended_ports }
    }

    /// Accepts from all vsock guests on one socket.
    pub(super) fn listen_vsock(&self) -> io::Result<()> {
        let _context = self.guests.enter();
        let listener = VsockListener::bind(self.host_port)?;
        let trouble = self.workers.pressure().accept_loop();
        self.guests.spawn(guests::accept_vsock(listener, Arc::clone(&self.by_cid), trouble));
        Ok(())
    }
}

impl DataPlane for Plane {
    fn bind(&self, endpoint: &Arc<Endpoint>, port: &PortSpec) -> io::Result<Vec<OwnedFd>> {
        if let Some(name) = port.tls.certificate.as_deref().filter(|name| self.certificates.get(name).is_none()) {
            return Err(io::Error::other(format!("[[certificates]] of supervisor.toml has none named {name:?}")));
        }
        let spec = endpoint.spec();
        let threads = |ip| (0..self.workers.count()).map(move |_| Ok(listen::bind(ip, port.port)?.into()));
        spec.ips().flat_map(threads).collect()
    }

    fn listen(&self, endpoint: &Arc<Endpoint>, port: &PortSpec, sockets: Vec<OwnedFd>) -> io::Result<()> {
        let sockets: Vec<_> =
            sockets.into_iter().map(|socket| listen::listen(Socket::from(socket))).collect::<io::Result<_>>()?;
        let (ends, stage) = watch::channel(PortStage::Open);
        lock(&self.open_ports).insert(key(endpoint, port), ends);
        self.workers.listen(endpoint, port, sockets, &stage);
        Ok(())
    }

    fn close_port(&self, endpoint: &Arc<Endpoint>, port: &PortSpec) {
        let Some(ends) = lock(&self.open_ports).remove(&key(endpoint, port)) else { return };
        ends.send_replace(PortStage::Draining);
        let ends = Arc::new(ends);
        let mut ended = lock(&self.ended_ports);
        ended.retain(|port| !port.ends.is_closed());
        ended.push(EndedPort { endpoint: Arc::downgrade(endpoint), spec: port.clone(), ends: Arc::clone(&ends) });
        let patience = endpoint.spec().drain_timeout;
        self.guests.spawn(async move {
            // Until its last connection has ended, or is cut.
            let _ = tokio::time::timeout(patience, ends.closed()).await;
            ends.send_replace(PortStage::Closed);
        });
    }

    fn supersede(&self, endpoint: &Arc<Endpoint>, port: &PortSpec) {
        for ended in lock(&self.ended_ports).iter() {
            let is_here = ended.endpoint.as_ptr() == Arc::as_ptr(endpoint);
            if is_here && takes_place_of(port, &ended.spec) {
                ended.ends.send_replace(PortStage::Closed);
            }
        }
    }

    fn accept_guest(&self, endpoint: &Arc<Endpoint>) -> io::Result<Box<dyn Send>> {
        let spec = endpoint.spec();
        let door = Door::new(&self.workers, endpoint, &self.audit);
        let _context = self.guests.enter();
        match &spec.backend {
            Backend::Vsock { cid } => Ok(Box::new(VsockGuest::enter(&self.by_cid, *cid, door))),
            Backend::Hybrid { file, vmm_uid, .. } => {
                let path = self.links.root.join(spec.pod_uid.as_str()).join(file);
                let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
                let listener = Listener::bind(&path, self.host_port, *vmm_uid).map_err(named)?;
                Ok(Box::new(HybridGuest::listen(listener, door)))
            }
        }
    }

    fn health(&self, endpoint: &Arc<Endpoint>, port: &PortSpec) -> BoxFuture<'static, Result<(), Reason>> {
        let (links, spec, port) = (self.links.clone(), endpoint.spec(), port.clone());
        async move { dial::health(&links, &spec, &port, HEALTH_DEADLINE).await }.boxed()
    }

    fn is_gone(&self, endpoint: &Arc<Endpoint>) -> BoxFuture<'static, bool> {
        let (links, spec) = (self.links.clone(), endpoint.spec());
        async move { guestlink::is_gone(&links, &spec).await }.boxed()
    }
}

/// A port that was taken away, until its last connection has ended.
struct EndedPort {
    endpoint: Weak<Endpoint>,
    spec: PortSpec,
    ends: Arc<watch::Sender<PortStage>>,
}

fn key(endpoint: &Arc<Endpoint>, port: &PortSpec) -> PortKey {
    (Arc::as_ptr(endpoint) as usize, port.name.to_string())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Every critical section is one call on the map: a panic elsewhere leaves it whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
