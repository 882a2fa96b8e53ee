//! The server side of ports of mode `mtls` and `tls`.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};

use super::{PeerVerifier, SvidCell, VERSIONS, VERSIONS_WITH_1_2, alpn_protocols, provider};

/// What is asked of clients.
#[derive(Debug, Clone)]
pub enum Clients {
    /// A certificate, always.
    Verified(Arc<PeerVerifier>),
    /// Nothing: who they are shows elsewhere, or not at all.
    Anonymous,
}

/// Which versions are spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Versions {
    /// 1.3.
    Tls13,
    /// 1.2 as well: ECDHE with AEAD suites only, since the library has no others. No renegotiation, no tickets.
    Tls12Too,
}

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
    port_config(svid, Clients::Verified(verifier), Versions::Tls13, alpn)
}

/// The configuration of any port that terminates TLS: what it presents, what it asks for, what it speaks.
///
/// # Errors
/// Only if the crypto provider lacks a version.
pub fn port_config(
    certificate: Arc<dyn ResolvesServerCert>,
    clients: Clients,
    versions: Versions,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let versions = match versions {
        Versions::Tls13 => VERSIONS,
        Versions::Tls12Too => VERSIONS_WITH_1_2,
    };
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(versions)?;
    let builder = match clients {
        Clients::Verified(verifier) => builder.with_client_cert_verifier(verifier),
        Clients::Anonymous => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(certificate);
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
