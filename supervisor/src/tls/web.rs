//! The web's CAs: those of the system.

use std::sync::{Arc, LazyLock};

use rustls::RootCertStore;

static WEB: LazyLock<WebRoots> = LazyLock::new(WebRoots::load);

/// Who must vouch for a host outside whose rule names no CA.
struct WebRoots {
    store: Arc<RootCertStore>,
    warning: Option<&'static str>,
}

/// What an operator should know of the system's CAs. The first call reads them.
#[must_use]
pub fn web_roots_warning() -> Option<&'static str> {
    WEB.warning
}

pub(super) fn web_roots() -> Arc<RootCertStore> {
    Arc::clone(&WEB.store)
}

impl WebRoots {
    fn load() -> Self {
        let mut store = RootCertStore::empty();
        let (usable, _) = store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if usable > 0 {
            return Self { store: Arc::new(store), warning: None };
        }
        // Whoever names a file means it: nobody else is believed in its place.
        if ["SSL_CERT_FILE", "SSL_CERT_DIR"].iter().any(|name| std::env::var_os(name).is_some()) {
            let warning = "SSL_CERT_FILE or SSL_CERT_DIR leads to no CA certificate: no host outside is believed whose rule has no `ca`";
            return Self { store: Arc::new(store), warning: Some(warning) };
        }
        let built_in = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
        let warning =
            "this system has no CA certificates: those of the web that are built in are used; install ca-certificates";
        Self { store: Arc::new(built_in), warning: Some(warning) }
    }
}
