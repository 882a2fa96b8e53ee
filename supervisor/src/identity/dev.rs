//! The dev identity source: an embedded CA that issues an SVID to whatever endpoint asks. It exists in dev mode only.
//!
//! Its trust domain ends in `.invalid` and every other source refuses it, so that nothing issued here is ever worth anything
//! on a real node.

use std::sync::Arc;
use std::time::Duration;

use nova_proto::ids::{SpiffeId, TenantId, WorkloadId};

use super::{
    DEV_TRUST_DOMAIN, DevCa, IdentityError, IdentityRequest, IdentitySource, RootSet, Svid, TrustBundles, TrustDomain,
};
use crate::config::Mode;

/// As SPIRE's default.
const SVID_LIFE: Duration = Duration::from_secs(3600);

/// An embedded CA as identity source.
pub struct DevSource {
    ca: DevCa,
    roots: Arc<RootSet>,
    bundles: Arc<TrustBundles>,
}

impl DevSource {
    /// Starts the source, with a warning in the log.
    ///
    /// # Errors
    /// Outside dev mode, always.
    pub fn new(mode: Mode, ca: DevCa) -> Result<Self, IdentityError> {
        if mode != Mode::Dev {
            return Err(IdentityError::DevOutsideDevMode);
        }
        let roots = Arc::new(ca.roots()?);
        let bundles = Arc::new(TrustBundles::new(TrustDomain::new(DEV_TRUST_DOMAIN)?, Arc::clone(&roots)));
        tracing::warn!(
            trust_domain = DEV_TRUST_DOMAIN,
            "identities come from the embedded dev CA: anybody who controls this process can be any workload; \
             never use it outside a lab"
        );
        Ok(Self { ca, roots, bundles })
    }

    /// The CA's certificate. Public material: it may be written to a file for callers.
    #[must_use]
    pub fn ca_certificate_pem(&self) -> String {
        self.ca.certificate_pem()
    }
}

impl IdentitySource for DevSource {
    fn svid(&self, who: &IdentityRequest) -> Result<Svid, IdentityError> {
        let issues = dev_spiffe_id(&who.tenant, &who.workload)?;
        if who.spiffe_id != issues {
            return Err(IdentityError::NotDevIdentity { asked: who.spiffe_id.clone(), issues });
        }
        let issued = self.ca.issue(&who.spiffe_id, &who.dns_name(), SVID_LIFE)?;
        Svid::load("the dev CA's certificate", issued.chain.clone(), issued.key_der(), &who.spiffe_id, &self.roots)
    }

    fn trust_bundles(&self) -> Arc<TrustBundles> {
        Arc::clone(&self.bundles)
    }

    fn name(&self) -> &'static str {
        "dev"
    }
}

/// The one ID that the dev source issues to a workload.
///
/// # Errors
/// Never for validated names; the constructor of the ID decides.
pub fn dev_spiffe_id(tenant: &TenantId, workload: &WorkloadId) -> Result<SpiffeId, IdentityError> {
    SpiffeId::new(format!("spiffe://{DEV_TRUST_DOMAIN}/t/{tenant}/w/{workload}")).map_err(IdentityError::TrustDomain)
}
