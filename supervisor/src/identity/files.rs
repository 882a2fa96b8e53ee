//! The files identity source: `<workload>.<tenant>.crt`, `<workload>.<tenant>.key` and `bundle.pem` in one folder.
//!
//! Each is read as [`disk`](super::disk) reads, and read again at every [`reload`](IdentitySource::reload).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use nova_proto::ids::SpiffeId;

use super::disk::{Access, name, read};
use super::{
    DEV_TRUST_DOMAIN, IdentityError, IdentityRequest, IdentitySource, RootSet, Svid, TrustBundles, TrustDomain, pem,
};

/// Certificates on disk as identity source.
pub struct FilesSource {
    dir: PathBuf,
    trust_domain: TrustDomain,
    bundles: ArcSwap<TrustBundles>,
    /// What was loaded, by file stem. Only the control runtime comes here.
    loaded: Mutex<BTreeMap<String, (SpiffeId, Svid)>>,
}

impl FilesSource {
    /// Reads `bundle.pem`; the pairs are read when they are first asked for.
    ///
    /// # Errors
    /// When the trust domain is the dev source's, or the bundle cannot be used.
    pub fn open(dir: &Path, trust_domain: TrustDomain) -> Result<Self, IdentityError> {
        if trust_domain.as_str() == DEV_TRUST_DOMAIN {
            return Err(IdentityError::DevDomain);
        }
        let bundles = ArcSwap::from_pointee(read_bundle(dir, &trust_domain)?);
        Ok(Self { dir: dir.to_owned(), trust_domain, bundles, loaded: Mutex::default() })
    }

    fn read_pair(&self, stem: &str, id: &SpiffeId, own: &RootSet) -> Result<Svid, IdentityError> {
        let certificate = self.dir.join(format!("{stem}.crt"));
        let key = self.dir.join(format!("{stem}.key"));
        let chain = pem::certificates(&name(&certificate), &read(&certificate, Access::Public)?)?;
        let key = pem::private_key(&name(&key), &read(&key, Access::Secret)?)?;
        Svid::load(&name(&certificate), chain, &key, id, own)
    }

    fn loaded(&self) -> MutexGuard<'_, BTreeMap<String, (SpiffeId, Svid)>> {
        // Every change of the map is a single insert or remove, so a panic cannot have left it half done.
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IdentitySource for FilesSource {
    fn svid(&self, who: &IdentityRequest) -> Result<Svid, IdentityError> {
        if who.spiffe_id.trust_domain() == DEV_TRUST_DOMAIN {
            return Err(IdentityError::DevDomain);
        }
        if who.spiffe_id.trust_domain() != self.trust_domain.as_str() {
            let own = self.trust_domain.to_string();
            return Err(IdentityError::ForeignDomain { asked: who.spiffe_id.clone(), own });
        }
        let stem = format!("{}.{}", who.workload, who.tenant);
        let mut loaded = self.loaded();
        match loaded.get(&stem) {
            Some((id, svid)) if *id == who.spiffe_id && !svid.is_expired(SystemTime::now()) => Ok(svid.clone()),
            _ => {
                let svid = self.read_pair(&stem, &who.spiffe_id, self.bundles.load().own())?;
                loaded.insert(stem, (who.spiffe_id.clone(), svid.clone()));
                Ok(svid)
            }
        }
    }

    fn trust_bundles(&self) -> Arc<TrustBundles> {
        self.bundles.load_full()
    }

    fn reload(&self) -> Result<(), IdentityError> {
        let mut failed = Vec::new();
        match read_bundle(&self.dir, &self.trust_domain) {
            Ok(bundles) => self.bundles.store(Arc::new(bundles)),
            Err(error) => failed.push(error),
        }
        let bundles = self.bundles.load_full();
        let mut loaded = self.loaded();
        // An expired pair is nothing worth keeping: its workload has gone, or asks again and reads it anew.
        loaded.retain(|_, (_, svid)| !svid.is_expired(SystemTime::now()));
        for (stem, (id, svid)) in loaded.iter_mut() {
            match self.read_pair(stem, id, bundles.own()) {
                Ok(new) => *svid = new,
                Err(error) => failed.push(error),
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(IdentityError::Reload(failed)) }
    }

    fn name(&self) -> &'static str {
        "files"
    }
}

fn read_bundle(dir: &Path, trust_domain: &TrustDomain) -> Result<TrustBundles, IdentityError> {
    let roots = RootSet::read(&dir.join("bundle.pem"))?;
    Ok(TrustBundles::new(trust_domain.clone(), Arc::new(roots)))
}
