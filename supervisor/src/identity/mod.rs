//! Who our workloads are, and whom we believe: SVIDs, their sources, trust bundles, and the one check of a peer's chain.
//!
//! [`identify`] is the only function that turns a certificate chain into an identity. The TLS verifier calls it during the
//! handshake and whoever wants the peer afterwards calls it again, so that the two can never differ.
//!
//! [`PodCas`] makes the CAs of pods whose rules let the supervisor look into their TLS.
//!
//! Sources: [`DevSource`] (an embedded CA, development only) and [`FilesSource`] (certificates on disk). Private keys live in
//! this process alone: they are never logged, never written and never sent to a guest.

mod certificate;
mod crl;
mod dev;
mod dev_ca;
mod disk;
mod error;
mod files;
mod leaf;
mod peer;
mod pem;
mod pod_ca;
mod refusal;
mod signing;
mod subject;
mod svid;
mod trust;

use std::sync::Arc;

use nova_proto::ids::{PodUid, SpiffeId, TenantId, WorkloadId};

pub use self::certificate::ServerCertificate;
pub use self::crl::{Crls, files as crl_files};
pub use self::dev::{DevSource, dev_spiffe_id};
pub use self::dev_ca::{DEV_TRUST_DOMAIN, DevCa, Issued};
pub(crate) use self::disk::read_secret;
pub use self::error::IdentityError;
pub use self::files::FilesSource;
pub use self::leaf::{LeafError, Names, common_name, not_after};
pub use self::peer::{PeerIdentity, Usage, identify};
pub use self::pod_ca::{Ending, PodCa, PodCaCell, PodCas, PodLeaf, Told};
pub use self::refusal::IdentifyError;
pub use self::svid::Svid;
pub use self::trust::{Federated, RootSet, TrustBundles, TrustDomain};

/// For whom an SVID is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityRequest {
    /// The identity that the endpoint declares.
    pub spiffe_id: SpiffeId,
    /// The workload.
    pub workload: WorkloadId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its pod.
    pub pod_uid: PodUid,
}

impl IdentityRequest {
    /// The workload's DNS name, `<workload>.<tenant>.nova`.
    #[must_use]
    pub fn dns_name(&self) -> String {
        format!("{}.{}.nova", self.workload, self.tenant)
    }
}

/// Where SVIDs and the own trust domain's roots come from. Called from the control runtime only, so it may block briefly.
pub trait IdentitySource: Send + Sync {
    /// The current SVID of one workload.
    ///
    /// # Errors
    /// When the source has none for exactly this identity; the text says what to do.
    fn svid(&self, who: &IdentityRequest) -> Result<Svid, IdentityError>;

    /// The roots of the own trust domain. External CAs come from the policy: see [`TrustBundles::with_external`].
    fn trust_bundles(&self) -> Arc<TrustBundles>;

    /// Reads again what the source was made from. What fails keeps its old value; ask for each SVID again afterwards.
    ///
    /// # Errors
    /// Everything that could not be replaced, at once.
    fn reload(&self) -> Result<(), IdentityError> {
        Ok(())
    }

    /// The kind, as the configuration names it.
    fn name(&self) -> &'static str;
}
