//! Terminates TLS: on `mtls` ports with the workload's SVID, on `tls` ports with that or with the certificate they name.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::audit::Record;
use crate::net::stream::Stream;
use crate::reason::Reason;
use crate::state::endpoint::{Endpoint, PortMode, PortSpec, Protocol};
use crate::tls::{
    ALPN_HTTP1, ALPN_HTTP2, Certificates, Clients, HandshakeFailure, PeerIdentity, PeerVerifier, SvidCell, Versions,
    peer_identity, port_config, quickack,
};

/// A caller that has not finished its handshake by then holds a place for nothing.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// What a configuration depends on: the endpoint's SVID cell by its address, and what the port says.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ConfigKey {
    cell: usize,
    certificate: Option<String>,
    mutual: bool,
    versions: Versions,
    http: bool,
}

/// A configuration, and the cell that it was made for.
type CellConfig = (Weak<SvidCell>, Arc<ServerConfig>);

/// Server configurations of one thread, made once per endpoint and kind of port.
pub(super) struct Terminator {
    verifier: Arc<PeerVerifier>,
    certificates: Arc<Certificates>,
    configs: RefCell<HashMap<ConfigKey, CellConfig>>,
}

impl Terminator {
    pub(super) fn new(verifier: Arc<PeerVerifier>, certificates: Arc<Certificates>) -> Self {
        Self { verifier, certificates, configs: RefCell::default() }
    }

    /// The handshake, under the endpoint's cap and a deadline; with the peer where the port asks for its certificate.
    /// `None`: refused, and the record says why.
    pub(super) async fn accept(
        &self,
        endpoint: &Arc<Endpoint>,
        port: &PortSpec,
        tcp: TcpStream,
        from: SocketAddr,
        record: &mut Record,
    ) -> Option<(Stream, Option<PeerIdentity>)> {
        let _handshake = match endpoint.take_handshake(from.ip()) {
            Ok(handshake) => handshake,
            Err(none) => {
                record.deny(Reason::LimitConnections);
                record.detail(none.as_str());
                Stream::Tcp(tcp).abort().await;
                return None;
            }
        };
        let config = match self.config(&endpoint.svid, port) {
            Ok(config) => config,
            Err(error) => {
                tracing::error!(%error, "no TLS configuration for an endpoint");
                record.deny(Reason::HandshakeFailed);
                return None;
            }
        };
        match self.handshake(config, port.mode == PortMode::Mtls, tcp).await {
            Ok(done) => Some(done),
            Err(failure) => {
                record.deny(failure.reason());
                record.detail(failure.as_str());
                None
            }
        }
    }

    async fn handshake(
        &self,
        config: Arc<ServerConfig>,
        mutual: bool,
        tcp: TcpStream,
    ) -> Result<(Stream, Option<PeerIdentity>), HandshakeFailure> {
        // Boxed so that the state of the handshake is not part of the connection's future for the rest of its life.
        let accepting = Box::pin(TlsAcceptor::from(config).accept(tcp));
        let tls = tokio::time::timeout(HANDSHAKE_DEADLINE, accepting)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|error| HandshakeFailure::from_io(&error))?;
        // Without it a client that uses Nagle waits 40 ms for our acknowledgement: we send no ticket that would carry it.
        let _ = quickack(tls.get_ref().0);
        let identity = mutual.then(|| peer_identity(tls.get_ref().1, &self.verifier)).transpose()?;
        Ok((Stream::TlsServer(Box::new(tls)), identity))
    }

    fn config(&self, svid: &Arc<SvidCell>, port: &PortSpec) -> Result<Arc<ServerConfig>, rustls::Error> {
        let versions = if port.tls.tls12 { Versions::Tls12Too } else { Versions::Tls13 };
        let key = ConfigKey {
            cell: Arc::as_ptr(svid) as usize,
            certificate: port.tls.certificate.clone(),
            mutual: port.mode == PortMode::Mtls,
            versions,
            http: port.protocol != Protocol::Raw,
        };
        let mut configs = self.configs.borrow_mut();
        if let Some((_, config)) = configs.get(&key).filter(|(cell, _)| cell.strong_count() > 0) {
            return Ok(Arc::clone(config));
        }
        let alpn: &[&[u8]] = if key.http { &[ALPN_HTTP2, ALPN_HTTP1] } else { &[] };
        let clients = if key.mutual { Clients::Verified(Arc::clone(&self.verifier)) } else { Clients::Anonymous };
        let config = match &key.certificate {
            None => port_config(Arc::<SvidCell>::clone(svid), clients, versions, alpn)?,
            Some(name) => {
                let missing = || rustls::Error::General(format!("[[certificates]] has none named {name:?}"));
                let cell = Arc::clone(self.certificates.get(name).ok_or_else(missing)?);
                port_config(cell, clients, versions, alpn)?
            }
        };
        // A configuration or the endpoint keeps the cell; one that no endpoint holds belongs to an endpoint that is gone.
        configs.retain(|key, (cell, _)| cell.strong_count() > usize::from(key.certificate.is_none()));
        configs.insert(key, (Arc::downgrade(svid), Arc::clone(&config)));
        Ok(config)
    }
}
