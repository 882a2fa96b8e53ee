//! A folder with one file per credential; the file's name is the credential's.
//!
//! Links are followed, so a folder that Kubernetes mounts works as it is: its `..data` and whatever else starts with a dot is
//! not looked at. Each file is opened once and judged by its descriptor.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use nova_policy::data::is_plain_name;

use super::value::{Value, ValueError};
use super::{Mark, SecretSource};
use crate::bundles::source as files;
use crate::identity::read_secret;

/// Most credentials of a node.
const MAX_FILES: usize = 1_000;

/// Why the folder cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It cannot be read.
    #[error("the folder {} cannot be read; create it, or correct [credentials] dir", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// Too many files.
    #[error("the folder {} has more than {MAX_FILES} files", .0.display())]
    TooMany(PathBuf),
}

pub(super) struct Folder {
    dir: PathBuf,
}

impl Folder {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }
}

impl SecretSource for Folder {
    fn list(&self) -> Result<BTreeMap<String, Mark>, SourceError> {
        let failed = |source| SourceError::Folder { path: self.dir.clone(), source };
        let mut found = BTreeMap::new();
        for entry in std::fs::read_dir(&self.dir).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            // Names that no rule can write belong to whoever put the files there.
            let Some(name) = name.to_str().filter(|name| is_plain_name(name)) else { continue };
            if let Some(fingerprint) = files::fingerprint(&self.dir.join(name)) {
                found.insert(name.to_owned(), Mark(fingerprint));
            }
            if found.len() > MAX_FILES {
                return Err(SourceError::TooMany(self.dir.clone()));
            }
        }
        Ok(found)
    }

    fn read(&self, name: &str) -> Result<Value, ValueError> {
        Value::parse(&read_secret(&self.dir.join(name))?)
    }
}
