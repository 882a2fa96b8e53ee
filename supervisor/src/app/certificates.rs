//! Follows the files of the certificates that ports may name.

use std::sync::Arc;
use std::time::Duration;

use crate::bundles::source::{self as files, Fingerprint};
use crate::tls::{CertificateCell, Certificates};

/// How often the files are looked at.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// Takes a changed pair into force, for ever. A pair that cannot be used, or is half written, changes nothing.
pub(super) async fn watch(certificates: Arc<Certificates>) {
    let mut seen: Vec<_> = certificates.iter().map(|(_, cell)| versions(cell)).collect();
    loop {
        tokio::time::sleep(POLL_EVERY).await;
        for ((name, cell), seen) in certificates.iter().zip(&mut seen) {
            // Looked at before reading: what is written meanwhile is another version, and read again.
            let now = versions(cell);
            if now == *seen {
                continue;
            }
            *seen = now;
            match cell.reload() {
                Ok(()) => tracing::info!(certificate = name, "certificate reloaded"),
                Err(error) => tracing::error!(certificate = name, %error, "certificate refused, the old pair stays"),
            }
        }
    }
}

fn versions(cell: &CertificateCell) -> [Option<Fingerprint>; 2] {
    cell.files().map(|path| files::fingerprint(path))
}
