//! Reading a file that somebody else writes: opened once, looked at through the descriptor, never more than a cap.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nova_policy::files::{self, FileError};
use thiserror::Error;

/// Largest bundle or key file that is read: what the verifier would unpack at most.
pub const MAX_BYTES: u64 = nova_policy::bundle::MAX_COMPRESSED as u64;

/// Why a file cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// There is no such file.
    #[error("{path} does not exist; publish it there", path = .0.display())]
    Missing(PathBuf),
    /// It is there, but not readable.
    #[error("{path} cannot be read: {source}; {remedy}", path = path.display(), remedy = remedy(source, "let the supervisor's user read it"))]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is a pipe, a folder, a device.
    #[error("{path} is not a regular file; publish a file there", path = .0.display())]
    NotAFile(PathBuf),
    /// It is larger than any bundle.
    #[error("{path} is larger than {MAX_BYTES} bytes; it is not a file of this system", path = .0.display())]
    TooLarge(PathBuf),
    /// It was written to while it was read.
    #[error("{path} changed while it was read; it is tried again (publish with a rename to avoid this)", path = .0.display())]
    Changing(PathBuf),
}

/// What to do about a file that cannot be used: `permit` where nothing but permissions is known to be missing.
pub(super) fn remedy(error: &io::Error, permit: &'static str) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE) => "all descriptors are in use: raise the limit of open files",
        Some(Errno::ENFILE) => "all descriptors of the machine are in use: raise fs.file-max",
        Some(Errno::ENOSPC | Errno::EDQUOT) => "make room on its file system",
        Some(Errno::EROFS) => "mount its file system for writing",
        Some(Errno::EIO) => "its disk fails: look at the kernel's log",
        _ => permit,
    }
}

/// What tells one content of a path from another without reading it. A rename over the path changes the inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<&Metadata> for Fingerprint {
    fn from(meta: &Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

/// What is at the path now; symbolic links are followed, since mounted configuration swaps them.
pub(crate) fn fingerprint(path: &Path) -> Option<Fingerprint> {
    std::fs::metadata(path).ok().map(|meta| Fingerprint::from(&meta))
}

/// The whole file, and the fingerprint of exactly these bytes.
pub(crate) fn read(path: &Path) -> Result<(Vec<u8>, Fingerprint), ReadError> {
    let failed = |error: FileError| match error {
        FileError::Io(source) if source.kind() == io::ErrorKind::NotFound => ReadError::Missing(path.to_owned()),
        FileError::Io(source) => ReadError::Io { path: path.to_owned(), source },
        FileError::NotRegular(_) => ReadError::NotAFile(path.to_owned()),
        FileError::TooLarge(_) => ReadError::TooLarge(path.to_owned()),
    };
    let file = files::open(path).map_err(failed)?;
    let before = fingerprint_of(&file).map_err(|error| failed(error.into()))?;
    let bytes = files::bounded(&file, MAX_BYTES).map_err(failed)?;
    let after = fingerprint_of(&file).map_err(|error| failed(error.into()))?;
    if after != before {
        return Err(ReadError::Changing(path.to_owned()));
    }
    Ok((bytes, after))
}

fn fingerprint_of(file: &File) -> io::Result<Fingerprint> {
    Ok(Fingerprint::from(&file.metadata()?))
}
