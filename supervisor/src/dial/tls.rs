//! TLS towards upstreams: with the caller's SVID to workloads, by name to external hosts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use nova_policy::workloads::Protocol;
use nova_proto::ids::SpiffeId;
use rustls::ClientConfig;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::DialFailure;
use crate::decide::Permit;
use crate::identity::RootSet;
use crate::net::stream::Stream;
use crate::reason::Reason;
use crate::state::endpoint::Endpoint;
use crate::tls::{
    ALPN_HTTP1, ExternalRoots, HandshakeFailure, TrustCell, client_config_for_external, client_config_for_workload,
};

/// A handshake that takes longer counts as not answering.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// The caller's SVID cell by its address, the callee, and whether HTTP is offered.
type WorkloadKey = (usize, SpiffeId, bool);
/// A configuration, and the caller that it was made for.
type WorkloadConfig = (Weak<Endpoint>, Arc<ClientConfig>);

/// Client configurations of one thread, made once per caller and callee, or per trust root.
pub(super) struct Originator {
    trust: Arc<TrustCell>,
    workloads: RefCell<HashMap<WorkloadKey, WorkloadConfig>>,
    external: RefCell<HashMap<String, Arc<ClientConfig>>>,
}

impl Originator {
    pub(super) fn new(trust: Arc<TrustCell>) -> Self {
        Self { trust, workloads: RefCell::default(), external: RefCell::default() }
    }

    /// Mutual TLS: the caller's SVID on our side, exactly `callee` on the other.
    pub(super) async fn to_workload(
        &self,
        tcp: TcpStream,
        caller: &Endpoint,
        callee: &SpiffeId,
        protocol: Protocol,
        addr: SocketAddr,
    ) -> Result<Stream, DialFailure> {
        let config = self.workload_config(caller, callee, protocol == Protocol::Http)?;
        let name = ServerName::IpAddress(addr.ip().into());
        handshake(tcp, config, name, addr).await
    }

    /// TLS to a host outside, verified by name against the web's roots or the rule's own CA.
    pub(super) async fn to_external(
        &self,
        tcp: TcpStream,
        host: &str,
        ca: Option<&str>,
        permit: &Permit,
        addr: SocketAddr,
    ) -> Result<Stream, DialFailure> {
        let config = self.external_config(ca, permit)?;
        let name = ServerName::try_from(host.to_owned()).map_err(|_| DialFailure::new(Reason::BadDestination))?;
        handshake(tcp, config, name, addr).await
    }

    fn workload_config(
        &self,
        caller: &Endpoint,
        callee: &SpiffeId,
        http: bool,
    ) -> Result<Arc<ClientConfig>, DialFailure> {
        let key = (std::ptr::from_ref(&*caller.svid) as usize, callee.clone(), http);
        let mut configs = self.workloads.borrow_mut();
        if let Some((owner, config)) = configs.get(&key)
            && owner.strong_count() > 0
        {
            return Ok(Arc::clone(config));
        }
        configs.retain(|_, (owner, _)| owner.strong_count() > 0);
        let alpn: &[&[u8]] = if http { &[ALPN_HTTP1] } else { &[] };
        let svid = Arc::clone(&caller.svid);
        let config = client_config_for_workload(svid, Arc::clone(&self.trust), callee.clone(), alpn)
            .map_err(|_| DialFailure::new(Reason::UpstreamIdentity))?;
        configs.insert(key, (caller.weak(), Arc::clone(&config)));
        Ok(config)
    }

    fn external_config(&self, ca: Option<&str>, permit: &Permit) -> Result<Arc<ClientConfig>, DialFailure> {
        // The certificates travel in the bundle, so a configuration belongs to a revision.
        let key = ca.map(|ca| format!("{}/{ca}", permit.policy().revision())).unwrap_or_default();
        if let Some(config) = self.external.borrow().get(&key) {
            return Ok(Arc::clone(config));
        }
        let refuse = |_| DialFailure::new(Reason::UpstreamIdentity);
        let roots = match ca {
            None => ExternalRoots::Web,
            Some(name) => {
                let certificates = permit.policy().external_cas().get(name);
                let certificates = certificates.ok_or(DialFailure::new(Reason::UpstreamIdentity))?;
                let certificates = certificates.iter().cloned().map(CertificateDer::from).collect();
                ExternalRoots::Custom(Arc::new(RootSet::from_der(name, certificates).map_err(refuse)?))
            }
        };
        let config = client_config_for_external(&roots, &[ALPN_HTTP1])
            .map_err(|_| DialFailure::new(Reason::UpstreamIdentity))?;
        let mut configs = self.external.borrow_mut();
        if configs.len() >= 64 {
            configs.clear();
        }
        configs.insert(key, Arc::clone(&config));
        Ok(config)
    }
}

async fn handshake(
    tcp: TcpStream,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    addr: SocketAddr,
) -> Result<Stream, DialFailure> {
    let connecting = TlsConnector::from(config).connect(name, tcp);
    match tokio::time::timeout(HANDSHAKE_DEADLINE, connecting).await {
        Err(_) => Err(DialFailure::at(Reason::UpstreamTimeout, addr)),
        Ok(Ok(tls)) => Ok(Stream::TlsClient(Box::new(tls))),
        Ok(Err(error)) => {
            tracing::debug!(%addr, %error, "TLS to the upstream failed");
            Err(DialFailure::at(reason_of(HandshakeFailure::from_io(&error)), addr))
        }
    }
}

fn reason_of(failure: HandshakeFailure) -> Reason {
    match failure {
        HandshakeFailure::NoSvid => Reason::EndpointNotReady,
        HandshakeFailure::Timeout => Reason::UpstreamTimeout,
        HandshakeFailure::Closed => Reason::UpstreamClosed,
        HandshakeFailure::Protocol => Reason::UpstreamMalformed,
        _ => Reason::UpstreamIdentity,
    }
}
