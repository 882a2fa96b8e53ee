//! Terminates mutual TLS on `mtls` ports with the workload's SVID.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::audit::Record;
use crate::net::stream::Stream;
use crate::reason::Reason;
use crate::state::endpoint::{Endpoint, PortSpec, Protocol};
use crate::tls::{
    ALPN_HTTP1, HandshakeFailure, PeerIdentity, PeerVerifier, SvidCell, peer_identity, quickack, server_config,
};

/// A caller that has not finished its handshake by then holds a place for nothing.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// The endpoint's SVID cell by its address, and whether HTTP is offered.
type ConfigKey = (usize, bool);
/// A configuration, and the cell that it was made for.
type CellConfig = (Weak<SvidCell>, Arc<ServerConfig>);

/// Server configurations of one thread, made once per endpoint and kind of port.
pub(super) struct Terminator {
    verifier: Arc<PeerVerifier>,
    configs: RefCell<HashMap<ConfigKey, CellConfig>>,
}

impl Terminator {
    pub(super) fn new(verifier: Arc<PeerVerifier>) -> Self {
        Self { verifier, configs: RefCell::default() }
    }

    /// The handshake, under the endpoint's cap and a deadline. `None`: refused, and the record says why.
    pub(super) async fn accept(
        &self,
        endpoint: &Arc<Endpoint>,
        port: &PortSpec,
        tcp: TcpStream,
        record: &mut Record,
    ) -> Option<(Stream, PeerIdentity)> {
        let Some(_handshake) = endpoint.take_handshake() else {
            record.deny(Reason::LimitConnections);
            Stream::Tcp(tcp).abort().await;
            return None;
        };
        let config = match self.config(&endpoint.svid, port.protocol == Protocol::Http) {
            Ok(config) => config,
            Err(error) => {
                tracing::error!(%error, "no TLS configuration for an endpoint");
                record.deny(Reason::HandshakeFailed);
                return None;
            }
        };
        match self.handshake(config, tcp).await {
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
        tcp: TcpStream,
    ) -> Result<(Stream, PeerIdentity), HandshakeFailure> {
        // Boxed so that the state of the handshake is not part of the connection's future for the rest of its life.
        let accepting = Box::pin(TlsAcceptor::from(config).accept(tcp));
        let tls = tokio::time::timeout(HANDSHAKE_DEADLINE, accepting)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|error| HandshakeFailure::from_io(&error))?;
        // Without it a client that uses Nagle waits 40 ms for our acknowledgement: we send no ticket that would carry it.
        let _ = quickack(tls.get_ref().0);
        let identity = peer_identity(tls.get_ref().1, &self.verifier)?;
        Ok((Stream::TlsServer(Box::new(tls)), identity))
    }

    fn config(&self, svid: &Arc<SvidCell>, http: bool) -> Result<Arc<ServerConfig>, rustls::Error> {
        let key = (Arc::as_ptr(svid) as usize, http);
        let mut configs = self.configs.borrow_mut();
        if let Some((_, config)) = configs.get(&key).filter(|(cell, _)| cell.strong_count() > 0) {
            return Ok(Arc::clone(config));
        }
        let alpn: &[&[u8]] = if http { &[ALPN_HTTP1] } else { &[] };
        let config = server_config(Arc::clone(svid), Arc::clone(&self.verifier), alpn)?;
        // A configuration keeps its cell; one that nobody else holds belongs to an endpoint that is gone.
        configs.retain(|_, (cell, _)| cell.strong_count() > 1);
        configs.insert(key, (Arc::downgrade(svid), Arc::clone(&config)));
        Ok(config)
    }
}
