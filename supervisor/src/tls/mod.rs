//! TLS of the data plane: no resumption, identities from [`crate::identity`]. Version 1.3; 1.2 as well towards hosts outside and
//! on ports that ask for it.
//!
//! ```text
//! inbound   port_config(svid or file, clients, versions) -> handshake -> quickack -> peer_identity(conn, verifier)
//! outbound  client_config_for_workload(svid, trust, expected)   exactly that SPIFFE ID, our own bundle
//!           client_config_for_external(roots)                   DNS name, web roots or the rule's own CA
//! the app's Leaves::config(pod CA, host)                       in the place of a host, where a rule intercepts
//! ```
//! A resumed session would keep an identity alive after its certificate, so there are no tickets and no session store. SVIDs
//! and roots sit in cells ([`SvidCell`], [`TrustCell`]): rotation changes the cell and needs no new configuration.

mod certificates;
mod client;
mod failure;
mod leaves;
mod peer_verifier;
mod recent;
mod server;
mod svid_cell;
mod trust_cell;
mod web;

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;

pub use self::certificates::{CertificateCell, Certificates};
pub use self::client::{ExternalRoots, client_config_for_external, client_config_for_workload};
pub use self::failure::HandshakeFailure;
pub use self::leaves::Leaves;
pub use self::peer_verifier::{PEER_GRACE, PeerVerifier, peer_identity};
pub use self::server::{Clients, Versions, port_config, quickack, server_config};
pub use self::svid_cell::SvidCell;
pub use self::trust_cell::TrustCell;
pub use self::web::web_roots_warning;
pub use crate::identity::PeerIdentity;

/// What is spoken unless somebody says otherwise, and always between workloads.
static VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];
/// What is spoken to hosts outside, and on ports that say so.
static VERSIONS_WITH_1_2: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];

/// ALPN name of HTTP/2.
pub const ALPN_HTTP2: &[u8] = b"h2";
/// ALPN name of HTTP/1.1.
pub const ALPN_HTTP1: &[u8] = b"http/1.1";

/// The crypto provider, made once: it is a table of constants.
fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    Arc::clone(&PROVIDER)
}

fn alpn_protocols(alpn: &[&[u8]]) -> Vec<Vec<u8>> {
    alpn.iter().map(|name| name.to_vec()).collect()
}
