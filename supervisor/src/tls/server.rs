//! The server side of an mtls port.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;

use super::{PeerVerifier, SvidCell, VERSIONS, alpn_protocols, provider};

/// The configuration of an endpoint's mtls ports: TLS 1.3, a client certificate always, no resumption of any kind.
///
/// `alpn` is empty for a port that carries raw bytes. One configuration serves an endpoint for its whole life.
///
/// # Errors
/// Only if the crypto provider lacks TLS 1.3.
pub fn server_config(
    svid: Arc<SvidCell>,
    verifier: Arc<PeerVerifier>,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(svid);
    config.alpn_protocols = alpn_protocols(alpn);
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(config))
}

/// Acknowledges the client's last handshake flight at once. Call it right after the handshake.
///
/// A server without tickets sends nothing after that flight, and a client without TCP_NODELAY waits for its ACK, which the
/// kernel delays by 40 ms, before it sends its first request.
///
/// # Errors
/// When the socket is not a TCP one or is gone.
pub fn quickack(socket: &impl AsFd) -> io::Result<()> {
    socket2::SockRef::from(socket).set_tcp_quickack(true)
}
