//! Files with certificates, keys and other secrets. Every file is opened once and judged by its descriptor, so that nothing can be swapped
//! between check and use. Paths are followed as they are: a Kubernetes secret's `..data` link may point elsewhere next time.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nova_policy::files::{self, FileError};
use zeroize::Zeroizing;

use super::IdentityError;

/// Far above any chain or bundle; keeps a wrong path (a log, a disk) from filling memory.
const MAX_FILE: u64 = 1024 * 1024;

/// What a file holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Certificates.
    Public,
    /// A key: nobody but its owner, root or we ourselves, may have access to the file.
    Secret,
}

/// The whole of a file with a secret.
pub(crate) fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, IdentityError> {
    read(path, Access::Secret)
}

/// The whole file.
pub(super) fn read(path: &Path, access: Access) -> Result<Zeroizing<Vec<u8>>, IdentityError> {
    let failed = |source| IdentityError::Read { path: path.to_owned(), source };
    let file = files::open(path).map_err(|error| match error {
        FileError::Io(source) => failed(source),
        _ => IdentityError::NotAFile { path: path.to_owned(), max: MAX_FILE },
    })?;
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
    if facts.len() > MAX_FILE {
        return Err(IdentityError::NotAFile { path: path.to_owned(), max: MAX_FILE });
    }
    let trusted_owner = facts.uid() == 0 || facts.uid() == nix::unistd::geteuid().as_raw();
    if access == Access::Secret && (facts.mode() & 0o077 != 0 || !trusted_owner) {
        let mode = facts.mode() & 0o7777;
        return Err(IdentityError::KeyExposed { path: path.to_owned(), mode, uid: facts.uid() });
    }
    Ok(())
}

/// For messages.
pub(super) fn name(path: &Path) -> String {
    path.display().to_string()
}
