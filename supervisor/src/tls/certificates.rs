//! The certificates that ports of mode `tls` may name instead of presenting the workload's SVID.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::{ArcSwap, ArcSwapOption};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::config::CertificateConfig;
use crate::identity::{IdentityError, ServerCertificate};

/// One of them: TLS reads it at each handshake, a change of its files replaces it.
pub struct CertificateCell {
    chain: PathBuf,
    key: PathBuf,
    current: ArcSwap<ServerCertificate>,
    /// Why the files of now are not in force.
    problem: ArcSwapOption<String>,
}

impl CertificateCell {
    fn open(config: &CertificateConfig) -> Result<Arc<Self>, IdentityError> {
        let current = ArcSwap::from_pointee(ServerCertificate::read(&config.chain, &config.key)?);
        let (chain, key) = (config.chain.clone(), config.key.clone());
        Ok(Arc::new(Self { chain, key, current, problem: ArcSwapOption::empty() }))
    }

    /// The two files.
    #[must_use]
    pub fn files(&self) -> [&PathBuf; 2] {
        [&self.chain, &self.key]
    }

    /// Reads the files again. What cannot be used changes nothing.
    ///
    /// # Errors
    /// Why the old pair stays.
    pub fn reload(&self) -> Result<(), IdentityError> {
        let read = ServerCertificate::read(&self.chain, &self.key);
        self.problem.store(read.as_ref().err().map(|error| Arc::new(error.to_string())));
        self.current.store(Arc::new(read?));
        Ok(())
    }
}

impl ResolvesServerCert for CertificateCell {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.load().certified_key))
    }
}

impl fmt::Debug for CertificateCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateCell").field("chain", &self.chain).finish_non_exhaustive()
    }
}

/// All of them, by the name that ports use.
#[derive(Debug, Default)]
pub struct Certificates(BTreeMap<String, Arc<CertificateCell>>);

impl Certificates {
    /// Reads every configured pair.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub fn open(configs: &[CertificateConfig]) -> Result<Self, IdentityError> {
        let open = |config: &CertificateConfig| Ok((config.name.clone(), CertificateCell::open(config)?));
        configs.iter().map(open).collect::<Result<_, _>>().map(Self)
    }

    /// The one of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<CertificateCell>> {
        self.0.get(name)
    }

    /// All, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<CertificateCell>)> {
        self.0.iter().map(|(name, cell)| (name.as_str(), cell))
    }

    /// What an operator should know of them.
    #[must_use]
    pub fn warnings(&self, now: SystemTime) -> Vec<String> {
        let warning = |(name, cell): (&String, &Arc<CertificateCell>)| {
            if let Some(problem) = cell.problem.load().as_deref() {
                return Some(format!("certificate {name}: the old pair stays in force: {problem}"));
            }
            let expired = cell.current.load().not_after <= now;
            expired.then(|| format!("certificate {name} has expired; renew {}", cell.chain.display()))
        };
        self.0.iter().filter_map(warning).collect()
    }
}
