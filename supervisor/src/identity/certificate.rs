//! A server certificate that is nobody's SVID: for ports that callers outside of the mesh know by a name of the operator's.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;

use super::disk::{Access, name, read};
use super::leaf::{parse_certificate, system_time};
use super::{IdentityError, pem};

/// A chain with its key, from two files.
pub struct ServerCertificate {
    /// What TLS presents and signs with.
    pub certified_key: Arc<CertifiedKey>,
    /// End of the leaf's validity.
    pub not_after: SystemTime,
}

impl ServerCertificate {
    /// Reads the pair. One that is expired is read too: a client says more clearly what is wrong with it than we could.
    ///
    /// # Errors
    /// When a file cannot be read or others may read the key, the two do not belong together, or the leaf is not one that a
    /// server may have.
    pub fn read(chain: &Path, key: &Path) -> Result<Self, IdentityError> {
        let certificates = pem::certificates(&name(chain), &read(chain, Access::Public)?)?;
        let not_after = check_leaf(&name(chain), &certificates)?;
        let secret = pem::any_private_key(&name(key), &read(key, Access::Secret)?)?;
        let mismatch = |problem: String| IdentityError::KeyMismatch { what: name(chain), problem };
        let key = any_supported_type(&secret.0).map_err(|_| mismatch("the key is of no supported kind".to_owned()))?;
        let certified_key = CertifiedKey::new(certificates, key);
        certified_key.keys_match().map_err(|error| mismatch(error.to_string()))?;
        Ok(Self { certified_key: Arc::new(certified_key), not_after })
    }
}

fn check_leaf(what: &str, chain: &[CertificateDer<'static>]) -> Result<SystemTime, IdentityError> {
    let refuse = |problem: &str| IdentityError::NotAServer { what: what.to_owned(), problem: problem.to_owned() };
    let leaf = chain.first().ok_or_else(|| refuse("the chain is empty"))?;
    let leaf = parse_certificate(leaf).map_err(|error| refuse(&error.to_string()))?;
    let constraints = leaf.basic_constraints().map_err(|_| refuse("two BasicConstraints extensions"))?;
    if constraints.is_some_and(|found| found.value.ca) {
        return Err(refuse("its first certificate is a CA's"));
    }
    let usage = leaf.extended_key_usage().map_err(|_| refuse("extendedKeyUsage is repeated or malformed"))?;
    if usage.is_some_and(|usage| !usage.value.server_auth && !usage.value.any) {
        return Err(refuse("its extendedKeyUsage excludes servers"));
    }
    Ok(system_time(leaf.validity().not_after))
}
