//! Certificate revocation lists. A list counts once its signature was checked by the CA that issued the certificate in question.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject;
use webpki::{CertRevocationList, OwnedCertRevocationList};
use x509_parser::asn1_rs::{Oid, oid};
use x509_parser::prelude::{CertificateRevocationList, FromDer};

use super::IdentityError;
use super::disk::{Access, name, read};
use super::leaf::system_time;

/// Ways to take one list of each scope: so often a chain may have to be looked at.
const MAX_CHOICES: usize = 64;
/// issuingDistributionPoint: which of its CA's certificates a list is about.
const DISTRIBUTION_POINT: Oid<'static> = oid!(2.5.29.28);

/// All lists in force. Immutable: a change makes a new value.
#[derive(Default)]
pub struct Crls {
    /// Those of one scope together: by their names, no one can say which of them is about a certificate.
    scopes: Vec<Vec<Crl>>,
    grace: Duration,
}

/// One list of each scope.
pub(super) struct Choice<'a> {
    lists: Vec<&'a Crl>,
    grace: Duration,
}

struct Crl {
    list: CertRevocationList<'static>,
    /// Raw, as in the certificates that it is about.
    issuer: Vec<u8>,
    /// Raw; empty: all certificates of its issuer.
    part: Vec<u8>,
    next_update: SystemTime,
    what: String,
    digest: String,
}

impl Crls {
    /// Reads lists, PEM or DER, from files, and from all `.crl` and `.pem` files of folders. Past its end a list is used for
    /// another `grace`; then nobody whom it could be about is believed.
    ///
    /// # Errors
    /// The first file that is no list; too many lists of one name. An old set stays better in force than a part of a new one.
    pub fn read(paths: &[impl AsRef<Path>], grace: Duration) -> Result<Self, IdentityError> {
        let mut crls = Self { scopes: Vec::new(), grace };
        for path in paths {
            for file in files(path.as_ref())? {
                let what = name(&file);
                parse(&what, &read(&file, Access::Public)?)?.into_iter().for_each(|crl| crls.add(crl));
            }
        }
        if crls.choices().nth(MAX_CHOICES).is_some() {
            let problem = "too many lists of CAs with the same names; remove those that newer ones replace".to_owned();
            return Err(IdentityError::Crl { what: "revocation lists".to_owned(), problem });
        }
        Ok(crls)
    }

    fn add(&mut self, crl: Crl) {
        let is_same = |scope: &&mut Vec<Crl>| scope.iter().any(|one| one.issuer == crl.issuer && one.part == crl.part);
        match self.scopes.iter_mut().find(is_same) {
            Some(scope) => scope.push(crl),
            None => self.scopes.push(vec![crl]),
        }
    }

    /// The chain check looks at the first list alone that a certificate's issuer has by its name. Two CAs may have one name, and one
    /// CA may have two lists: then the check is made with each of them, and there is a choice for each. At least one choice.
    pub(super) fn choices(&self) -> impl Iterator<Item = Choice<'_>> {
        let count = self.scopes.iter().fold(1usize, |count, scope| count.saturating_mul(scope.len()));
        (0..count).map(move |mut number| {
            let pick = |scope: &Vec<Crl>| {
                let at = number % scope.len();
                number /= scope.len();
                at
            };
            let picked: Vec<usize> = self.scopes.iter().map(pick).collect();
            let lists = self.scopes.iter().zip(picked).filter_map(|(scope, at)| scope.get(at)).collect();
            Choice { lists, grace: self.grace }
        })
    }

    /// What an operator should know of them.
    #[must_use]
    pub fn warnings(&self, now: SystemTime) -> Vec<String> {
        let old = self.scopes.iter().flatten().filter(|crl| crl.next_update <= now);
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
        let digests = |crls: &Self| crls.scopes.iter().flatten().map(|crl| crl.digest.clone()).collect::<Vec<_>>();
        self.grace == other.grace && digests(self) == digests(other)
    }
}

impl fmt::Debug for Crls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.scopes.iter().flatten().map(|crl| &crl.what)).finish()
    }
}

impl Choice<'_> {
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
    let part = parsed.extensions().iter().find(|extension| extension.oid == DISTRIBUTION_POINT);
    let next_update = parsed.next_update().ok_or("it says no nextUpdate")?;
    Ok(Crl {
        list: list.into(),
        issuer: parsed.issuer().as_raw().to_vec(),
        part: part.map(|extension| extension.value.to_vec()).unwrap_or_default(),
        next_update: system_time(next_update),
        what: what.to_owned(),
        digest: hex::encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, der)),
    })
}
