//! Where an endpoint's current SVID is: TLS reads it at each handshake, rotation replaces it.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::identity::Svid;

/// The SVID of one endpoint, or none yet.
#[derive(Default)]
pub struct SvidCell(ArcSwapOption<Svid>);

impl SvidCell {
    /// A cell without an SVID: every handshake fails until there is one.
    #[must_use]
    pub fn empty() -> Arc<Self> {
        Arc::default()
    }

    /// Puts a new SVID in force for the next handshake. Open connections keep the one they began with.
    pub fn replace(&self, svid: Svid) {
        self.0.store(Some(Arc::new(svid)));
    }

    /// Takes the SVID away: from now on every handshake fails.
    pub fn clear(&self) {
        self.0.store(None);
    }

    /// The SVID in force; `None` if there is none or its time is over.
    #[must_use]
    pub fn current(&self) -> Option<Arc<Svid>> {
        self.0.load_full().filter(|svid| !svid.is_expired(SystemTime::now()))
    }

    fn key(&self) -> Option<Arc<CertifiedKey>> {
        self.current().map(|svid| Arc::clone(&svid.certified_key))
    }
}

impl ResolvesServerCert for SvidCell {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.key()
    }
}

impl ResolvesClientCert for SvidCell {
    fn resolve(&self, _root_hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.key()
    }

    fn has_certs(&self) -> bool {
        self.current().is_some()
    }
}

impl fmt::Debug for SvidCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SvidCell").field(&self.0.load().as_deref()).finish()
    }
}
