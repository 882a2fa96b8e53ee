//! Bearer tokens: who issues them, with which keys, and the one check of a token.
//!
//! ```text
//!  token --> peek: three parts, no crit, at most 8 KiB          nothing of it is believed yet
//!        --> its iss names one of the configured issuers         key URLs and keys in its header are never looked at
//!        --> alg is one that the issuer is pinned to, kid one of its keys
//!        --> signature, aud, exp, nbf --> Verified               what rules ask for becomes a part of the decision's input
//! ```
//! Keys come from a file or a URL and are followed by a task of the control runtime; data-plane threads only read them.

mod fault;
mod follow;
mod issuer;
mod keys;
mod label;
mod peek;
mod source;

use std::sync::Arc;
use std::time::SystemTime;

use nova_proto::ids::SpiffeId;

pub use fault::Fault;
pub use follow::Timing;
pub use issuer::{Issuer, Verified};
pub use keys::{KeyError, KeySet};
pub use peek::{MAX_TOKEN, Peeked};

use crate::config::TokenConfig;
use crate::net::guard::AddressGuard;

/// Everybody whose tokens are believed.
#[derive(Default)]
pub struct Issuers {
    configured: Vec<Arc<Issuer>>,
    /// Our own trust domain, whose tokens need not say who issued them.
    own: Option<Arc<Issuer>>,
}

impl Issuers {
    /// The configured ones. Keys in files are read now, those behind URLs by [`Issuers::follow`].
    ///
    /// # Errors
    /// The first file of keys that cannot be used.
    pub fn open(configs: &[TokenConfig], guard: &AddressGuard) -> Result<Self, KeyError> {
        let open = |config| Issuer::configured(config, guard).map(Arc::new);
        Ok(Self { configured: configs.iter().map(open).collect::<Result<_, _>>()?, own: None })
    }

    /// The same with JWT-SVIDs of `trust_domain`, whose keys are in the SPIFFE bundle at `bundle` once there is one.
    ///
    /// # Errors
    /// When that file is there and cannot be used.
    pub fn with_svids(self, trust_domain: &str, bundle: &std::path::Path) -> Result<Self, KeyError> {
        Ok(Self { own: Some(Arc::new(Issuer::of_svids(trust_domain, bundle)?)), ..self })
    }

    /// Keeps every issuer's keys fresh, for ever.
    pub async fn follow(self: Arc<Self>, timing: Timing) {
        let all = self.configured.iter().chain(&self.own).cloned();
        futures_util::future::join_all(all.map(|issuer| async move { issuer.follow(timing).await })).await;
    }

    /// Checks a token that was sent to `workload`.
    ///
    /// # Errors
    /// What is wrong with it; it is nobody's then.
    pub fn verify(&self, token: &str, workload: &SpiffeId) -> Result<Verified, Fault> {
        let peeked = Peeked::parse(token.as_bytes())?;
        self.issuer(&peeked)?.verify(token, &peeked, workload)
    }

    /// Whether a token that was good before would be so now.
    #[must_use]
    pub fn still_verifies(&self, verified: &Verified) -> bool {
        let issuer = self.configured.iter().chain(&self.own).find(|issuer| &*issuer.name == verified.issuer());
        issuer.is_some_and(|issuer| issuer.still_verifies(verified))
    }

    /// What an operator should know of them.
    #[must_use]
    pub fn warnings(&self, now: SystemTime) -> Vec<String> {
        self.configured.iter().chain(&self.own).filter_map(|issuer| issuer.warning(now)).collect()
    }

    fn issuer(&self, peeked: &Peeked) -> Result<&Issuer, Fault> {
        let named = self.configured.iter().find(|issuer| peeked.issuer.as_deref() == Some(&*issuer.name));
        let own = || self.own.as_ref().filter(|own| own.has_been_read() && own.vouches_for(peeked.subject.as_deref()));
        named.or_else(own).map(Arc::as_ref).ok_or(Fault::Issuer)
    }
}
