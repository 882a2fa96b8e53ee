//! Certificate revocation lists. A list counts once its signature was checked by the CA that issued the certificate in question.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject;
use webpki::{CertRevocationList, OwnedCertRevocationList};
use x509_parser::prelude::{CertificateRevocationList, FromDer};

use super::IdentityError;
use super::disk::{Access, name, read};
use super::leaf::system_time;

/// All lists in force. Immutable: a change makes a new value.
#[derive(Default)]
pub struct Crls {
    lists: Vec<Crl>,
    grace: Duration,
}

struct Crl {
    list: CertRevocationList<'static>,
    /// Raw, as in the certificates that it is about.
    issuer: Vec<u8>,
    next_update: SystemTime,
    what: String,
    digest: String,
}

impl Crls {
    /// Reads lists, PEM or DER, from files, and from all `.crl` and `.pem` files of folders. Past its end a list is used for
    /// another `grace`; then nobody whom it could be about is believed.
    ///
    /// # Errors
    /// The first file that is no list. An old set stays better in force than a part of a new one.
    pub fn read(paths: &[impl AsRef<Path>], grace: Duration) -> Result<Self, IdentityError> {
        let mut lists = Vec::new();
        for path in paths {
            for file in files(path.as_ref())? {
                let what = name(&file);
                lists.extend(parse(&what, &read(&file, Access::Public)?)?);
            }
        }
        Ok(Self { lists, grace })
    }

    /// The form that the chain check takes.
    pub(super) fn lists(&self) -> Vec<&CertRevocationList<'static>> {
        self.lists.iter().map(|crl| &crl.list).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Whether certificates of `issuer` (raw) can no longer be judged: the list about them is too old.
    pub(super) fn is_overdue_for(&self, issuer: &[u8], now: SystemTime) -> bool {
        self.lists.iter().any(|crl| crl.issuer == issuer && crl.next_update + self.grace <= now)
    }

    /// What an operator should know of them.
    #[must_use]
    pub fn warnings(&self, now: SystemTime) -> Vec<String> {
        let old = self.lists.iter().filter(|crl| crl.next_update <= now);
        old.map(|crl| {
            let refused = crl.next_update + self.grace <= now;
            let effect = if refused { "peers of its CA are refused" } else { "it is still used, and not for long" };
            format!("{}: the revocation list has expired, {effect}; publish a fresh one", crl.what)
        })
        .collect()
    }

    /// Whether both hold the same lists.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        let digests = |crls: &Self| crls.lists.iter().map(|crl| crl.digest.clone()).collect::<Vec<_>>();
        self.grace == other.grace && digests(self) == digests(other)
    }
}

impl fmt::Debug for Crls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.lists.iter().map(|crl| &crl.what)).finish()
    }
}

/// The files that `path` stands for: itself, or what a folder holds.
///
/// # Errors
/// When the folder cannot be read.
pub fn files(path: &Path) -> Result<Vec<std::path::PathBuf>, IdentityError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let failed = |source| IdentityError::Read { path: path.to_owned(), source };
    let is_list = |path: &Path| path.extension().is_some_and(|kind| kind == "crl" || kind == "pem");
    let entries = std::fs::read_dir(path).map_err(failed)?;
    let mut found: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(|path| is_list(path)).collect();
    found.sort();
    Ok(found)
}

fn parse(what: &str, bytes: &[u8]) -> Result<Vec<Crl>, IdentityError> {
    let refuse = |problem: &str| IdentityError::Crl { what: what.to_owned(), problem: problem.to_owned() };
    let ders: Vec<Vec<u8>> = if bytes.starts_with(b"0") {
        vec![bytes.to_vec()]
    } else {
        CertificateRevocationListDer::pem_slice_iter(bytes)
            .map(|der| der.map(|der| der.to_vec()))
            .collect::<Result<_, _>>()
            .map_err(|_| refuse("it is neither PEM ('BEGIN X509 CRL') nor DER"))?
    };
    if ders.is_empty() {
        return Err(refuse("no 'BEGIN X509 CRL' section"));
    }
    ders.iter().map(|der| one(what, der).map_err(|problem| refuse(&problem))).collect()
}

fn one(what: &str, der: &[u8]) -> Result<Crl, String> {
    let list = OwnedCertRevocationList::from_der(der).map_err(|error| error.to_string())?;
    let (_, parsed) = CertificateRevocationList::from_der(der).map_err(|_| "it is not well-formed".to_owned())?;
    let next_update = parsed.next_update().ok_or("it says no nextUpdate")?;
    Ok(Crl {
        list: list.into(),
        issuer: parsed.issuer().as_raw().to_vec(),
        next_update: system_time(next_update),
        what: what.to_owned(),
        digest: hex::encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, der)),
    })
}
