//! TLS towards upstreams: with the caller's SVID to workloads, by name to external hosts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use nova_proto::ids::SpiffeId;
use rustls::ClientConfig;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::TlsConnector;

use super::DialFailure;
use super::speaks::Alpn;
use crate::decide::Permit;
use crate::identity::RootSet;
use crate::net::stream::Stream;
use crate::reason::Reason;
use crate::state::endpoint::Endpoint;
use crate::tls::{
    ALPN_HTTP2, ExternalRoots, HandshakeFailure, TrustCell, Versions, client_config_for_external,
    client_config_for_workload,
};

/// A handshake that takes longer counts as not answering.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// A gRPC server that speaks HTTP/1.1 only.
const NO_HTTP2: &str = "no_http2";

/// No certificate of the rule's own CA is valid now.
const CA_EXPIRED: &str = "ca_expired";

/// The caller's SVID cell by its address, the callee, and what is offered.
type WorkloadKey = (usize, SpiffeId, Alpn);
/// A configuration, and the caller that it was made for.
type WorkloadConfig = (Weak<Endpoint>, Arc<ClientConfig>);

/// A configuration, and when other CAs are valid than those that it believes.
type ExternalConfig = (Arc<ClientConfig>, Option<UnixTime>);

/// Client configurations of one thread, made once per caller and callee, or per trust root.
pub(super) struct Originator {
    trust: Arc<TrustCell>,
    /// Towards hosts outside.
    versions: Versions,
    workloads: RefCell<HashMap<WorkloadKey, WorkloadConfig>>,
    external: RefCell<HashMap<(String, Alpn), ExternalConfig>>,
}

impl Originator {
    pub(super) fn new(trust: Arc<TrustCell>, versions: Versions) -> Self {
        Self { trust, versions, workloads: RefCell::default(), external: RefCell::default() }
    }

    /// Grows whenever we believe other CAs of workloads.
    pub(super) fn trust_version(&self) -> u64 {
        self.trust.version()
    }

    /// Mutual TLS: the caller's SVID on our side, exactly `callee` on the other.
    pub(super) async fn to_workload(
        &self,
        stream: Stream,
        caller: &Endpoint,
        callee: &SpiffeId,
        alpn: Alpn,
        addr: SocketAddr,
    ) -> Result<Stream, DialFailure> {
        let config = self.workload_config(caller, callee, alpn)?;
        let name = ServerName::IpAddress(addr.ip().into());
        handshake(stream, config, name, addr).await
    }

    /// TLS to a host outside, verified by name against the web's roots or the rule's own CA.
    pub(super) async fn to_external(
        &self,
        stream: Stream,
        host: &str,
        ca: Option<&str>,
        alpn: Alpn,
        permit: &Permit,
        addr: SocketAddr,
    ) -> Result<Stream, DialFailure> {
        let config = self.external_config(ca, alpn, permit)?;
        let name = ServerName::try_from(host.to_owned()).map_err(|_| DialFailure::new(Reason::BadDestination))?;
        handshake(stream, config, name, addr).await
    }

    fn workload_config(
        &self,
        caller: &Endpoint,
        callee: &SpiffeId,
        alpn: Alpn,
    ) -> Result<Arc<ClientConfig>, DialFailure> {
        let key = (std::ptr::from_ref(&*caller.svid) as usize, callee.clone(), alpn);
        let mut configs = self.workloads.borrow_mut();
        if let Some((owner, config)) = configs.get(&key)
            && owner.strong_count() > 0
        {
            return Ok(Arc::clone(config));
        }
        configs.retain(|_, (owner, _)| owner.strong_count() > 0);
        let svid = Arc::clone(&caller.svid);
        let config = client_config_for_workload(svid, Arc::clone(&self.trust), callee.clone(), alpn)
            .map_err(|_| DialFailure::new(Reason::UpstreamIdentity))?;
        configs.insert(key, (caller.weak(), Arc::clone(&config)));
        Ok(config)
    }

    fn external_config(&self, ca: Option<&str>, alpn: Alpn, permit: &Permit) -> Result<Arc<ClientConfig>, DialFailure> {
        // The certificates travel in the bundle, so a configuration belongs to a revision.
        let key = (ca.map(|ca| format!("{}/{ca}", permit.policy().revision())).unwrap_or_default(), alpn);
        let now = UnixTime::now();
        if let Some((config, until)) = self.external.borrow().get(&key)
            && until.is_none_or(|until| now < until)
        {
            return Ok(Arc::clone(config));
        }
        let refuse = |_| DialFailure::new(Reason::UpstreamIdentity);
        let (roots, until) = match ca {
            None => (ExternalRoots::Web, None),
            Some(name) => {
                let certificates = permit.policy().external_cas().get(name);
                let certificates = certificates.ok_or(DialFailure::new(Reason::UpstreamIdentity))?;
                let certificates = certificates.iter().cloned().map(CertificateDer::from).collect();
                let set = RootSet::from_der(name, certificates).map_err(refuse)?;
                let until = set.next_change(now);
                (ExternalRoots::Custom(Arc::new(set)), until)
            }
        };
        let config = client_config_for_external(&roots, alpn, self.versions)
            .map_err(|_| DialFailure::because(Reason::UpstreamIdentity, CA_EXPIRED))?;
        let mut configs = self.external.borrow_mut();
        if configs.len() >= 64 {
            configs.clear();
        }
        configs.insert(key, (Arc::clone(&config), until));
        Ok(config)
    }
}

async fn handshake(
    stream: Stream,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    addr: SocketAddr,
) -> Result<Stream, DialFailure> {
    let needs_http2 = config.alpn_protocols == [ALPN_HTTP2];
    let connecting = TlsConnector::from(config).connect(name, stream);
    let failed = match tokio::time::timeout(HANDSHAKE_DEADLINE, connecting).await {
        Err(_) => HandshakeFailure::Timeout,
        Ok(Ok(tls)) => {
            let stream = Stream::TlsClient(Box::new(tls));
            if needs_http2 && stream.alpn() != Some(ALPN_HTTP2) {
                return Err(DialFailure::at(Reason::UpstreamMalformed, addr).detailed(NO_HTTP2));
            }
            return Ok(stream);
        }
        Ok(Err(error)) => {
            tracing::debug!(%addr, %error, "TLS to the upstream failed");
            HandshakeFailure::from_io(&error)
        }
    };
    Err(DialFailure::at(reason_of(failed), addr).detailed(failed.as_str()))
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
