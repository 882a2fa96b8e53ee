//! The files identity source: `<workload>.<tenant>.crt`, `<workload>.<tenant>.key` and `bundle.pem` in one folder.
//!
//! Every file is opened once and judged by its descriptor, so that nothing can be swapped between check and use. Paths are
//! followed as they are: a Kubernetes secret's `..data` link may point elsewhere at every [`reload`](IdentitySource::reload).

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use nix::fcntl::OFlag;
use nova_proto::ids::SpiffeId;
use zeroize::Zeroizing;

use super::{
    DEV_TRUST_DOMAIN, IdentityError, IdentityRequest, IdentitySource, RootSet, Svid, TrustBundles, TrustDomain, pem,
};

/// Far above any chain or bundle; keeps a wrong path (a log, a disk) from filling memory.
const MAX_FILE: u64 = 1024 * 1024;

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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Public,
    Secret,
}

fn read_bundle(dir: &Path, trust_domain: &TrustDomain) -> Result<TrustBundles, IdentityError> {
    let path = dir.join("bundle.pem");
    let roots = RootSet::from_pem(&name(&path), &read(&path, Access::Public)?)?;
    Ok(TrustBundles::new(trust_domain.clone(), Arc::new(roots)))
}

fn read(path: &Path, access: Access) -> Result<Zeroizing<Vec<u8>>, IdentityError> {
    let failed = |source| IdentityError::Read { path: path.to_owned(), source };
    // O_NONBLOCK: opening a FIFO that somebody put there must not hang the control runtime.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).map_err(failed)?;
    check_file(path, &file, access)?;
    // One allocation: a growing buffer would leave copies of a key behind.
    let mut text = Zeroizing::new(Vec::with_capacity(MAX_FILE as usize + 1));
    file.take(MAX_FILE + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE {
        return Err(IdentityError::NotAFile { path: path.to_owned(), max: MAX_FILE });
    }
    Ok(text)
}

fn check_file(path: &Path, file: &File, access: Access) -> Result<(), IdentityError> {
    let facts = file.metadata().map_err(|source| IdentityError::Read { path: path.to_owned(), source })?;
    if !facts.is_file() || facts.len() > MAX_FILE {
        return Err(IdentityError::NotAFile { path: path.to_owned(), max: MAX_FILE });
    }
    let trusted_owner = facts.uid() == 0 || facts.uid() == nix::unistd::geteuid().as_raw();
    if access == Access::Secret && (facts.mode() & 0o077 != 0 || !trusted_owner) {
        let mode = facts.mode() & 0o7777;
        return Err(IdentityError::KeyExposed { path: path.to_owned(), mode, uid: facts.uid() });
    }
    Ok(())
}

fn name(path: &Path) -> String {
    path.display().to_string()
}
