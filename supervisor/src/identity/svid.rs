//! One workload's identity document: certificate chain, signing key, and when to ask for the next.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use nova_proto::ids::SpiffeId;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::sign::CertifiedKey;

use super::leaf::{Leaf, LeafError};
use super::peer::{Usage, verify_against};
use super::{IdentityError, RootSet};

/// An X.509-SVID with its key. The key is inside the TLS library's key object only; `Debug` shows none of it.
#[derive(Clone)]
pub struct Svid {
    /// Whose it is.
    pub spiffe_id: SpiffeId,
    /// What TLS presents and signs with.
    pub certified_key: Arc<CertifiedKey>,
    /// End of the leaf's validity.
    pub not_after: SystemTime,
    /// When to ask the source again: half of what was left when it was loaded.
    pub rotate_after: SystemTime,
    /// Serial number of the leaf, hex. Part of the key of connection pools.
    pub serial: String,
}

impl Svid {
    /// Loads a chain (leaf first) and its PKCS#8 key, and refuses what a peer would refuse.
    ///
    /// The caller's `key` is only borrowed: it must be overwritten by its owner.
    ///
    /// # Errors
    /// When the leaf is not exactly `wanted`'s SVID, does not verify against `own`, or the key is not its key.
    pub fn load(
        what: &str,
        chain: Vec<CertificateDer<'static>>,
        key: &[u8],
        wanted: &SpiffeId,
        own: &RootSet,
    ) -> Result<Self, IdentityError> {
        let (spiffe_id, leaf) = check_chain(what, &chain, wanted, own)?;
        let mismatch = |problem: String| IdentityError::KeyMismatch { what: what.to_owned(), problem };
        let key = any_supported_type(&PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key)))
            .map_err(|_| mismatch("the key is of no supported kind".to_owned()))?;
        let certified_key = CertifiedKey::new(chain, key);
        certified_key.keys_match().map_err(|error| mismatch(error.to_string()))?;
        Ok(Self {
            spiffe_id,
            certified_key: Arc::new(certified_key),
            rotate_after: half_way(SystemTime::now(), leaf.not_after),
            not_after: leaf.not_after,
            serial: leaf.serial,
        })
    }

    /// Whether its time is over.
    #[must_use]
    pub fn is_expired(&self, now: SystemTime) -> bool {
        now >= self.not_after
    }
}

impl fmt::Debug for Svid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Svid")
            .field("spiffe_id", &self.spiffe_id.as_str())
            .field("serial", &self.serial)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

fn check_chain(
    what: &str,
    chain: &[CertificateDer<'static>],
    wanted: &SpiffeId,
    own: &RootSet,
) -> Result<(SpiffeId, Leaf), IdentityError> {
    let first = chain.first().ok_or_else(|| IdentityError::Pem {
        what: what.to_owned(),
        section: "certificate",
        problem: "the chain is empty".to_owned(),
    })?;
    let not_an_svid = |source| IdentityError::NotAnSvid { what: what.to_owned(), source };
    let leaf = Leaf::parse(first).map_err(not_an_svid)?;
    let found = leaf.spiffe_id.clone().ok_or_else(|| not_an_svid(LeafError::UriNames(0)))?;
    if found != *wanted {
        return Err(IdentityError::WrongIdentity { what: what.to_owned(), found, wanted: wanted.clone() });
    }
    // It is presented to callers and to callees.
    for usage in [Usage::Server, Usage::Client] {
        verify_against(own, chain, wanted, usage, UnixTime::now())
            .map_err(|source| IdentityError::Unverifiable { what: what.to_owned(), source })?;
    }
    Ok((found, leaf))
}

fn half_way(now: SystemTime, end: SystemTime) -> SystemTime {
    now + end.duration_since(now).unwrap_or_default() / 2
}
