//! The CAs of one pod whose rules let the supervisor look into the TLS of its app. Their keys are in memory only and die with the
//! endpoint; their certificates vouch for the names of those rules and for nothing else.
//!
//! ```text
//! by itself    pod CA (the guest trusts it) --> leaf for one name
//! two tiers    root, offline (the guest trusts it) --> intermediate, from files --> pod CA --> leaf for one name
//! ```
//! A certificate that programs in the guest have read stays good for them as long as it lives: most read such files once. So a
//! pod gets its next CA when half of the last one's life is over, and the old one goes on signing until it ends; see [`cell`]. It
//! is the leaves that are short-lived.

mod above;
mod cell;
mod params;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use rcgen::Issuer;
use rustls::crypto::aws_lc_rs::sign::any_ecdsa_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

use self::above::Above;
pub use self::cell::{Ending, PodCaCell, Told};
use self::params::{bases, ca_params, is_below_any, leaf_params};
use super::signing::EcKey;
use super::{IdentityError, pem};

/// The clock of a guest may be behind: it must not refuse what was just made.
const BACKDATE: Duration = Duration::from_secs(3600);
/// A leaf is made anew when half of it is over.
const LEAF_LIFE: Duration = Duration::from_secs(24 * 3600);
/// How long before its end a CA is spoken of.
const NOTICE: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long before its end a CA leaves signing to the next one, if the guest has that: its clock may be ahead.
const MARGIN: Duration = Duration::from_secs(3600);

/// Makes the CAs of pods.
pub struct PodCas {
    life: Duration,
    /// Chain and key of what signs them, if they do not sign themselves.
    files: Option<[PathBuf; 2]>,
    above: ArcSwapOption<Above>,
    /// Why the files of now are not in force.
    problem: ArcSwapOption<String>,
    /// Grows with every change of the files.
    version: watch::Sender<u64>,
}

/// A CA of one pod.
pub struct PodCa {
    issuer: Issuer<'static, EcKey>,
    /// What goes into a handshake behind the leaf: nothing that the guest has.
    chain: Vec<CertificateDer<'static>>,
    trust: CertificateDer<'static>,
    names: BTreeSet<String>,
    made: SystemTime,
    not_after: SystemTime,
    /// Of what signed it.
    version: u64,
}

/// A leaf, ready for the TLS library.
pub struct PodLeaf {
    /// Chain and key.
    pub certified_key: Arc<CertifiedKey>,
    /// When to make another.
    pub renew_after: SystemTime,
}

impl PodCas {
    /// Each CA signs itself and is good for `life`.
    #[must_use]
    pub fn self_signed(life: Duration) -> Self {
        Self {
            life,
            files: None,
            above: ArcSwapOption::empty(),
            problem: ArcSwapOption::empty(),
            version: watch::Sender::new(0),
        }
    }

    /// An intermediate signs each: `chain` holds it first and a self-signed root last, `key` is the intermediate's.
    ///
    /// # Errors
    /// When the files cannot be read or others may read the key, or when what they make does not verify.
    pub fn signed_by(chain: &Path, key: &Path, life: Duration) -> Result<Self, IdentityError> {
        let above = ArcSwapOption::from_pointee(Above::read(chain, key)?);
        Ok(Self { above, files: Some([chain, key].map(Path::to_owned)), ..Self::self_signed(life) })
    }

    /// The files of the intermediate.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.iter().flatten()
    }

    /// Reads them again. What cannot be used changes nothing.
    ///
    /// # Errors
    /// Why the old pair stays.
    pub fn reload(&self) -> Result<(), IdentityError> {
        let Some([chain, key]) = &self.files else { return Ok(()) };
        let read = Above::read(chain, key);
        self.problem.store(read.as_ref().err().map(|error| Arc::new(error.to_string())));
        self.above.store(Some(Arc::new(read?)));
        self.version.send_modify(|version| *version += 1);
        Ok(())
    }

    /// Changes whenever another intermediate signs.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// Whether there is a root that guests trust whichever CA is below it.
    #[must_use]
    pub fn have_a_root(&self) -> bool {
        self.files.is_some()
    }

    /// What an operator should know of the intermediate.
    #[must_use]
    pub fn warnings(&self, now: SystemTime) -> Vec<String> {
        let problem = self.problem.load();
        let problem = problem.as_deref().map(|problem| {
            format!("[interception] the old pair stays in force: {problem}; put a chain and its key there that fit")
        });
        let above = self.above.load();
        let ends = above.as_deref().map(Above::not_after).filter(|end| *end < now + NOTICE).map(|end| {
            let end = humantime::format_rfc3339_seconds(end);
            format!(
                "[interception] the intermediate ends at {end}: put the next pair in its place, no restart is needed"
            )
        });
        problem.into_iter().chain(ends).collect()
    }

    /// Makes a CA of `workload` for `names`, each a host, or `*.` and a suffix; its life begins at `now`.
    ///
    /// # Errors
    /// When the crypto library fails, or a name is none.
    pub fn make(&self, workload: &str, names: &BTreeSet<String>, now: SystemTime) -> Result<PodCa, IdentityError> {
        // In this order: what is made of a pair is never taken for newer than it is.
        let version = self.version();
        let above = self.above.load();
        Ok(PodCa { version, ..PodCa::make(above.as_deref(), self.life, workload, names, now)? })
    }
}

impl PodCa {
    fn make(
        above: Option<&Above>,
        life: Duration,
        workload: &str,
        names: &BTreeSet<String>,
        made: SystemTime,
    ) -> Result<Self, IdentityError> {
        let names = bases(names);
        let key = EcKey::generate()?;
        let not_after = above.map_or(made + life, |above| above.not_after().min(made + life));
        let params = ca_params(workload, &names, made - BACKDATE, not_after)?;
        let failed = |_| IdentityError::Crypto { doing: "sign a certificate" };
        let (trust, chain) = match above {
            None => (params.self_signed(&key).map_err(failed)?.into(), Vec::new()),
            Some(above) => {
                let own = params.signed_by(&key, above.issuer()).map_err(failed)?.into();
                (above.root().clone(), [&[own], above.chain()].concat())
            }
        };
        Ok(Self { issuer: Issuer::new(params, key), chain, trust, names, made, not_after, version: 0 })
    }

    /// What the guest shall trust, as PEM. Public material.
    fn trust_pem(&self) -> String {
        pem::encode("CERTIFICATE", &self.trust).to_string()
    }

    /// Whether a leaf for `host` would be believed: the name itself, or one below, as name constraints are read.
    #[must_use]
    pub fn covers(&self, host: &str) -> bool {
        is_below_any(&self.names, host)
    }

    /// Whether it covers what a CA for `names` would.
    fn covers_all(&self, names: &BTreeSet<String>) -> bool {
        bases(names).iter().all(|name| self.covers(name))
    }

    /// When it was made.
    #[must_use]
    pub fn made(&self) -> SystemTime {
        self.made
    }

    /// When nothing that it signs is believed any more.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// When the guest should get the next one: programs that start from then on trust that, too.
    #[must_use]
    pub fn renew_after(&self) -> SystemTime {
        self.made + self.life() / 2
    }

    /// Whether its end is near: a week, or the last eighth of a shorter life.
    #[must_use]
    pub fn ends_soon(&self, now: SystemTime) -> bool {
        self.not_after < now + NOTICE.min(self.life() / 8)
    }

    /// Whether it should leave signing to the next one.
    fn is_spent(&self, now: SystemTime) -> bool {
        self.not_after < now + MARGIN.min(self.life() / 8)
    }

    fn is_over(&self, now: SystemTime) -> bool {
        self.not_after <= now
    }

    fn life(&self) -> Duration {
        self.not_after.duration_since(self.made).unwrap_or_default()
    }

    /// Makes a leaf for exactly `host`, with a key of its own.
    ///
    /// # Errors
    /// When the CA is over or does not cover the name, or the crypto library fails.
    pub fn issue(&self, host: &str) -> Result<PodLeaf, IdentityError> {
        let now = SystemTime::now();
        if !self.covers(host) || self.is_over(now) {
            return Err(IdentityError::NotCovered { host: host.to_owned() });
        }
        let key = EcKey::generate()?;
        let not_after = self.not_after.min(now + LEAF_LIFE);
        let params = leaf_params(host, now - BACKDATE, not_after)?;
        let failed = |_| IdentityError::Crypto { doing: "sign a certificate" };
        let leaf = params.signed_by(&key, &self.issuer).map_err(failed)?.into();
        let pkcs8 = key.to_pkcs8()?;
        let signing = any_ecdsa_type(&PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8.as_slice())))
            .map_err(|_| IdentityError::Crypto { doing: "use a key" })?;
        let chain = [vec![leaf], self.chain.clone()].concat();
        let renew_after = now + not_after.duration_since(now).unwrap_or_default() / 2;
        Ok(PodLeaf { certified_key: Arc::new(CertifiedKey::new(chain, signing)), renew_after })
    }
}

#[cfg(test)]
mod tests;
