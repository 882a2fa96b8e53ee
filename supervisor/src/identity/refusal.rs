//! Why a certificate chain is nobody.

use nova_proto::ids::SpiffeId;

use super::leaf::LeafError;

/// Intermediates a peer may send. Real chains have one to three, some peers send their whole store along; path building is
/// quadratic in the worst case.
pub(super) const MAX_INTERMEDIATES: usize = 16;

/// Why a chain is nobody.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentifyError {
    /// The leaf's form is wrong.
    #[error(transparent)]
    Leaf(#[from] LeafError),
    /// More certificates than anybody needs.
    #[error("{0} intermediate certificates where at most {MAX_INTERMEDIATES} are looked at")]
    TooManyIntermediates(usize),
    /// It leads to no root that may vouch for this identity.
    #[error("the certificate is not signed by a CA that may vouch for {0}")]
    UnknownIssuer(String),
    /// A partner's CA signed one of our IDs, or one of another domain whose bundle we have.
    #[error("external CA {ca} signed {spiffe_id}, which only the bundle of its own trust domain may vouch for")]
    OwnDomainFromForeignCa {
        /// The external CA.
        ca: String,
        /// The ID it signed.
        spiffe_id: SpiffeId,
    },
    /// Its time, or that of a CA above it, is over.
    #[error("a certificate of the chain has expired")]
    Expired,
    /// Its time has not come.
    #[error("a certificate of the chain is not valid yet")]
    NotYetValid,
    /// Its CA took it back.
    #[error("a certificate of the chain was revoked")]
    Revoked,
    /// Nobody can say whether its CA took it back.
    #[error("the revocation list about it cannot be used: {0}")]
    RevocationUnknown(String),
    /// extendedKeyUsage excludes this use.
    #[error("extendedKeyUsage does not allow this use")]
    Purpose,
    /// The chain breaks another rule of RFC 5280.
    #[error("the chain does not verify: {0}")]
    Chain(webpki::Error),
}
